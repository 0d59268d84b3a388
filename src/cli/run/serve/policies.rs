//! The policies in force, and the files that they are read from.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::cli::run::serve::process::{POLL, Process};
use nodegate_base::metrics::{Metrics, PolicyCount};
use nodegate_policy::PolicySet;
use nodegate_stores::files::{self, LoadError, Loaded, Sources};
use nodegate_webhook::health::Readiness;

/// The policies in force. Replacing them updates metrics, readiness and everything that follows their generation.
pub(super) struct InForce {
    /// The set itself.
    pub(super) policies: Arc<ArcSwap<PolicySet>>,
    generations: watch::Sender<u64>,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
}

impl InForce {
    /// Starts without a policy. The receiver gets a number that increases with every set that is put in force.
    pub(super) fn new(process: &Process) -> (Arc<Self>, watch::Receiver<u64>) {
        let (generations, generation) = watch::channel(0);
        let (metrics, readiness) = (process.metrics.clone(), process.readiness.clone());
        (Arc::new(Self { policies: Arc::default(), generations, metrics, readiness }), generation)
    }

    /// Puts a set in force where there is no cluster.
    fn put_alone(&self, set: PolicySet) {
        let saving: Vec<String> = set.persist_sections().collect();
        if !saving.is_empty() {
            tracing::warn!(
                rules = saving.join(", "),
                "without a cluster these persist sections save nothing; only what is in --state-dir is restored"
            );
        }
        self.put(set);
    }

    /// Puts a set in force.
    pub(super) fn put(&self, set: PolicySet) {
        announce(&set, &self.metrics);
        self.policies.store(Arc::new(set));
        self.generations.send_modify(|generation| *generation += 1);
        self.readiness.policies_compiled();
    }
}

/// Logs which policies are in force.
fn announce(policies: &PolicySet, metrics: &Metrics) {
    metrics.policies_loaded(PolicyCount { policies: policies.policies().count(), rules: policies.rule_count() });
    let names: Vec<&str> = policies.policies().collect();
    tracing::info!(policies = names.join(", "), rules = policies.rule_count(), "policies in force");
    let unset: Vec<String> = policies.without_retention().collect();
    if !unset.is_empty() {
        tracing::info!(
            rules = unset.join(", "),
            "these persist sections have no retention: saved state is deleted 90 days after its node, unless another section names a longer time"
        );
    }
    let trusting: Vec<String> = policies.trusting_rules().collect();
    if !trusting.is_empty() {
        tracing::info!(rules = trusting.join(", "), "these rules trust values set by kubelets (trustKubelet)");
    }
}

/// Watches policy files; the receiver gets their content. Without a cluster (`alone`) it is in force; with one it is
/// combined with `NodePolicy` objects first.
pub(super) fn watch_files(
    sources: Sources,
    loaded: Loaded,
    alone: Option<Arc<InForce>>,
    process: &Process,
) -> watch::Receiver<Arc<Loaded>> {
    let since = loaded.fingerprint;
    if let Some(alone) = &alone {
        alone.put_alone(loaded.set.clone());
    }
    let (loads, files) = watch::channel(Arc::new(loaded));
    let metrics = process.metrics.clone();
    let observer = move |loaded: Result<Loaded, &[LoadError]>| match loaded {
        Ok(loaded) => {
            metrics.loaded.policy_files_judged(false);
            if let Some(alone) = &alone {
                alone.put_alone(loaded.set.clone());
            }
            loads.send_replace(Arc::new(loaded));
        }
        Err(errors) => {
            metrics.loaded.policies_refused();
            metrics.loaded.policy_files_judged(true);
            for error in errors {
                tracing::error!(%error, "could not reload policies; the last good ones stay in force");
            }
        }
    };
    tokio::spawn(files::watch(sources, since, POLL, observer, process.shutdown.clone()));
    files
}
