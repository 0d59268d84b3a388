//! The result of `judge`.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance must be handled here")]

use std::collections::BTreeMap;

use super::findings::Finding;
use crate::api::policy::{ChangeOperation, EntryMode};
use crate::keys::Field;
use crate::set::governance::{Constraint, ConstraintEntry};
use crate::set::rule::RuleId;

/// The kinds of violations, the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A kubelet changes a key that it may not change, or someone changes a key that is reserved for nodegate.
    Asserted,
    /// A write that sets the old key of a migration that is cut over.
    Replaced,
    /// A write to a reserved namespace or key.
    Reserved,
    /// A change of an immutable key.
    Immutable,
    /// A required key is missing.
    Required,
    /// A label without the labels or taints that it requires, or with a label that it forbids.
    Dependency,
    /// A value that is not allowed.
    Allowed,
    /// A key or value that does not follow a naming convention.
    Naming,
    /// An expression is false.
    Expression,
}

impl Kind {
    pub(super) fn of(constraint: &Constraint) -> Self {
        match constraint {
            Constraint::Required { .. } => Self::Required,
            Constraint::Allowed { .. } => Self::Allowed,
            Constraint::Immutable { .. } => Self::Immutable,
            Constraint::Dependency(_) => Self::Dependency,
            Constraint::Naming(_) => Self::Naming,
            Constraint::Expression(_) => Self::Expression,
        }
    }
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Policy and entry.
    pub by: RuleId,
    /// The mode of the entry.
    pub mode: EntryMode,
    /// The kind.
    pub kind: Kind,
    /// The part of the node.
    pub field: Field,
    /// The key, with the effect for a taint; empty if the violation concerns the node as a whole.
    pub key: String,
    /// How the write changes the key.
    pub operation: ChangeOperation,
    /// The break-glass group or user that overrides it, if any: `group oncall`, `user nina`.
    pub overridden_by: Option<String>,
    /// What is wrong, as a sentence.
    pub what: String,
    /// The sentence with the rule, and who may write the key or is exempt.
    pub message: String,
    /// How to override it, if possible.
    pub override_hint: Option<String>,
}

impl Violation {
    /// The violation for a finding.
    pub(super) fn of(
        constraint_entry: &ConstraintEntry,
        finding: Finding,
        operation: ChangeOperation,
        overridden_by: Option<String>,
        override_hint: String,
    ) -> Self {
        let entry = &constraint_entry.entry;
        let except = entry.except.describe();
        let except = if except.is_empty() { String::new() } else { format!("; exempt: {}", except.join("; ")) };
        Self {
            by: entry.id.clone(),
            mode: entry.mode,
            kind: Kind::of(&constraint_entry.constraint),
            field: finding.field,
            key: finding.key,
            operation,
            overridden_by,
            message: format!("{} (policy {}, rule {}{except})", finding.what, entry.id.policy, entry.id.rule),
            what: finding.what,
            override_hint: Some(override_hint),
        }
    }

    /// Whether it denies the write.
    pub fn denies(&self) -> bool {
        self.mode == EntryMode::Enforce && self.overridden_by.is_none()
    }

    pub(super) fn importance(&self) -> impl Ord {
        let mode = std::cmp::Reverse(self.mode);
        (!self.denies(), mode, self.kind, self.field, self.key.clone(), self.by.clone())
    }
}

/// Maximum number of violations that are kept of those that deny a write, and of the others. A writer can cause any number of
/// them, and each has texts.
const KEPT_MAX: usize = 1_000;

/// Violations that are only counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Further {
    /// Policy and entry.
    pub by: RuleId,
    /// The mode of the entry.
    pub mode: EntryMode,
    /// Whether a break-glass group or user overrides them.
    pub overridden: bool,
    /// How many they are.
    pub count: usize,
}

impl Further {
    /// Whether they deny the write.
    pub fn denies(&self) -> bool {
        self.mode == EntryMode::Enforce && !self.overridden
    }
}

/// The violations that were found so far.
#[derive(Default)]
pub(super) struct Found {
    denying: Vec<Violation>,
    others: Vec<Violation>,
    further: BTreeMap<(RuleId, EntryMode, bool), usize>,
}

impl Found {
    /// Keeps a violation, or counts it if there are very many.
    pub(super) fn add(&mut self, violation: Violation) {
        let kept = if violation.denies() { &mut self.denying } else { &mut self.others };
        if kept.len() < KEPT_MAX {
            kept.push(violation);
        } else {
            let like = (violation.by, violation.mode, violation.overridden_by.is_some());
            *self.further.entry(like).or_default() += 1;
        }
    }

    /// All violations, the most important first.
    pub(super) fn sorted(self) -> (Vec<Violation>, Vec<Further>) {
        let mut violations = self.denying;
        violations.extend(self.others);
        violations.sort_by(|a, b| a.importance().cmp(&b.importance()));
        let further = self.further.into_iter();
        (violations, further.map(|((by, mode, overridden), count)| Further { by, mode, overridden, count }).collect())
    }
}

/// The result of judging a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The violations, the most important first.
    pub violations: Vec<Violation>,
    /// The violations beyond those, if there are very many.
    pub further: Vec<Further>,
    /// Entries whose expression could not be evaluated, with the reason. They do not deny the write.
    pub unknown: Vec<(RuleId, String)>,
    /// An entry whose expression would exceed the limits, with the reason. Then there is no verdict.
    pub too_costly: Option<(RuleId, String)>,
}

/// Maximum number of violations that are listed in a denial.
const LISTED_MAX: usize = 10;

impl Verdict {
    /// The message of the denial, or `None` if the write is allowed.
    pub fn denial(&self) -> Option<String> {
        let denials: Vec<&Violation> = self.violations.iter().filter(|violation| violation.denies()).collect();
        let listed = denials.iter().take(LISTED_MAX);
        let further = self.further.iter().filter(|further| further.denies());
        let count = denials.len() + further.map(|further| further.count).sum::<usize>();
        let mut text = match denials.as_slice() {
            [] => return None,
            [one] => one.message.clone(),
            _ => {
                let numbered =
                    listed.clone().zip(1..).map(|(violation, number)| format!("({number}) {}", violation.message));
                let mut text = format!("{count} violations: {}", numbered.collect::<Vec<_>>().join("; "));
                if count > LISTED_MAX {
                    text.push_str(&format!("; and {} more", count - LISTED_MAX));
                }
                text
            }
        };
        let mut hints: Vec<&str> = Vec::new();
        for hint in listed.filter_map(|violation| violation.override_hint.as_deref()) {
            if !hints.contains(&hint) {
                hints.push(hint);
            }
        }
        for hint in hints {
            text.push_str("; ");
            text.push_str(hint);
        }
        Some(text)
    }
}
