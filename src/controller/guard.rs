//! The parameters of the guard: what kubelets may not assert, kept equal to the policies in force in annotations of the validating
//! webhook configuration.
//!
//! The guard itself (`nodegate render guard`) is static, so this needs no right on admission policies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use json_patch::{AddOperation, PatchOperation};
use jsonptr::PointerBuf;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::registration::{POLL, SPACING, Trouble, in_time, next_sign, said, signs_of, write_to};
use crate::policy::PolicySet;
use crate::policy::native::guard_parameters;

/// Keeps the parameters equal to `policies`. Only the leader runs this; it runs until dropped.
///
/// `changes` changes with every set of policies put in force, and `policies` is the set in force then.
///
/// # Guarantees
/// Nothing is written where nothing differs, and no other annotation is touched. What somebody else writes there is put back and
/// logged. A configuration that is not there is fine.
pub async fn keep_guard(
    client: Client,
    configuration: String,
    policies: Arc<ArcSwap<PolicySet>>,
    mut changes: watch::Receiver<u64>,
) {
    tell_what_is_missing(&client).await;
    let mut signs = signs_of(metadata(&client), &configuration);
    let mut trouble = Trouble::new("the guard's parameters are not kept");
    let mut kept = None;
    loop {
        changes.mark_unchanged();
        let wanted = guard_parameters(&policies.load());
        let pause = match in_time(look(&client, &configuration, &wanted)).await {
            Ok(look) => {
                if look == Look::Written && kept.as_ref() == Some(&wanted) {
                    tracing::warn!(configuration, "somebody changed the guard's parameters; they are put back");
                }
                kept = (look != Look::Changed).then_some(wanted);
                trouble.over(if look == Look::Changed { Duration::ZERO } else { POLL })
            }
            Err(error) => trouble.pause(&error),
        };
        sleep(SPACING).await;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = next_sign(&mut signs) => {}
            () = sleep(pause) => {}
        }
    }
}

fn metadata(client: &Client) -> Api<PartialObjectMeta<ValidatingWebhookConfiguration>> {
    Api::all(client.clone())
}

/// What a look at the configuration came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// It is as it should be, or not there.
    Right,
    /// It was not, and is now.
    Written,
    /// It changed while it was looked at.
    Changed,
}

async fn look(client: &Client, configuration: &str, wanted: &BTreeMap<String, String>) -> Result<Look, String> {
    let fault = |error: kube::Error| format!("webhook configuration {configuration}: {}", said(&error));
    let configurations = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    let Some(read) = configurations.get_opt(configuration).await.map_err(fault)? else { return Ok(Look::Right) };
    let mut operations: Vec<PatchOperation> = wanted
        .iter()
        .filter(|(key, text)| read.annotations().get(*key) != Some(text))
        .map(|(key, text)| add(&["metadata", "annotations", key], json!(text)))
        .collect();
    if operations.is_empty() {
        return Ok(Look::Right);
    }
    if read.metadata.annotations.is_none() {
        operations.insert(0, add(&["metadata", "annotations"], json!({})));
    }
    let version = read.resource_version();
    if !write_to(&metadata(client), configuration, version.as_deref(), operations).await.map_err(fault)? {
        return Ok(Look::Changed);
    }
    let lines = |text: &String| text.lines().count();
    tracing::info!(
        configuration,
        keys = wanted.values().map(lines).sum::<usize>(),
        "the guard's parameters are written"
    );
    Ok(Look::Written)
}

fn add(path: &[&str], value: serde_json::Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(path.iter().copied()), value })
}

/// Logs what this API server lacks for the guard.
async fn tell_what_is_missing(client: &Client) {
    let served = match client.list_api_group_resources("admissionregistration.k8s.io/v1").await {
        Ok(list) => list.resources,
        Err(error) => {
            tracing::debug!(error = said(&error), "which admission policies the API server has is not known");
            return;
        }
    };
    let has = |name: &str| served.iter().any(|resource| resource.name == name);
    if !has("validatingadmissionpolicies") {
        tracing::warn!(
            "this API server has no ValidatingAdmissionPolicy (Kubernetes 1.30): while no nodegate answers, a kubelet can change protected labels of its own node"
        );
    } else if !has("mutatingadmissionpolicies") {
        tracing::warn!(
            "this API server has no MutatingAdmissionPolicy (Kubernetes 1.36): a node that joins while no nodegate answers keeps forged protected labels until the controller removes them"
        );
    }
}
