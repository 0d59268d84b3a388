//! What a node violates as it stands.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new kind of governance has to be thought of here")]

use super::Exemptions;
use super::demands;
use super::expressions::{self, Asked, Unanswered};
use super::glass::Glass;
use super::side::Side;
use super::verdict::{Verdict, Violation};
use crate::api::policy::ChangeOperation;
use crate::policy::facts::NodeFacts;
use crate::policy::governance::Judged;
use crate::policy::request::Requester;
use crate::policy::set::PolicySet;

/// What of all that is demanded a node lacks as it is, whoever made it so.
///
/// Who may write a key, what does not change, and expressions over `oldObject` are about writes: they are not looked at.
pub fn violations(set: &PolicySet, node: &NodeFacts<'_>) -> Verdict {
    let side = Side::new(set, node, None);
    let (requester, exemptions) = (Requester::default(), Exemptions::default());
    let glass = Glass { governance: set.governance(), exemptions: &exemptions };
    let mut verdict = Verdict::default();
    for demand in set.governance().demands().iter().filter(|demand| side.matches(&demand.entry.matcher)) {
        let found = match demand.what.judged() {
            Judged::Changes { .. } => continue,
            Judged::Expression(demanded) if demanded.expression.reads().old_object => continue,
            Judged::Expression(demanded) => {
                let asked = Asked { new: &side, old: None, requester: &requester, write: None };
                expressions::findings(demanded, &asked).unwrap_or_else(|why| {
                    let (Unanswered::Unknown(reason) | Unanswered::TooCostly(reason)) = why;
                    verdict.unknown.push((demand.entry.id.clone(), reason));
                    Vec::new()
                })
            }
            Judged::State => demands::findings(&demand.what, &side),
        };
        let way = glass.way(&demand.entry);
        let violation = |finding| Violation::of(demand, finding, ChangeOperation::Add, None, way.clone());
        verdict.violations.extend(found.into_iter().map(violation));
    }
    verdict.violations.sort_by(|a, b| a.importance().cmp(&b.importance()));
    verdict
}
