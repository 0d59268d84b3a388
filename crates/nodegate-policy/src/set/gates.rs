//! Compiled `gates`.

use std::time::Duration;

use crate::api::names::LabelKey;
use crate::api::policy::OnTimeout;
use crate::api::source::FieldPath;
use crate::facts::publishers::Publisher;
use crate::set::matcher::{Condition, Matcher};
use crate::set::rule::RuleId;

/// Labels that a joining node waits for.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    /// The policy, and `gate:NAME` or `topology:NAME`.
    pub(crate) id: RuleId,
    /// Where the policy has it.
    pub(crate) path: FieldPath,
    pub(crate) matcher: Matcher,
    pub(crate) labels: Vec<LabelKey>,
    /// Whether the labels are the levels of a topology, outermost first.
    pub(crate) is_topology: bool,
    pub(crate) timeout: Duration,
    pub(crate) on_timeout: OnTimeout,
}

/// What nodes wait for at a gate, or for their place in a topology.
#[derive(Clone, Copy, Debug)]
pub struct GateLabels<'a> {
    /// The policy, and `gate:NAME` or `topology:NAME`.
    pub id: &'a RuleId,
    /// The label keys; those of a topology are its levels, outermost first.
    pub labels: &'a [LabelKey],
    /// Whether it is a topology.
    pub is_topology: bool,
}

/// A label that a gate waits for, and that a program which runs on each node publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedLabel {
    /// The gate.
    pub gate: RuleId,
    /// The key of the label.
    pub key: String,
    /// Parts of the names, images or commands of its DaemonSets.
    pub daemon_sets: &'static [&'static str],
}

impl Gate {
    /// The labels that programs on the nodes themselves publish.
    pub(crate) fn published_on_nodes(&self) -> impl Iterator<Item = AwaitedLabel> {
        self.labels.iter().filter_map(|key| {
            let daemon_sets = Publisher::of(key.as_str())?.daemon_sets();
            let label = || AwaitedLabel { gate: self.id.clone(), key: key.to_string(), daemon_sets };
            (!daemon_sets.is_empty()).then(label)
        })
    }

    /// Whether it waits for this label, or for nodes with it.
    pub(crate) fn names_label(&self, key: &str) -> bool {
        self.labels.iter().any(|label| label.as_str() == key)
            || self.matcher.conditions().map(Condition::source).any(|source| source.names_label(key))
    }
}
