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
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::cluster::registration::{
    ErrorBackoff, POLL, SPACING, in_time, message, next_trigger, triggers_of, write_to,
};
use nodegate_policy::PolicySet;
use nodegate_policy::native::guard_parameters;

/// How long the webhook configuration may be missing before that is reported. While nodegate is installed, it is registered last.
const ABSENT_FOR: Duration = Duration::from_secs(30);

/// Whether the guard has the keys of the policies in force, for those who report it.
#[derive(Debug)]
pub struct GuardFault<'a> {
    /// Why it does not have them; `None` if it has them, and while this replica does not lead.
    pub why: &'a watch::Sender<Option<String>>,
    /// 1 if it does not have them.
    pub gauge: &'a Gauge,
}

impl GuardFault<'_> {
    fn set(&self, now: Option<String>) {
        self.gauge.set(i64::from(now.is_some()));
        self.why.send_if_modified(|before| {
            *before != now && {
                *before = now;
                true
            }
        });
    }
}

impl Drop for GuardFault<'_> {
    /// The next leader reports its own.
    fn drop(&mut self) {
        self.set(None);
    }
}

/// Keeps the parameters equal to `policies`, and reports in `fault` if they are not. Only the leader runs this; it runs until
/// dropped.
///
/// `changes` changes with every new set of policies in force, and `policies` is the set in force at that time.
///
/// # Guarantees
/// Writes only what differs, and changes no other annotation. Changes by others are reverted and logged. A
/// configuration that does not exist is reported once it has been missing for 30 s: without it, the guard has no parameters and
/// allows everything.
pub async fn keep_guard(
    client: Client,
    configuration: String,
    policies: Arc<ArcSwap<PolicySet>>,
    mut changes: watch::Receiver<u64>,
    fault: GuardFault<'_>,
) {
    tell_what_is_missing(&client).await;
    let mut triggers = triggers_of(metadata(&client), &configuration);
    let mut errors = ErrorBackoff::new("the guard's parameters are not up to date");
    let mut kept = None;
    let mut absent_since = None;
    loop {
        changes.mark_unchanged();
        let wanted = guard_parameters(&policies.load());
        let pause = match in_time(look(&client, &configuration, &wanted)).await {
            Ok((look, uid)) => {
                // What is registered for the first time, or anew, has no parameters yet.
                let now = matches!(look, Look::Right | Look::Written).then_some((uid, wanted));
                if look == Look::Written && kept == now {
                    tracing::warn!(
                        configuration,
                        "the guard's parameters were changed by another writer; restored them"
                    );
                }
                kept = now;
                if look != Look::Absent {
                    absent_since = None;
                }
                match look {
                    Look::Right | Look::Written => fault.set(None),
                    Look::Changed => {}
                    Look::Absent if absent_since.get_or_insert_with(Instant::now).elapsed() >= ABSENT_FOR => {
                        fault.set(Some(format!("webhook configuration {configuration} does not exist")));
                    }
                    Look::Absent => {}
                }
                errors.succeeded(if look == Look::Changed { Duration::ZERO } else { POLL })
            }
            Err(error) => {
                let pause = errors.failed(&error);
                fault.set(Some(error));
                pause
            }
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
    /// The configuration does not differ.
    Right,
    /// It differed and was written.
    Written,
    /// It changed concurrently.
    Changed,
    /// It does not exist.
    Absent,
}

/// Writes what differs, and returns the uid of the configuration as well.
async fn look(
    client: &Client,
    configuration: &str,
    wanted: &BTreeMap<String, String>,
) -> Result<(Look, Option<String>), String> {
    let fault = |error: kube::Error| format!("webhook configuration {configuration}: {}", message(&error));
    let configurations = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    let Some(read) = configurations.get_opt(configuration).await.map_err(fault)? else {
        return Ok((Look::Absent, None));
    };
    let uid = read.uid();
    let mut operations: Vec<PatchOperation> = wanted
        .iter()
        .filter(|(key, text)| read.annotations().get(*key) != Some(text))
        .map(|(key, text)| add(&["metadata", "annotations", key], json!(text)))
        .collect();
    if operations.is_empty() {
        return Ok((Look::Right, uid));
    }
    if read.metadata.annotations.is_none() {
        operations.insert(0, add(&["metadata", "annotations"], json!({})));
    }
    let version = read.resource_version();
    if !write_to(&metadata(client), configuration, version.as_deref(), operations).await.map_err(fault)? {
        return Ok((Look::Changed, uid));
    }
    let lines = |text: &String| text.lines().count();
    tracing::info!(configuration, keys = wanted.values().map(lines).sum::<usize>(), "updated the guard's parameters");
    Ok((Look::Written, uid))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use kube::client::Body;

    use super::*;

    /// An API server with this configuration, if there is one, and nothing else.
    fn api_server(configuration: Arc<Mutex<Option<String>>>) -> Client {
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let path = request.uri().path();
            let there = path.ends_with("/nodegate").then(|| configuration.lock().unwrap().clone()).flatten();
            let absent = r#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404}"#;
            let (code, text) = there.map_or_else(|| (404, absent.to_owned()), |text| (200, text));
            let answer = hyper::Response::builder().status(code).body(Body::from(text.into_bytes()));
            async { Ok::<_, Infallible>(answer.unwrap()) }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_configuration_that_stays_away_is_reported_until_it_is_there() {
        let configuration = Arc::new(Mutex::new(None));
        let policies = Arc::new(PolicySet::default());
        let annotations = json!(guard_parameters(&policies));
        let registered = json!({"metadata": {"name": "nodegate", "resourceVersion": "1", "annotations": annotations}});
        let ((why, mut reported), gauge) = (watch::channel(None), Gauge::default());
        let (_generation, changes) = watch::channel(0);
        let fault = GuardFault { why: &why, gauge: &gauge };
        let client = api_server(configuration.clone());
        let keeping = keep_guard(client, "nodegate".to_owned(), Arc::new(ArcSwap::new(policies)), changes, fault);
        let begun = Instant::now();
        let looking = async {
            reported.changed().await.unwrap();
            assert!(begun.elapsed() >= ABSENT_FOR, "{:?}", begun.elapsed());
            let told = reported.borrow_and_update().clone();
            assert_eq!((told.as_deref(), gauge.get()), (Some("webhook configuration nodegate does not exist"), 1));
            *configuration.lock().unwrap() = Some(registered.to_string());
            reported.changed().await.unwrap();
            assert_eq!((reported.borrow_and_update().clone(), gauge.get()), (None, 0));
        };
        let limited = tokio::time::timeout(Duration::from_secs(600), looking);
        tokio::select! {
            () = keeping => unreachable!(),
            done = limited => done.unwrap(),
        }
    }
}
