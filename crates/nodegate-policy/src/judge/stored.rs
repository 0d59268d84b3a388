//! The violations of a stored node.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance must be handled here")]

use super::Exemptions;
use super::break_glass::BreakGlass;
use super::expressions::{self, EvaluationInput, SharedRequest};
use super::findings;
use super::parts::Part;
use super::snapshot::NodeSnapshot;
use super::unevaluated::Unevaluated;
use super::verdict::{Verdict, Violation};
use crate::api::policy::ChangeOperation;
use crate::facts::NodeFacts;
use crate::facts::proof::evidence::Evidence;
use crate::facts::requester::Requester;
use crate::set::PolicySet;
use crate::set::governance::JudgedBy;

/// The violations of a stored node, whoever caused them.
///
/// Reserved and immutable keys, and expressions over `oldObject`, apply to writes only and are not evaluated. An entry counts if it would
/// judge the creation of such a node: one that is only about removals forbids no state.
pub fn violations(set: &PolicySet, node: &NodeFacts<'_>, evidence: Option<&Evidence<'_>>) -> Verdict {
    let snapshot = NodeSnapshot::new(set, node, evidence, None);
    let (requester, exemptions) = (Requester::default(), Exemptions::default());
    let request = SharedRequest::by(&requester);
    let break_glass = BreakGlass { governance: set.governance(), exemptions: &exemptions };
    let mut verdict = Verdict::default();
    for constraint_entry in set
        .governance()
        .constraints()
        .iter()
        .filter(|constraint_entry| constraint_entry.entry.is_about(ChangeOperation::Add))
        .filter(|constraint_entry| snapshot.matches(&constraint_entry.entry.matcher))
    {
        let found = match constraint_entry.constraint.judged() {
            JudgedBy::Changes { .. } => continue,
            JudgedBy::Expression(constraint) if constraint.expression.reads().old_object => continue,
            JudgedBy::Expression(constraint) => {
                let input = EvaluationInput { new: &snapshot, old: None, request: &request };
                expressions::findings(constraint, &input).unwrap_or_else(|why| {
                    let (Unevaluated::Unknown(reason) | Unevaluated::TooCostly(reason)) = why;
                    verdict.unknown.push((constraint_entry.entry.id.clone(), reason));
                    Vec::new()
                })
            }
            JudgedBy::State => findings::findings(&constraint_entry.constraint, &snapshot, Part::default()),
        };
        let override_hint = break_glass.override_hint(constraint_entry.entry.document);
        let violation =
            |finding| Violation::of(constraint_entry, finding, ChangeOperation::Add, None, override_hint.clone());
        verdict.violations.extend(found.into_iter().map(violation));
    }
    verdict.violations.sort_by(|a, b| a.importance().cmp(&b.importance()));
    verdict
}
