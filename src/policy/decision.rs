//! What `decide` answers: what a node should have, what this request carries, what is deferred.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::limits::LeftOut;
use crate::api::names::{TaintEffect, TaintId};

/// Names one rule: the policy it stands in and its own name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId {
    /// The policy.
    pub policy: Arc<str>,
    /// The rule in it.
    pub rule: Arc<str>,
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.policy, self.rule)
    }
}

/// How strong a desired value is (DESIGN: precedence for one key).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// A rule that keeps its value.
    Enforced,
    /// Restored from saved state.
    Saved,
    /// Given once, where absent.
    Default,
}

/// A value that a node should have, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The value.
    pub value: String,
    /// How strong it is.
    pub strength: Strength,
    /// Which rule (or persist section) gives it.
    pub by: RuleId,
    /// How long after that rule has ceased to match the value is removed, where nodegate put it there.
    pub remove_after: Duration,
}

/// Which part of a node a key is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// `metadata.labels`.
    Label,
    /// `metadata.annotations`.
    Annotation,
    /// `spec.taints`.
    Taint,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Label => "label",
            Self::Annotation => "annotation",
            Self::Taint => "taint",
        })
    }
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

    /// A change that takes taints away and does nothing else; `None` without taints.
    pub fn without_taints(taints: impl IntoIterator<Item = TaintId>) -> Option<Self> {
        let taints = taints.into_iter().map(|id| (id, None)).collect();
        ChangeBuilder { taints, ..ChangeBuilder::default() }.build()
    }

    /// The change without the annotations it sets; `None` when it does nothing else.
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
    /// Nothing when there is nothing to change.
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

/// Something a person should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Two rules give one key different values.
    Conflict {
        /// Which part of the node.
        field: Field,
        /// The key.
        key: String,
        /// The rule whose value is taken.
        winner: RuleId,
        /// The rule whose value is not.
        loser: RuleId,
    },
    /// A rule could not be told to match or not, or one of its values could not be computed.
    Unknown {
        /// The rule.
        rule: RuleId,
        /// Why.
        reason: String,
    },
    /// A rule did not settle and was left out.
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
    /// A kubelet asserted something it may not; it was taken out or corrected.
    Stripped {
        /// Which part of the node.
        field: Field,
        /// The key.
        key: String,
    },
    /// A kubelet changed or removed something it may not; it is again as it is stored.
    PutBack {
        /// Which part of the node.
        field: Field,
        /// The key.
        key: String,
    },
    /// The requester's change of a key was set back.
    Reverted {
        /// Which part of the node.
        field: Field,
        /// The key.
        key: String,
        /// The value it has again.
        value: String,
        /// The rule that keeps it.
        by: RuleId,
    },
    /// A NoExecute taint was not added to a living node.
    Withheld {
        /// The taint.
        taint: TaintId,
        /// The rule that gives it.
        by: RuleId,
    },
    /// An entry of saved state is not valid or may never be restored.
    NotRestored {
        /// Which part of the node.
        field: Field,
        /// The key.
        key: String,
        /// Why.
        reason: String,
    },
    /// A key was left out of the change, because the API server would refuse the whole write.
    LeftOut(LeftOut),
    /// Something is deferred, and no pending taint marks the node.
    DeferredUnmarked {
        /// The keys.
        keys: Vec<String>,
    },
}

impl Note {
    /// A kubelet asserted `key`, which is again as it is stored.
    pub(crate) fn put_back(field: Field, key: &str, stored: Option<&str>) -> Self {
        let key = key.to_owned();
        if stored.is_some() { Self::PutBack { field, key } } else { Self::Stripped { field, key } }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { field, key, winner, loser } => {
                write!(f, "{field} {key}: rule {winner} wins over rule {loser}")
            }
            Self::Unknown { rule, reason } => write!(f, "rule {rule} is unknown here: {reason}"),
            Self::Unsettled { rule } => write!(f, "rule {rule} does not settle and is left out"),
            Self::Dropped { rule, key, reason } => write!(f, "rule {rule}: label {key} dropped: {reason}"),
            Self::Stripped { field, key } => write!(f, "{field} {key} may not be asserted by a kubelet; taken out"),
            Self::PutBack { field, key } => write!(f, "{field} {key} may not be changed by a kubelet; put back"),
            Self::Reverted { field, key, value, by } => write!(f, "{field} {key} is kept at {value:?} by rule {by}"),
            Self::Withheld { taint, by } => {
                write!(f, "taint {taint} of rule {by} is not added to a living node without evict: true")
            }
            Self::NotRestored { field, key, reason } => write!(f, "saved {field} {key} is not restored: {reason}"),
            Self::LeftOut(LeftOut { field, key, reason }) => write!(f, "{field} {key} is left out: {reason}"),
            Self::DeferredUnmarked { keys } => {
                write!(f, "deferred, a kubelet may not carry them: {}", keys.join(", "))
            }
        }
    }
}

/// What a node should have, and what one request does about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Labels the node should have.
    pub labels: BTreeMap<String, Desired>,
    /// Annotations the node should have.
    pub annotations: BTreeMap<String, Desired>,
    /// Taints the node should have.
    pub taints: BTreeMap<TaintId, Desired>,
    /// What is added to this request. `None` means: answer without a patch.
    pub change: Option<NodeChange>,
    /// What this request may not carry.
    pub deferred: Option<NodeChange>,
    /// Whether `change` sets the pending taint.
    pub pending: bool,
    /// What people should hear of, most important first.
    pub notes: Vec<Note>,
}

impl Decision {
    /// The desired value of a label, if a rule or saved state gives one.
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

    /// Every rule that gives something, each once, sorted.
    pub fn rules(&self) -> Vec<&RuleId> {
        let all = self.labels.values().chain(self.annotations.values()).chain(self.taints.values());
        let mut rules: Vec<&RuleId> = all.map(|desired| &desired.by).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}
