//! Gates at which nodes wait in vain: what should publish the labels on a node cannot start there.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Taint;
use schemars::JsonSchema;
use serde::Serialize;

use crate::scheduling::DaemonSet;
use nodegate_policy::{AwaitedLabel, PolicySet};

/// A DaemonSet that publishes what a gate waits for, and cannot start on a node that waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShutOut {
    /// The policy.
    pub(in crate::cli) policy: String,
    /// The gate in it, as `gate:NAME` or `topology:NAME`.
    pub(in crate::cli) gate: String,
    /// The labels that the gate waits for, and that the DaemonSet publishes.
    pub(in crate::cli) labels: Vec<String>,
    /// The DaemonSet, as `NAMESPACE/NAME`.
    pub(in crate::cli) daemon_set: String,
    /// The pending taint that its pods do not tolerate, as `KEY:EFFECT`.
    pub(in crate::cli) taint: String,
}

/// The DaemonSets that publish what gates wait for, and do not tolerate one of the pending `taints` (key and effect) of the fleet;
/// sorted by gate.
pub(super) fn shut_out(set: &PolicySet, taints: &BTreeSet<(String, String)>, sets: &[DaemonSet]) -> Vec<ShutOut> {
    let mut found: BTreeMap<(String, String, String), ShutOut> = BTreeMap::new();
    for AwaitedLabel { gate, key, daemon_sets } in set.awaited_of_publishers() {
        let publishes = |set: &&DaemonSet| set.words().any(|word| daemon_sets.iter().any(|part| word.contains(part)));
        for daemon_set in sets.iter().filter(publishes) {
            let refused = taints.iter().find(|(key, effect)| {
                let taint = Taint { key: key.clone(), effect: effect.clone(), value: None, time_added: None };
                !daemon_set.tolerates(&taint)
            });
            let Some((taint, effect)) = refused else { continue };
            let (policy, gate, daemon_set) = (gate.policy.to_string(), gate.rule.to_string(), daemon_set.full_name());
            let one = found.entry((policy.clone(), gate.clone(), daemon_set.clone())).or_insert_with(|| ShutOut {
                policy,
                gate,
                labels: Vec::new(),
                daemon_set,
                taint: format!("{taint}:{effect}"),
            });
            one.labels.push(key.clone());
        }
    }
    found.into_values().collect()
}

/// It as a warning.
pub(super) fn in_words(ShutOut { policy, gate, labels, daemon_set, taint }: &ShutOut) -> String {
    let labels = labels.join(", ");
    format!(
        "policy {policy:?}, {gate}: nodes wait for {labels}, but DaemonSet {daemon_set}, which publishes this, does not tolerate the pending taint {taint}; add a toleration with its key and operator Exists"
    )
}
