//! The objects of native policies: their options, conditions and bindings, and what is left out of them.

use serde_json::{Value as Json, json};

use crate::facts::pending_taints::PendingTaints;
use crate::native::terms::formula::quote;
use crate::set::rule::RuleId;

/// The variable with the labels of the object under review.
pub(in crate::native) const LABELS: &str = "variables.labels";
/// The variable with its taints.
pub(in crate::native) const TAINTS: &str = "variables.taints";
/// The variable with the taints that rules see: without pending taints.
pub(in crate::native) const RULE_TAINTS: &str = "variables.ruleTaints";

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
    /// The pending taints, which rules do not see.
    pub pending_taints: PendingTaints,
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
    pub(in crate::native) fn of(id: &RuleId, part: &str, reason: impl Into<String>) -> Self {
        let what = if part.is_empty() { id.rule.to_string() } else { format!("{}: {part}", id.rule) };
        Self { policy: id.policy.to_string(), what, reason: reason.into() }
    }
}

/// A policy and its binding.
pub(in crate::native) fn with_binding(kind: &str, name: &str, spec: Json, actions: Option<&str>) -> [Json; 2] {
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
pub(in crate::native) fn match_constraints(resources: &[&str]) -> Json {
    json!({"resourceRules": [{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": resources, "scope": "Cluster",
    }]})
}

/// Policies and bindings as static manifests of the API server, which requires this suffix of their names, and refuses it for all
/// others (`StaticConfigSuffix` in pkg/admission/plugin/manifest/validation.go).
pub(in crate::native) fn as_static_manifests(mut objects: Vec<Json>) -> Vec<Json> {
    for object in &mut objects {
        for field in ["/metadata/name", "/spec/policyName"] {
            if let Some(name) = object.pointer_mut(field) {
                *name = json!(format!("{}.static.k8s.io", name.as_str().unwrap_or_default()));
            }
        }
    }
    objects
}

pub(in crate::native) fn match_condition(name: &str, expression: impl Into<String>) -> Json {
    json!({"name": name, "expression": expression.into()})
}

/// The match condition that excludes nodegate's own writes.
pub(in crate::native) fn not_self(options: &NativeOptions) -> Option<Json> {
    let user = options.self_user.as_deref()?;
    Some(match_condition("not-nodegate-itself", format!("request.userInfo.username != {}", quote(user))))
}
