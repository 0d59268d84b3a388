//! Generations that were in force, recorded as `ControllerRevision` objects in the namespace of saved state.
//!
//! The NodePolicy owns them, so that the garbage collector deletes them with it. They are matched by the policy's
//! uid, so a recreated policy with the same name starts without any.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client, Resource as _};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tokio::sync::watch;

use super::Good;
use nodegate_base::metrics::Metrics;
use nodegate_policy::FIELD_MANAGER;
use nodegate_policy::api::policy::NodePolicy;

/// The label of nodegate's revisions; other controllers may have revisions in the same namespace.
const LABEL: &str = "nodegate.dev/revision-of";
/// Its value.
const KIND: &str = "NodePolicy";
/// How many generations of one policy are kept.
const KEPT: usize = 2;
/// Pauses before a revision that could not be written is tried again.
const RETRY: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_secs(2)).with_max_delay(RETRY_MAX).without_max_times();
/// The longest of them.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Selects nodegate's revisions in a namespace.
pub(crate) fn selector() -> String {
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
    /// The spec.
    pub(super) spec: Json,
}

#[derive(Serialize, Deserialize)]
struct Data {
    spec: Json,
}

impl Revision {
    /// Parses a `ControllerRevision`; `None` if it does not belong to nodegate.
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

/// The prefix of the names of the ControllerRevisions.
pub const GENERATION_PREFIX: &str = "nodepolicy-";

fn name(uid: &str, generation: i64) -> String {
    format!("{GENERATION_PREFIX}{uid}-{generation}")
}

/// Records the generations in force, and deletes old ones; runs until dropped. Only the leader runs this.
///
/// A revision is never changed, so overlapping leaders write the same or nothing. Failed writes are retried.
pub async fn keep_revisions(
    client: Client,
    namespace: &str,
    mut good: watch::Receiver<Arc<Vec<Good>>>,
    metrics: &Metrics,
) {
    let api: Api<ControllerRevision> = Api::namespaced(client, namespace);
    let mut pauses = RETRY.build();
    loop {
        let now = good.borrow_and_update().clone();
        let mut failed = false;
        for good in now.iter() {
            let kept = keep(&api, good, metrics).await;
            if let Err(error) = &kept {
                tracing::warn!(
                    policy = good.name, generation = good.generation, %error,
                    "this generation is in force, but could not be recorded; retrying"
                );
            }
            failed |= kept.is_err();
        }
        let wait = failed.then(|| pauses.next().unwrap_or(RETRY_MAX));
        if !failed {
            pauses = RETRY.build();
        }
        tokio::select! {
            changed = good.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait.unwrap_or_default()), if failed => {}
        }
    }
}

/// Records a generation unless it is recorded, and deletes older ones of its policy.
async fn keep(api: &Api<ControllerRevision>, good: &Good, metrics: &Metrics) -> Result<(), kube::Error> {
    if !good.recorded.contains(&good.generation) {
        let object = Revision::object(good).map_err(kube::Error::SerdeError)?;
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match api.create(&parameters, &object).await {
            Ok(_) => metrics.controller.wrote("revision", true),
            // A previous leader has recorded it.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => {
                metrics.controller.wrote("revision", false);
                return Err(error);
            }
        }
    }
    // Generations newer than the one in force were in force before, and may be again.
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
