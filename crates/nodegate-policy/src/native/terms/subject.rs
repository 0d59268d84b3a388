//! What a condition is evaluated for.

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
    /// The object to evaluate.
    pub(in crate::native) fn object(self) -> &'static str {
        if self == Self::EntryBefore { "oldObject" } else { "object" }
    }

    /// The name that applies to that object: `now` as it would be stored, `before` as it is stored now.
    pub(in crate::native) fn of_two(self, now: &'static str, before: &'static str) -> &'static str {
        if self == Self::EntryBefore { before } else { now }
    }
}
