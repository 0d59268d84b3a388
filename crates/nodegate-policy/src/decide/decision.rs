//! The result of `decide`: what a node should have, what this request carries, and what is deferred.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::api::names::{TaintEffect, TaintId};
use crate::decide::gates::ClosedGate;
use crate::keys::Field;
use crate::set::migration::Ownership;
use crate::set::rule::{RuleId, Strength};

/// A desired value, and the rule that assigns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The value.
    pub value: String,
    /// How strong it is.
    pub strength: Strength,
    /// The rule (or persist section) that assigns it.
    pub by: RuleId,
    /// How long after the rule stops matching the value is removed, if nodegate owns it.
    pub remove_after: Duration,
    /// How nodegate owns it.
    pub ownership: Ownership,
}

/// A change of a node; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChange {
    labels: BTreeMap<String, Option<String>>,
    annotations: BTreeMap<String, Option<String>>,
    taints: BTreeMap<TaintId, Option<String>>,
}

impl NodeChange {
    /// Labels to set, or to remove where the value is `None`.
    pub fn labels(&self) -> &BTreeMap<String, Option<String>> {
        &self.labels
    }

    /// Annotations to set, or to remove where the value is `None`.
    pub fn annotations(&self) -> &BTreeMap<String, Option<String>> {
        &self.annotations
    }

    /// A change that only removes taints; `None` without taints.
    pub fn without_taints(taints: impl IntoIterator<Item = TaintId>) -> Option<Self> {
        let taints = taints.into_iter().map(|id| (id, None)).collect();
        ChangeBuilder { taints, ..ChangeBuilder::default() }.build()
    }

    /// The change without the annotations that it sets; `None` if nothing else remains.
    pub fn without_set_annotations(self) -> Option<Self> {
        let Self { labels, mut annotations, taints } = self;
        annotations.retain(|_, value| value.is_none());
        ChangeBuilder { labels, annotations, taints }.build()
    }

    /// Taints to set, or to remove where the value is `None`. Admission removes none.
    pub fn taints(&self) -> &BTreeMap<TaintId, Option<String>> {
        &self.taints
    }
}

/// A change under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeBuilder {
    pub(crate) labels: BTreeMap<String, Option<String>>,
    pub(crate) annotations: BTreeMap<String, Option<String>>,
    pub(crate) taints: BTreeMap<TaintId, Option<String>>,
}

impl ChangeBuilder {
    /// The change; `None` if it is empty.
    pub(crate) fn build(self) -> Option<NodeChange> {
        let Self { labels, annotations, taints } = self;
        (!labels.is_empty() || !annotations.is_empty() || !taints.is_empty()).then_some(NodeChange {
            labels,
            annotations,
            taints,
        })
    }
}

impl From<NodeChange> for ChangeBuilder {
    fn from(NodeChange { labels, annotations, taints }: NodeChange) -> Self {
        Self { labels, annotations, taints }
    }
}

/// A key that was omitted from a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The part of the node.
    pub field: Field,
    /// The key; for a taint `key:Effect`.
    pub key: String,
    /// Why the API server would refuse it.
    pub reason: String,
}

/// A remark on a decision, for warnings, logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Two rules assign different values to one key.
    Conflict {
        /// The part of the node.
        field: Field,
        /// The key.
        key: String,
        /// The rule that takes precedence.
        winner: RuleId,
        /// The other rule.
        loser: RuleId,
    },
    /// It is unknown whether a rule matches, or one of its values could not be computed.
    Unknown {
        /// The rule.
        rule: RuleId,
        /// Why.
        reason: String,
    },
    /// The evaluation of a rule did not converge, so the rule is ignored.
    Unsettled {
        /// The rule.
        rule: RuleId,
    },
    /// A label map yielded a key outside its `keys`, or an invalid key or value.
    Dropped {
        /// The rule.
        rule: RuleId,
        /// The key.
        key: String,
        /// Why it was dropped.
        reason: String,
    },
    /// A kubelet set a key that it may not set; the key was removed.
    Stripped {
        /// The part of the node.
        field: Field,
        /// The key.
        key: String,
        /// What keeps it from kubelets: the `protect` section, or what nodegate does by itself.
        by: RuleId,
    },
    /// The guard removed keys that a kubelet set and may not set, and left only their number.
    StrippedUnnamed {
        /// How many.
        count: usize,
        /// `nodegate/unnamed`.
        by: RuleId,
    },
    /// A kubelet changed or removed a key that it may not change; the key was reset to its stored value.
    PutBack {
        /// The part of the node.
        field: Field,
        /// The key.
        key: String,
        /// What keeps it from kubelets: the `protect` section, or what nodegate does by itself.
        by: RuleId,
    },
    /// A node joined with the old key of a migration that is done; the key was removed.
    Retired {
        /// The old key.
        key: String,
        /// The new key, which the node has.
        new: String,
        /// The rule of the migration.
        by: RuleId,
    },
    /// The requester's change of a key was reverted.
    Reverted {
        /// The part of the node.
        field: Field,
        /// The key.
        key: String,
        /// The restored value.
        value: String,
        /// The rule that keeps it.
        by: RuleId,
    },
    /// A NoExecute taint was not added to an existing node.
    Withheld {
        /// The taint.
        taint: TaintId,
        /// The rule that assigns it.
        by: RuleId,
    },
    /// An entry of saved state is invalid or must never be restored.
    NotRestored {
        /// The part of the node.
        field: Field,
        /// The key.
        key: String,
        /// Why.
        reason: String,
    },
    /// A key was omitted from the change, because the API server would refuse the whole write.
    LeftOut(LeftOut),
    /// Labels are deferred, and the node has no pending taint.
    DeferredUnmarked {
        /// The keys.
        keys: Vec<String>,
    },
    /// Required inventories have not answered for a joining node, and the node has no pending taint.
    AwaitedUnmarked {
        /// The inventories, as `policy/name`.
        inventories: Vec<String>,
    },
    /// A joining node has not passed gates, and has no pending taint.
    GatesUnmarked {
        /// The gates, as `policy/gate:name`.
        gates: Vec<String>,
    },
}

impl Note {
    /// The note for a key that a kubelet may not change, which was reset to its stored value or removed.
    pub(crate) fn put_back(field: Field, key: &str, stored: Option<&str>, by: RuleId) -> Self {
        let key = key.to_owned();
        if stored.is_some() { Self::PutBack { field, key, by } } else { Self::Stripped { field, key, by } }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { field, key, winner, loser } => {
                write!(f, "{field} {key}: rule {winner} takes precedence over rule {loser}")
            }
            Self::Unknown { rule, reason } => write!(f, "rule {rule} could not be evaluated: {reason}"),
            Self::Unsettled { rule } => write!(f, "rule {rule} does not converge and is ignored"),
            Self::Dropped { rule, key, reason } => write!(f, "rule {rule}: label {key} was dropped: {reason}"),
            Self::Stripped { field, key, by: _ } => {
                write!(f, "{field} {key} may not be asserted by a kubelet and was removed")
            }
            Self::StrippedUnnamed { count, by: _ } => {
                let (noun, were) =
                    if *count == 1 { ("label or annotation", "was") } else { ("labels and annotations", "were") };
                write!(f, "{count} {noun} may not be asserted by a kubelet and {were} removed")
            }
            Self::PutBack { field, key, by: _ } => {
                write!(f, "{field} {key} may not be changed by a kubelet and was reset to its stored value")
            }
            Self::Retired { key, new, by } => {
                write!(f, "label {key} was removed: it is replaced by {new} (rule {by}); set {new} instead")
            }
            Self::Reverted { field, key, value, by } => write!(f, "{field} {key} is kept at {value:?} by rule {by}"),
            Self::Withheld { taint, by } => {
                write!(f, "taint {taint} is not added to an existing node, because rule {by} does not set evict: true")
            }
            Self::NotRestored { field, key, reason } => write!(f, "saved {field} {key} is not restored: {reason}"),
            Self::LeftOut(LeftOut { field, key, reason }) => write!(f, "{field} {key} is omitted: {reason}"),
            Self::DeferredUnmarked { keys } => {
                let (noun, them) = if keys.len() == 1 { ("label", "it") } else { ("labels", "them") };
                let keys = keys.join(", ");
                write!(f, "{noun} {keys} will be set by the controller (kubelets may not set {them})")
            }
            Self::AwaitedUnmarked { inventories } => {
                let (noun, have) = if inventories.len() == 1 { ("inventory", "has") } else { ("inventories", "have") };
                let inventories = inventories.join(", ");
                write!(
                    f,
                    "{noun} {inventories} {have} not answered for this node yet; the controller sets the labels later"
                )
            }
            Self::GatesUnmarked { gates } => {
                let noun = if gates.len() == 1 { "gate" } else { "gates" };
                let gates = gates.join(", ");
                write!(f, "{noun} {gates} cannot hold pods off this node: no controller runs that would release it")
            }
        }
    }
}

/// What a node should have, and what one request carries of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Labels the node should have.
    pub labels: BTreeMap<String, Desired>,
    /// Annotations the node should have.
    pub annotations: BTreeMap<String, Desired>,
    /// Taints the node should have.
    pub taints: BTreeMap<TaintId, Desired>,
    /// The change that is added to this request; `None` for an answer without a patch.
    pub change: Option<NodeChange>,
    /// The change that this request may not carry.
    pub deferred: Option<NodeChange>,
    /// Whether `change` sets the pending taint.
    pub pending: bool,
    /// The gates that a node has not passed: one that joins, or that is pending.
    pub gates: Vec<ClosedGate>,
    /// Notes, the most important first.
    pub notes: Vec<Note>,
}

impl Decision {
    /// The desired value of a label, if a rule or saved state assigns one.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(|desired| desired.value.as_str())
    }

    /// The desired value of a taint.
    pub fn taint(&self, key: &str, effect: TaintEffect) -> Option<&str> {
        self.taints
            .iter()
            .find(|(id, _)| id.key.as_str() == key && id.effect == effect)
            .map(|(_, desired)| desired.value.as_str())
    }

    /// How many labels and taints a change sets to their saved values.
    pub fn restored_by(&self, change: &NodeChange) -> usize {
        let is_saved = |desired: Option<&Desired>| desired.is_some_and(|desired| desired.strength == Strength::Saved);
        let labels = change.labels().iter().filter(|(key, value)| value.is_some() && is_saved(self.labels.get(*key)));
        let taints = change.taints().iter().filter(|(id, value)| value.is_some() && is_saved(self.taints.get(*id)));
        labels.count() + taints.count()
    }

    /// Every rule that assigns a value, each once, sorted.
    pub fn rules(&self) -> Vec<&RuleId> {
        let all = self.labels.values().chain(self.annotations.values()).chain(self.taints.values());
        let mut rules: Vec<&RuleId> = all.map(|desired| &desired.by).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn desired_by(rule: &str, value: &str) -> Desired {
        Desired {
            value: value.to_owned(),
            strength: Strength::Enforced,
            by: RuleId { policy: "p".into(), rule: rule.into() },
            remove_after: Duration::ZERO,
            ownership: Ownership::Usual,
        }
    }

    #[test]
    fn rules_that_assign_something_are_named_once_and_sorted() {
        let labels = [("a", "z"), ("b", "c")].map(|(key, rule)| (key.to_owned(), desired_by(rule, "1")));
        let annotations = [("a", "z"), ("b", "b")].map(|(key, rule)| (key.to_owned(), desired_by(rule, "1")));
        let decision = Decision { labels: labels.into(), annotations: annotations.into(), ..Decision::default() };
        assert_eq!(decision.rules().iter().map(|rule| &*rule.rule).collect::<Vec<_>>(), ["b", "c", "z"]);
    }

    #[test]
    fn a_taint_is_found_by_its_key_and_effect_together() {
        let desired = |value: &str| desired_by("r", value);
        let id = |key: &str, effect| TaintId { key: key.parse().unwrap(), effect };
        let taints = [
            (id("a", TaintEffect::NoSchedule), desired("1")),
            (id("b", TaintEffect::NoSchedule), desired("2")),
            (id("b", TaintEffect::NoExecute), desired("3")),
        ];
        let decision = Decision { taints: taints.into(), ..Decision::default() };
        assert_eq!(decision.taint("a", TaintEffect::NoSchedule), Some("1"));
        assert_eq!(decision.taint("b", TaintEffect::NoSchedule), Some("2"));
        assert_eq!(decision.taint("b", TaintEffect::NoExecute), Some("3"));
        assert_eq!(decision.taint("a", TaintEffect::NoExecute), None);
        assert_eq!(decision.taint("c", TaintEffect::NoSchedule), None);
    }
}
