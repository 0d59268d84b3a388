//! Generations that were in force, recorded as `ControllerRevision` objects beside saved state.
//!
//! The NodePolicy owns them, so that the garbage collector deletes them with it. They are found by the policy's uid: one
//! that is created again under the same name begins anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client, Resource as _};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tokio::sync::watch;

use super::super::history::FIELD_MANAGER;
use super::Good;
use crate::api::policy::NodePolicy;
use crate::metrics::Metrics;

/// The label of our revisions; other controllers keep theirs in the same namespace.
const LABEL: &str = "nodegate.dev/revision-of";
/// Its value.
const KIND: &str = "NodePolicy";
/// How many generations of one policy are kept.
const KEPT: usize = 2;
/// How soon a revision that could not be written is tried again, at first and at the latest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Which of a namespace's revisions are ours.
pub(super) fn selector() -> String {
    format!("{LABEL}={KIND}")
}

/// One recorded generation.
#[derive(Clone, Debug)]
pub(super) struct Revision {
    /// The uid of the policy.
    pub(super) uid: String,
    /// Its name.
    pub(super) policy: String,
    /// The generation.
    pub(super) generation: i64,
    /// What it says.
    pub(super) spec: Json,
}

#[derive(Serialize, Deserialize)]
struct Data {
    spec: Json,
}

impl Revision {
    /// What a `ControllerRevision` records; `None` when it is none of ours.
    pub(super) fn read(object: &ControllerRevision) -> Option<Self> {
        let owners = object.metadata.owner_references.as_deref().unwrap_or_default();
        let owner =
            owners.iter().find(|owner| owner.kind == KIND && owner.api_version == NodePolicy::api_version(&()))?;
        let data: Data = serde_json::from_value(object.data.as_ref()?.0.clone()).ok()?;
        let (uid, policy) = (owner.uid.clone(), owner.name.clone());
        Some(Self { uid, policy, generation: object.revision, spec: data.spec })
    }

    fn object(good: &Good) -> Result<ControllerRevision, serde_json::Error> {
        let spec = serde_json::to_value(&*good.document.spec)?;
        Ok(ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name(&good.uid, good.generation)),
                labels: Some(BTreeMap::from([(LABEL.to_owned(), KIND.to_owned())])),
                owner_references: Some(vec![OwnerReference {
                    api_version: NodePolicy::api_version(&()).into_owned(),
                    kind: KIND.to_owned(),
                    name: good.name.clone(),
                    uid: good.uid.clone(),
                    controller: Some(true),
                    block_owner_deletion: None,
                }]),
                ..ObjectMeta::default()
            },
            data: Some(k8s_openapi::apimachinery::pkg::runtime::RawExtension(serde_json::to_value(Data { spec })?)),
            revision: good.generation,
        })
    }
}

fn name(uid: &str, generation: i64) -> String {
    format!("nodepolicy-{uid}-{generation}")
}

/// Records what is in force, and forgets what was in force long before; runs until dropped. Only the leader does this.
///
/// A revision is never changed, so leaders that overlap write the same or nothing. What cannot be written is tried again.
pub async fn keep_revisions(
    client: Client,
    namespace: &str,
    mut good: watch::Receiver<Arc<Vec<Good>>>,
    metrics: &Metrics,
) {
    let api: Api<ControllerRevision> = Api::namespaced(client, namespace);
    let mut wait = RETRY.0;
    loop {
        let now = good.borrow_and_update().clone();
        let mut failed = false;
        for good in now.iter() {
            let kept = keep(&api, good, metrics).await;
            if let Err(error) = &kept {
                tracing::warn!(
                    policy = good.name, generation = good.generation, %error,
                    "this generation is in force and could not be recorded; trying again"
                );
            }
            failed |= kept.is_err();
        }
        wait = if failed { (wait * 2).min(RETRY.1) } else { RETRY.0 };
        tokio::select! {
            changed = good.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait), if failed => {}
        }
    }
}

/// Records a generation unless it is, and forgets older ones of its policy.
async fn keep(api: &Api<ControllerRevision>, good: &Good, metrics: &Metrics) -> Result<(), kube::Error> {
    if !good.recorded.contains(&good.generation) {
        let object = Revision::object(good).map_err(kube::Error::SerdeError)?;
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match api.create(&parameters, &object).await {
            Ok(_) => metrics.controller.wrote("revision", true),
            // A leader before this one was here.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => {
                metrics.controller.wrote("revision", false);
                return Err(error);
            }
        }
    }
    // Newer ones than what is in force were in force once and may be again.
    let older = good.recorded.range(..good.generation).rev().skip(KEPT - 1);
    for generation in older {
        match api.delete(&name(&good.uid, *generation), &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
