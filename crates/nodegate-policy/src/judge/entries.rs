//! Which entries of governance a write violates: findings that it causes, and that its requester answers for.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance must be handled here")]

use super::break_glass::BreakGlass;
use super::findings::{Finding, KnownFindings};
use super::parts::Part;
use super::snapshot::NodeSnapshot;
use super::unevaluated::Unevaluated;
use super::{Judge, Violation, changes, expressions, findings};
use crate::api::policy::{ChangeOperation, EntryMode};
use crate::set::governance::{Constraint, ConstraintEntry, Entry, ExpressionConstraint, JudgedBy};

impl<'a> Judge<'a, '_> {
    /// Whether an entry applies to this write.
    pub(super) fn is_judged_by(&self, constraint_entry: &ConstraintEntry) -> bool {
        let (entry, constraint) = (&constraint_entry.entry, &constraint_entry.constraint);
        // If the entry applies to every node, only changed keys can matter.
        let elsewhere =
            self.old.is_some() && entry.matcher.is_every_node() && !findings::touches(constraint, &self.changes);
        if elsewhere || entry.except.contain(&self.write.requester) {
            return false;
        }
        match constraint.judged() {
            JudgedBy::Changes { .. } => self.is_about_node(entry),
            JudgedBy::State | JudgedBy::Expression(_) => self.will_match(entry),
        }
    }

    /// The violations of an entry that applies, by keys of `part`; those of the node as a whole are in the first part.
    pub(super) fn entry_violations(&self, constraint_entry: &'a ConstraintEntry, part: Part<'a>) -> Vec<Violation> {
        let (entry, constraint) = (&constraint_entry.entry, &constraint_entry.constraint);
        if !part.is_first() && !findings::is_about_many_keys(constraint) {
            return Vec::new();
        }
        let judged = constraint.judged();
        let mut found = match judged {
            JudgedBy::Changes { keys, of } => findings::frozen(keys, of, &self.changes, part),
            JudgedBy::State => self.fresh(entry, constraint, part),
            JudgedBy::Expression(constraint) => self.expression(entry, constraint),
        };
        let operation = |finding: &Finding| self.operation(constraint_entry, finding);
        found.retain(|finding| operation(finding).is_some());
        if found.is_empty() {
            return Vec::new();
        }
        // Keep only what the requester's own part of the write also violates.
        let requested = self.requested();
        let held = match judged {
            JudgedBy::Changes { keys, of } => findings::frozen(keys, of, &requested.changes, part),
            JudgedBy::State => findings::findings(constraint, &requested.snapshot, part),
            JudgedBy::Expression(constraint) => self.evaluate(entry, constraint, &requested.snapshot),
        };
        let held = KnownFindings::of(&held);
        found.retain(|finding| held.has(finding));
        // If the entry applies only because of what nodegate sets, only the requester's own changes count.
        let may_become_one = match judged {
            JudgedBy::Changes { .. } => false,
            JudgedBy::State | JudgedBy::Expression(_) => true,
        };
        if may_become_one && !self.requested_matches(entry) {
            found.retain(|finding| findings::is_named(constraint, finding, &requested.changes));
        }
        let (break_glass, requester) = (self.break_glass(), &self.write.requester);
        let violation = |finding: Finding| {
            let operation = operation(&finding)?;
            Some(Violation::of(
                constraint_entry,
                finding,
                operation,
                break_glass.overridden_by(entry.document, requester),
                break_glass.override_hint(entry.document),
            ))
        };
        found.into_iter().filter_map(violation).collect()
    }

    pub(super) fn break_glass(&self) -> BreakGlass<'_> {
        BreakGlass { governance: self.set.governance(), exemptions: self.exemptions }
    }

    /// Findings that the write causes or makes worse.
    fn fresh(&self, entry: &Entry, constraint: &Constraint, part: Part<'_>) -> Vec<Finding> {
        let mut found = findings::findings(constraint, &self.new, part);
        if let Some(old) = self.old.as_ref().filter(|old| !found.is_empty() && old.matches(&entry.matcher)) {
            let before = findings::findings(constraint, old, part);
            let before = KnownFindings::of(&before);
            found.retain(|finding| !before.has_same_or_worse(finding));
        }
        found
    }

    /// The operation that a finding is reported with: of a change that is related to it and that the entry judges.
    fn operation(&self, constraint_entry: &ConstraintEntry, finding: &Finding) -> Option<ChangeOperation> {
        let one = findings::is_about_one_key(&constraint_entry.constraint);
        let exact = finding.place().filter(|_| one).and_then(|place| changes::at(&self.changes, place));
        let others = self
            .changes
            .iter()
            .filter(|change| !one && findings::concerns(&constraint_entry.constraint, finding, change));
        let operations = || exact.into_iter().chain(others.clone()).map(|change| change.operation);
        match operations().next() {
            Some(_) => operations().find(|operation| constraint_entry.entry.is_about(*operation)),
            // The node is created without the key, or the entry now applies to it.
            None => {
                let made = if self.old.is_none() { ChangeOperation::Add } else { ChangeOperation::Change };
                constraint_entry.entry.is_about(made).then_some(made)
            }
        }
    }

    /// The findings of an expression; none if it was already false before the write.
    fn expression(&self, entry: &Entry, constraint: &ExpressionConstraint) -> Vec<Finding> {
        let found = self.evaluate(entry, constraint, &self.new);
        let before = self.old.as_ref().filter(|_| !found.is_empty() && !constraint.expression.reads().old_object);
        match before {
            Some(old) if old.matches(&entry.matcher) && expressions::is_false(constraint, &self.input(old, None)) => {
                Vec::new()
            }
            _ => found,
        }
    }

    fn evaluate(&self, entry: &Entry, constraint: &ExpressionConstraint, snapshot: &NodeSnapshot<'a>) -> Vec<Finding> {
        expressions::findings(constraint, &self.input(snapshot, self.old.as_ref())).unwrap_or_else(|why| {
            let mut unevaluated = self.unevaluated.borrow_mut();
            match why {
                Unevaluated::TooCostly(reason) if self.is_binding(entry) => {
                    unevaluated.too_costly = Some((entry.id.clone(), reason));
                }
                Unevaluated::TooCostly(reason) | Unevaluated::Unknown(reason) => {
                    if !unevaluated.unknown.iter().any(|(rule, _)| *rule == entry.id) {
                        unevaluated.unknown.push((entry.id.clone(), reason));
                    }
                }
            }
            Vec::new()
        })
    }

    /// Whether an entry could deny this write.
    fn is_binding(&self, entry: &Entry) -> bool {
        let requester = &self.write.requester;
        entry.mode == EntryMode::Enforce && self.break_glass().overridden_by(entry.document, requester).is_none()
    }

    fn input<'s>(
        &'s self,
        new: &'s NodeSnapshot<'a>,
        old: Option<&'s NodeSnapshot<'a>>,
    ) -> expressions::EvaluationInput<'s, 'a, 'a> {
        expressions::EvaluationInput { new, old, request: &self.request }
    }
}
