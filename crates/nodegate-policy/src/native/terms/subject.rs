//! What a condition is evaluated for.

use crate::native::objects::{RULE_TAINTS, TAINTS};

/// What a condition is evaluated for, which determines the facts that it uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::native) enum Subject {
    /// A rule: with the values of other rules, and without keys that a kubelet may not set.
    Rule(usize),
    /// An entry of governance: the object as it would be stored.
    Entry,
    /// An entry of governance: the object as it is stored now, which must exist.
    EntryBefore,
}

impl Subject {
    /// The variable with the taints of that object.
    pub(in crate::native) fn taints(self) -> &'static str {
        match self {
            Self::Rule(_) => RULE_TAINTS,
            Self::Entry => TAINTS,
            Self::EntryBefore => "variables.oldTaints",
        }
    }

    /// The variable with the annotations of that object.
    pub(in crate::native) fn annotations(self) -> &'static str {
        self.of_two("variables.annotations", "variables.oldAnnotations")
    }

    /// The object to evaluate.
    pub(in crate::native) fn object(self) -> &'static str {
        if self == Self::EntryBefore { "oldObject" } else { "object" }
    }

    /// The name that applies to that object: `now` as it would be stored, `before` as it is stored now.
    pub(in crate::native) fn of_two(self, now: &'static str, before: &'static str) -> &'static str {
        if self == Self::EntryBefore { before } else { now }
    }
}
