//! The part of the policies that the API server can evaluate by itself, as native admission policies
//! (`admissionregistration.k8s.io/v1`), so that static rules are enforced while nodegate is down.
//!
//! # Guarantees
//! - Exported rules and entries have the same results as [`decide`](crate::decide) and [`judge`](crate::judge) without saved state.
//! - Rules and entries that cannot be exported, and those that depend on them, are listed with the reason.
//! - Native policies do not change the results of the webhooks, except for the differences in `docs/reference/native-policies.md`.

mod fence;
mod guard;
mod mutating;
mod objects;
mod terms;
mod verdicts;

use serde_json::Value as Json;

use crate::set::PolicySet;
use crate::set::rule::RuleId;
use terms::selection::Selection;

pub use fence::{FenceOptions, fence, static_fence};
pub use guard::{GuardOptions, MutatingVersion, Parameters, evidence_policy, guard, guard_parameters};
pub use objects::{FailurePolicy, LeftOut, NativeOptions};
pub use terms::request::{CAN_MATTER, KUBELET, control_plane};

/// Native policies, and what is not exported.
#[derive(Clone, Debug, Default)]
pub struct Native {
    /// Policies and their bindings, as objects to apply.
    pub objects: Vec<Json>,
    /// What is not exported, sorted.
    pub left_out: Vec<LeftOut>,
    /// Rules and entries that are exported completely, sorted.
    pub held: Vec<RuleId>,
}

/// Exports a set.
pub fn export(set: &PolicySet, options: &NativeOptions) -> Native {
    let selection = Selection::of(set);
    let mut left_out = selection.left_out();
    let waits = "only the controller removes the pending taint";
    left_out.extend(set.gates().iter().map(|gate| LeftOut::of(&gate.id, "", waits)));
    let mut objects = mutating::policies(&selection, options);
    objects.extend(verdicts::validating::policies(&selection, options, &mut left_out));
    left_out.sort();
    left_out.dedup();
    let held = held(set, &left_out);
    Native { objects, left_out, held }
}

/// The rules and entries that are exported completely.
fn held(set: &PolicySet, left_out: &[LeftOut]) -> Vec<RuleId> {
    let rules = set.rules().iter().map(|rule| &rule.id);
    let is_left_out = |id: &RuleId| {
        let is_of =
            |what: &str| what.strip_prefix(&*id.rule).is_some_and(|rest| rest.is_empty() || rest.starts_with(": "));
        left_out.iter().any(|one| one.policy == *id.policy && is_of(&one.what))
    };
    let mut held: Vec<RuleId> = rules.chain(set.governance().ids()).filter(|id| !is_left_out(id)).cloned().collect();
    held.sort();
    held.dedup();
    held
}
