//! Whether nodegate is running in the cluster, so that it would set again what a cleanup removes.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};

use crate::cli::shared::cluster::connect::ClusterTarget;
use crate::cli::shared::output;
use nodegate_base::text::on_a_line;
use nodegate_controller::leader::{Held, LEASE};

/// How often the Lease is read.
const POLL: Duration = Duration::from_millis(500);
/// Maximum time to wait for a renewal. A leader renews after a third of the duration, so a Lease of six minutes is renewed meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// What is running.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Running {
    /// The holder of the Lease, if it was observed to renew it.
    leader: Option<String>,
    /// The kinds of webhook configurations that exist.
    registered: Vec<&'static str>,
    /// The name of the webhook configurations.
    configuration: String,
    namespace: String,
}

impl Running {
    /// Whether nothing is running.
    pub(super) fn is_nothing(&self) -> bool {
        self.leader.is_none() && self.registered.is_empty()
    }
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(leader) = &self.leader {
            parts.push(format!("leader {} renews the Lease", on_a_line(leader)));
        }
        if !self.registered.is_empty() {
            let kinds = self.registered.join(" and ");
            parts.push(format!("the API server calls webhooks of {kinds} {}", self.configuration));
        }
        f.write_str(&parts.join(", and "))
    }
}

impl Running {
    /// What to do about it.
    pub(super) fn remedy(&self) -> String {
        let mut steps = Vec::new();
        if self.leader.is_some() {
            steps.push(format!("  kubectl -n {} scale deployment/{} --replicas=0", self.namespace, self.configuration));
        }
        if !self.registered.is_empty() {
            let kinds = self.registered.join(",").to_lowercase();
            steps.push(format!("  kubectl delete {kinds} {}", self.configuration));
        }
        format!("stop nodegate first:\n{}", steps.join("\n"))
    }
}

/// Finds out what is running.
///
/// A Lease counts only if it is renewed meanwhile: the holder may have been killed, and clocks may differ. So this takes
/// up to the duration of the Lease.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub(super) async fn look(client: &Client, place: &ClusterTarget, configuration: &str) -> anyhow::Result<Running> {
    let context = || format!("could not read webhook configuration {configuration}");
    let mutating = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let validating = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    let mutating = mutating.get_metadata_opt(configuration).await.with_context(context)?;
    let validating = validating.get_metadata_opt(configuration).await.with_context(context)?;
    let registered =
        [mutating.map(|_| "MutatingWebhookConfiguration"), validating.map(|_| "ValidatingWebhookConfiguration")];
    Ok(Running {
        leader: leader(client, &place.namespace).await?,
        registered: registered.into_iter().flatten().collect(),
        configuration: configuration.to_owned(),
        namespace: place.namespace.clone(),
    })
}

/// The holder of the Lease, if it renews it.
async fn leader(client: &Client, namespace: &str) -> anyhow::Result<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let held = async || {
        let lease = leases.get_opt(LEASE).await.context("could not read the Lease")?;
        anyhow::Ok(lease.as_ref().and_then(Held::of))
    };
    let Some(first) = held().await? else { return Ok(None) };
    let duration = first.valid_for().min(WAIT_MAX);
    let name = on_a_line(&first.holder).into_owned();
    output::note(&format!("note: checking for up to {} s whether leader {name} renews the Lease", duration.as_secs()));
    let started = Instant::now();
    while started.elapsed() < duration {
        tokio::time::sleep(POLL).await;
        match held().await? {
            None => return Ok(None),
            Some(held) if held.renewed != first.renewed => return Ok(Some(held.holder)),
            Some(_) => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_told_with_the_commands_that_stop_it() {
        let running = Running {
            leader: Some("pod-1\u{1b}".to_owned()),
            registered: vec!["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"],
            configuration: "labels-nodegate".to_owned(),
            namespace: "system".to_owned(),
        };
        assert!(!running.is_nothing() && Running::default().is_nothing());
        assert_eq!(
            running.to_string(),
            "leader pod-1\\u001b renews the Lease, and the API server calls webhooks of MutatingWebhookConfiguration and \
             ValidatingWebhookConfiguration labels-nodegate"
        );
        assert_eq!(
            running.remedy(),
            "stop nodegate first:\n  kubectl -n system scale deployment/labels-nodegate --replicas=0\n  kubectl delete \
             mutatingwebhookconfiguration,validatingwebhookconfiguration labels-nodegate"
        );
    }
}
