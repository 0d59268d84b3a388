//! The part of the policies that the API server can evaluate by itself, as native admission policies
//! (`admissionregistration.k8s.io/v1`), so that static rules are enforced while nodegate is down.
//!
//! # Guarantees
//! - Exported rules and entries have the same results as [`decide`](crate::decide) and [`judge`](crate::judge) without saved state.
//! - Rules and entries that cannot be exported, and those that depend on them, are listed with the reason.
//! - Native policies do not change the results of the webhooks, except for the differences in `docs/reference/native-policies.md`.

mod constraints;
mod dependencies;
mod entry;
mod expressions;
mod fence;
mod formula;
mod guard;
mod matching;
mod mutating;
mod naming;
mod node_info;
mod ranges;
mod re2;
mod request;
mod reserved;
mod selection;
mod validating;
mod variables;

use serde_json::{Value as Json, json};

use crate::set::PolicySet;
use crate::set::rule::RuleId;
use selection::Selection;

pub use fence::{FenceOptions, fence};
pub use guard::{GuardOptions, MutatingVersion, guard, guard_parameters};
pub use request::{CAN_MATTER, KUBELET};

/// The variable with the labels of the object under review.
const LABELS: &str = "variables.labels";
/// The variable with its taints.
const TAINTS: &str = "variables.taints";

/// The options of an export.
#[derive(Clone, Debug, Default)]
pub struct NativeOptions {
    /// The name of the objects, and the prefix of their names.
    pub name: String,
    /// Groups that may override every policy.
    pub break_glass_groups: Vec<String>,
    /// nodegate's own user name in the cluster.
    pub self_user: Option<String>,
    /// The failure policy of the validating policies.
    pub failure_policy: FailurePolicy,
}

/// What the API server does with a write if a validation cannot be evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub enum FailurePolicy {
    /// The write passes.
    #[default]
    Ignore,
    /// The write is refused.
    Fail,
}

/// A rule, entry or section that is not exported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct LeftOut {
    /// The policy.
    pub policy: String,
    /// The rule, entry or section, and the key if only one key is concerned.
    pub what: String,
    /// The reason.
    pub reason: String,
}

impl LeftOut {
    fn of(id: &RuleId, part: &str, reason: impl Into<String>) -> Self {
        let what = if part.is_empty() { id.rule.to_string() } else { format!("{}: {part}", id.rule) };
        Self { policy: id.policy.to_string(), what, reason: reason.into() }
    }
}

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
    let mut objects = mutating::policies(&selection, options);
    objects.extend(validating::policies(&selection, options, &mut left_out));
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

/// A policy and its binding.
fn with_binding(kind: &str, name: &str, spec: Json, actions: Option<&str>) -> [Json; 2] {
    let object = |kind: String, spec: Json| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "nodegate"}}, "spec": spec,
        })
    };
    let mut binding = json!({"policyName": name});
    if let Some(action) = actions {
        binding["validationActions"] = json!([action]);
    }
    [object(kind.to_owned(), spec), object(format!("{kind}Binding"), binding)]
}

/// The match constraints of a policy.
fn match_constraints(resources: &[&str]) -> Json {
    json!({"resourceRules": [{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": resources, "scope": "Cluster",
    }]})
}

fn match_condition(name: &str, expression: impl Into<String>) -> Json {
    json!({"name": name, "expression": expression.into()})
}

/// The match condition that excludes nodegate's own writes.
fn not_self(options: &NativeOptions) -> Option<Json> {
    let user = options.self_user.as_deref()?;
    Some(match_condition("not-nodegate-itself", format!("request.userInfo.username != {}", formula::quote(user))))
}
