//! Maintains the parameters of the guard, which are the keys that kubelets may not set, in annotations of the
//! validating webhook configuration.
//!
//! The guard itself (`nodegate render guard`) is static, so this needs no permission to write admission policies.

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

use super::registration::{ErrorBackoff, POLL, SPACING, in_time, message, next_trigger, triggers_of, write_to};
use nodegate_policy::PolicySet;
use nodegate_policy::native::guard_parameters;

/// Keeps the parameters equal to `policies`. Only the leader runs this; it runs until dropped.
///
/// `changes` changes with every new set of policies in force, and `policies` is the set in force at that time.
///
/// # Guarantees
/// Writes only what differs, and changes no other annotation. Changes by others are reverted and logged. A
/// configuration that does not exist is not an error.
pub async fn keep_guard(
    client: Client,
    configuration: String,
    policies: Arc<ArcSwap<PolicySet>>,
    mut changes: watch::Receiver<u64>,
) {
    tell_what_is_missing(&client).await;
    let mut triggers = triggers_of(metadata(&client), &configuration);
    let mut errors = ErrorBackoff::new("the guard's parameters are not up to date");
    let mut kept = None;
    loop {
        changes.mark_unchanged();
        let wanted = guard_parameters(&policies.load());
        let pause = match in_time(look(&client, &configuration, &wanted)).await {
            Ok(look) => {
                if look == Look::Written && kept.as_ref() == Some(&wanted) {
                    tracing::warn!(
                        configuration,
                        "the guard's parameters were changed by another writer; restored them"
                    );
                }
                kept = (look != Look::Changed).then_some(wanted);
                errors.succeeded(if look == Look::Changed { Duration::ZERO } else { POLL })
            }
            Err(error) => errors.failed(&error),
        };
        sleep(SPACING).await;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = next_trigger(&mut triggers) => {}
            () = sleep(pause) => {}
        }
    }
}

fn metadata(client: &Client) -> Api<PartialObjectMeta<ValidatingWebhookConfiguration>> {
    Api::all(client.clone())
}

/// The result of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The configuration does not differ, or does not exist.
    Right,
    /// It differed and was written.
    Written,
    /// It changed concurrently.
    Changed,
}

async fn look(client: &Client, configuration: &str, wanted: &BTreeMap<String, String>) -> Result<Look, String> {
    let fault = |error: kube::Error| format!("webhook configuration {configuration}: {}", message(&error));
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
    tracing::info!(configuration, keys = wanted.values().map(lines).sum::<usize>(), "updated the guard's parameters");
    Ok(Look::Written)
}

fn add(path: &[&str], value: serde_json::Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(path.iter().copied()), value })
}

/// Logs which admission policies the API server lacks for the guard.
async fn tell_what_is_missing(client: &Client) {
    let served = match client.list_api_group_resources("admissionregistration.k8s.io/v1").await {
        Ok(list) => list.resources,
        Err(error) => {
            tracing::debug!(
                error = message(&error),
                "could not find out which admission policies the API server supports"
            );
            return;
        }
    };
    let has = |name: &str| served.iter().any(|resource| resource.name == name);
    if !has("validatingadmissionpolicies") {
        tracing::warn!(
            "this API server does not support ValidatingAdmissionPolicy (Kubernetes 1.30): while nodegate is unavailable, a kubelet can change protected labels of its own node"
        );
    } else if !has("mutatingadmissionpolicies") {
        tracing::warn!(
            "this API server does not support MutatingAdmissionPolicy (Kubernetes 1.36): a node that joins while nodegate is unavailable keeps forged protected labels until the controller removes them"
        );
    }
}
