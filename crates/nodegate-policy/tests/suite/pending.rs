//! The pending taint is nodegate's own, whatever key it has: no rule matches it.

use nodegate_policy::api::names::{TaintEffect, TaintId};
use nodegate_policy::simulate::{Scene, compile_inline, simulate};
use nodegate_policy::{Exemptions, PolicySet};
use serde_json::json;

fn set() -> PolicySet {
    compile_inline(&json!({"rules": [
        {"name": "tainted", "match": {"taints": ["example.com/wait"]}, "labels": {"tainted": "true"}},
    ]}))
    .unwrap()
}

/// The label of the rule on a node that is created with a taint, if `pending` is the pending taint.
fn label(taint: &str, pending: &str) -> Option<String> {
    let (key, effect) = taint.split_once(':').unwrap();
    let scene = Scene {
        inventory: Default::default(),
        node: json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": key, "effect": effect}]}}),
        old: None,
        status: false,
        username: "admin".to_owned(),
        groups: Vec::new(),
        saved: None,
        pending_taint: Some(TaintId { key: pending.parse().unwrap(), effect: TaintEffect::NoSchedule }),
    };
    let simulated = simulate(&set(), &scene, &Exemptions::default()).unwrap();
    simulated.decision.labels.get("tainted").map(|desired| desired.value.clone())
}

#[test]
fn rules_do_not_match_a_pending_taint_with_a_key_of_its_own() {
    assert_eq!(label("example.com/wait:NoSchedule", "example.com/wait"), None);
    assert_eq!(label("example.com/wait:NoSchedule", "nodegate.dev/pending").as_deref(), Some("true"));
    assert_eq!(label("example.com/wait:NoExecute", "example.com/wait").as_deref(), Some("true"), "another effect");
}
