//! What governance says of a write.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance has to be thought of here")]

use super::demands::Finding;
use crate::api::policy::{ChangeOperation, EntryMode};
use crate::policy::decision::{Field, RuleId};
use crate::policy::governance::{Demand, Wanted};

/// What a violation is about, the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A kubelet asserts what it may not, or somebody writes what is nodegate's own.
    Asserted,
    /// A reserved namespace or key.
    Reserved,
    /// A key that does not change once set.
    Immutable,
    /// A required key is missing.
    Required,
    /// A label lacks others that it needs.
    Dependency,
    /// A value that is not allowed.
    Allowed,
    /// A key or value is not written as agreed.
    Naming,
    /// An expression is false.
    Expression,
}

impl Kind {
    pub(super) fn of(wanted: &Wanted) -> Self {
        match wanted {
            Wanted::Required { .. } => Self::Required,
            Wanted::Allowed { .. } => Self::Allowed,
            Wanted::Immutable { .. } => Self::Immutable,
            Wanted::Dependency(_) => Self::Dependency,
            Wanted::Naming(_) => Self::Naming,
            Wanted::Expression(_) => Self::Expression,
        }
    }
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Policy and entry.
    pub by: RuleId,
    /// What the entry asks for.
    pub mode: EntryMode,
    /// What it is about.
    pub kind: Kind,
    /// Which part of the node.
    pub field: Field,
    /// The key, with the effect of a taint; empty where the node as a whole is meant.
    pub key: String,
    /// What was done to it.
    pub operation: ChangeOperation,
    /// The break-glass group or user that overrides it, if any.
    pub overridden_by: Option<String>,
    /// What is wrong.
    pub what: String,
    /// What is wrong, by which rule, and who may do it.
    pub message: String,
    /// How to override it, where that is possible.
    pub way: Option<String>,
}

impl Violation {
    /// What came of a demand.
    pub(super) fn of(
        demand: &Demand,
        finding: Finding,
        operation: ChangeOperation,
        overridden_by: Option<String>,
        way: String,
    ) -> Self {
        let entry = &demand.entry;
        let except = entry.except.describe();
        let except = if except.is_empty() { String::new() } else { format!("; not asked of {}", except.join("; ")) };
        Self {
            by: entry.id.clone(),
            mode: entry.mode,
            kind: Kind::of(&demand.what),
            field: finding.field,
            key: finding.key,
            operation,
            overridden_by,
            message: format!("{} (policy {}, rule {}{except})", finding.what, entry.id.policy, entry.id.rule),
            what: finding.what,
            way: Some(way),
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

/// What governance says of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Every violation, the most important first.
    pub violations: Vec<Violation>,
    /// Entries whose expression has no answer for this write, with the reason. They deny nothing.
    pub unknown: Vec<(RuleId, String)>,
    /// An entry whose expression would take too long, with the reason: then there is no verdict.
    pub too_costly: Option<(RuleId, String)>,
}

/// So many violations are told one by one.
const TOLD_MAX: usize = 10;

impl Verdict {
    /// The denial's text, or `None` when the write is allowed.
    pub fn denial(&self) -> Option<String> {
        let denials: Vec<&Violation> = self.violations.iter().filter(|violation| violation.denies()).collect();
        let told = denials.iter().take(TOLD_MAX);
        let mut text = match denials.as_slice() {
            [] => return None,
            [one] => one.message.clone(),
            several => {
                let numbered =
                    told.clone().zip(1..).map(|(violation, number)| format!("({number}) {}", violation.message));
                let mut text = format!("{} violations: {}", several.len(), numbered.collect::<Vec<_>>().join("; "));
                if several.len() > TOLD_MAX {
                    text.push_str(&format!("; and {} more", several.len() - TOLD_MAX));
                }
                text
            }
        };
        let mut ways: Vec<&str> = Vec::new();
        for way in told.filter_map(|violation| violation.way.as_deref()) {
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        for way in ways {
            text.push_str("; ");
            text.push_str(way);
        }
        Some(text)
    }
}
