//! The failure policy of the validating webhook: `Fail` only where somebody serves.
//!
//! A configuration that is installed together with the pods and fails closed would refuse writes until the first of them
//! serves. So it is installed with `Ignore`, and its annotation names what is to become of which entry.

use std::sync::Arc;
use std::time::Duration;

use json_patch::{AddOperation, PatchOperation};
use jsonptr::PointerBuf;
use k8s_openapi::api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::sleep;

use super::registration::{POLL, SPACING, Trouble, in_time, next_sign, said, signs_of, write_to};
use crate::tls::Pair;

/// Which entries are to be `Fail`: `ENTRY=Fail`, separated by commas.
pub const ANNOTATION: &str = "nodegate.dev/failure-policy";

/// What an entry becomes.
const FAIL: &str = "Fail";

/// How soon to look again while this replica does not serve yet: nothing tells of that.
const UNREADY: Duration = Duration::from_millis(500);

/// Sets `failurePolicy: Fail` on the entries that the annotation of the validating configuration names, as soon as this replica
/// serves and callers trust what it serves, and again whenever somebody resets it. Only the leader runs this; it runs until
/// dropped.
///
/// `serving` gives the certificate while this replica is ready, and nothing otherwise.
///
/// # Guarantees
/// A configuration without the annotation is never written, nor is one where nothing differs. Every write is of the very version
/// that was looked at, so a caBundle that somebody replaces meanwhile is looked at first.
pub async fn keep_failure_policy(client: Client, configuration: String, serving: impl Fn() -> Option<Arc<Pair>>) {
    let mut signs = signs_of(metadata(&client), &configuration);
    let mut trouble = Trouble::new("failure policy not kept");
    let mut waiting = None;
    loop {
        let pause = match in_time(look(&client, &configuration, serving().as_deref())).await {
            Ok(Next::Rest) => {
                waiting = None;
                trouble.over(POLL)
            }
            Ok(Next::Again) => trouble.over(Duration::ZERO),
            Ok(Next::Wait(why)) => {
                if waiting.as_ref() != Some(&why) {
                    tracing::info!(why, "the failure policy stays Ignore for now");
                    waiting = Some(why);
                }
                trouble.over(UNREADY)
            }
            Err(error) => trouble.pause(&error),
        };
        sleep(SPACING).await;
        tokio::select! {
            () = next_sign(&mut signs) => {}
            () = sleep(pause) => {}
        }
    }
}

fn metadata(client: &Client) -> Api<PartialObjectMeta<ValidatingWebhookConfiguration>> {
    Api::all(client.clone())
}

/// What to do after a look.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Everything is as it should be.
    Rest,
    /// Something was written, or changed meanwhile.
    Again,
    /// It may not be done yet, and why.
    Wait(String),
}

async fn look(client: &Client, configuration: &str, serving: Option<&Pair>) -> Result<Next, String> {
    let fault = |error: kube::Error| format!("webhook configuration {configuration}: {}", said(&error));
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
        return Ok(Next::Wait(format!("caBundle of {} does not hold the CA of the certificate served", entry.name)));
    }
    let operations = differing.iter().map(|place| {
        let path = PointerBuf::from_tokens(["webhooks", &place.to_string(), "failurePolicy"]);
        PatchOperation::Add(AddOperation { path, value: json!(FAIL) })
    });
    let version = read.resource_version();
    if write_to(&metadata(client), configuration, version.as_deref(), operations.collect()).await.map_err(fault)? {
        tracing::info!(name = configuration, entries = wanted, "failure policy set: nodegate serves");
    }
    Ok(Next::Again)
}

fn trusts(entry: &ValidatingWebhook, pair: &Pair, now: jiff::Timestamp) -> bool {
    let ca_bundle = entry.client_config.ca_bundle.as_ref();
    ca_bundle.is_some_and(|text| pair.is_trusted_with(&String::from_utf8_lossy(&text.0), now))
}

/// The entries, by their place, that are not yet what the annotation says.
fn differing(annotation: &str, entries: &[ValidatingWebhook]) -> Result<Vec<usize>, String> {
    let mut places = Vec::new();
    for part in annotation.split(',').map(str::trim) {
        let name = match part.split_once('=') {
            Some((name, FAIL)) => name,
            _ => return Err(format!("annotation {ANNOTATION}: {part:?} is not ENTRY={FAIL}")),
        };
        let place = entries.iter().position(|entry| entry.name == name);
        let place = place.ok_or_else(|| format!("annotation {ANNOTATION}: there is no entry {name:?}"))?;
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
    fn an_annotation_that_makes_no_sense_is_a_fault_that_names_it() {
        let entries = entries(&[("a", "Ignore")]);
        for (annotation, said) in
            [("", "ENTRY=Fail"), ("a", "ENTRY=Fail"), ("a=Ignore", "a=Ignore"), ("x=Fail", "\"x\"")]
        {
            let error = differing(annotation, &entries).unwrap_err();
            assert!(error.contains(ANNOTATION) && error.contains(said), "{annotation:?}: {error}");
        }
    }
}
