//! Sets `failurePolicy: Fail` on the validating webhook once nodegate serves.
//!
//! If a configuration with `Fail` were installed together with the pods, it would block writes until the first pod
//! serves. So it is installed with `Ignore`, and an annotation names the entries to change.

use std::sync::Arc;
use std::time::Duration;

use json_patch::{AddOperation, PatchOperation};
use jsonptr::PointerBuf;
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::sleep;

use crate::cluster::registration::{
    ErrorBackoff, POLL, SPACING, in_time, message, next_trigger, triggers_of, write_to,
};
use nodegate_webhook::tls::Pair;

/// The annotation with the entries to set to `Fail`: `ENTRY=Fail`, separated by commas.
pub const ANNOTATION: &str = "nodegate.dev/failure-policy";

/// The value to set.
const FAIL: &str = "Fail";

/// How soon to check again while this replica does not serve yet. No event signals that.
const UNREADY: Duration = Duration::from_millis(500);

/// Sets `failurePolicy: Fail` on the entries that the annotation of the validating configuration names, as soon as
/// this replica serves and callers trust its certificate, and again whenever the entries are reset. Only the leader
/// runs this; it runs until dropped.
///
/// `serving` returns the certificate while this replica is ready, and nothing otherwise.
///
/// # Guarantees
/// A configuration without the annotation is never written, nor one that does not differ. Each write applies to the
/// exact version that was read, so if the caBundle is replaced concurrently, it is checked first.
pub async fn keep_failure_policy(client: Client, configuration: String, serving: impl Fn() -> Option<Arc<Pair>>) {
    let mut triggers = triggers_of(metadata(&client), &configuration);
    let mut errors = ErrorBackoff::new("failurePolicy is not up to date");
    let mut waiting = None;
    loop {
        let pause = match in_time(look(&client, &configuration, serving().as_deref())).await {
            Ok(Next::Rest) => {
                waiting = None;
                errors.succeeded(POLL)
            }
            Ok(Next::Again) => errors.succeeded(Duration::ZERO),
            Ok(Next::Wait(why)) => {
                if waiting.as_ref() != Some(&why) {
                    tracing::info!(why, "failurePolicy stays Ignore for now");
                    waiting = Some(why);
                }
                errors.succeeded(UNREADY)
            }
            Err(error) => errors.failed(&error),
        };
        sleep(SPACING).await;
        tokio::select! {
            () = next_trigger(&mut triggers) => {}
            () = sleep(pause) => {}
        }
    }
}

fn metadata(client: &Client) -> Api<PartialObjectMeta<ValidatingWebhookConfiguration>> {
    Api::all(client.clone())
}

/// The result of a pass.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Nothing differs.
    Rest,
    /// Something was written, or changed concurrently.
    Again,
    /// Setting the policy is not safe yet, for this reason.
    Wait(String),
}

async fn look(client: &Client, configuration: &str, serving: Option<&Pair>) -> Result<Next, String> {
    let fault = |error: kube::Error| format!("webhook configuration {configuration}: {}", message(&error));
    let read =
        Api::<ValidatingWebhookConfiguration>::all(client.clone()).get_opt(configuration).await.map_err(fault)?;
    let Some(read) = read else { return Ok(Next::Rest) };
    let Some(wanted) = read.annotations().get(ANNOTATION) else { return Ok(Next::Rest) };
    let entries = read.webhooks.as_deref().unwrap_or_default();
    let differing = differing(wanted, entries).map_err(|error| format!("{configuration}: {error}"))?;
    if differing.is_empty() {
        return Ok(Next::Rest);
    }
    let Some(pair) = serving else { return Ok(Next::Wait("this replica is not ready".to_owned())) };
    let now = jiff::Timestamp::now();
    if let Some(entry) = differing.iter().map(|place| &entries[*place]).find(|entry| !trusts(entry, pair, now)) {
        return Ok(Next::Wait(format!(
            "caBundle of {} does not contain the CA of the serving certificate",
            entry.name
        )));
    }
    let operations = differing.iter().map(|place| {
        let path = PointerBuf::from_tokens(["webhooks", &place.to_string(), "failurePolicy"]);
        PatchOperation::Add(AddOperation { path, value: json!(FAIL) })
    });
    let version = read.resource_version();
    if write_to(&metadata(client), configuration, version.as_deref(), operations.collect()).await.map_err(fault)? {
        tracing::info!(name = configuration, entries = wanted, "failurePolicy is set to Fail, because nodegate serves");
    }
    Ok(Next::Again)
}

fn trusts(entry: &ValidatingWebhook, pair: &Pair, now: jiff::Timestamp) -> bool {
    let ca_bundle = entry.client_config.ca_bundle.as_ref();
    ca_bundle.is_some_and(|text| pair.is_trusted_with(&String::from_utf8_lossy(&text.0), now))
}

/// The indexes of the entries that differ from the annotation.
fn differing(annotation: &str, entries: &[ValidatingWebhook]) -> Result<Vec<usize>, String> {
    let mut places = Vec::new();
    for part in annotation.split(',').map(str::trim) {
        let name = match part.split_once('=') {
            Some((name, FAIL)) => name,
            _ => return Err(format!("annotation {ANNOTATION}: {part:?} is not valid; expected ENTRY={FAIL}")),
        };
        let place = entries.iter().position(|entry| entry.name == name);
        let place = place.ok_or_else(|| format!("annotation {ANNOTATION}: the configuration has no entry {name:?}"))?;
        if entries[place].failure_policy.as_deref() != Some(FAIL) {
            places.push(place);
        }
    }
    Ok(places)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entries(policies: &[(&str, &str)]) -> Vec<ValidatingWebhook> {
        let entry = |(name, policy): &(&str, &str)| ValidatingWebhook {
            name: (*name).to_owned(),
            failure_policy: Some((*policy).to_owned()),
            ..ValidatingWebhook::default()
        };
        policies.iter().map(entry).collect()
    }

    #[test]
    fn only_entries_that_are_named_and_differ_are_to_be_written() {
        let entries = entries(&[("a", "Ignore"), ("b", "Ignore"), ("c", "Fail"), ("d", "Ignore")]);
        assert_eq!(differing("b=Fail", &entries), Ok(vec![1]));
        assert_eq!(differing("c=Fail, d=Fail", &entries), Ok(vec![3]));
        assert_eq!(differing("c=Fail", &entries), Ok(vec![]));
    }

    #[test]
    fn an_invalid_annotation_is_an_error_that_names_it() {
        let entries = entries(&[("a", "Ignore")]);
        for (annotation, message) in
            [("", "ENTRY=Fail"), ("a", "ENTRY=Fail"), ("a=Ignore", "a=Ignore"), ("x=Fail", "\"x\"")]
        {
            let error = differing(annotation, &entries).unwrap_err();
            assert!(error.contains(ANNOTATION) && error.contains(message), "{annotation:?}: {error}");
        }
    }
}
