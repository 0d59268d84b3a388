//! What `judge` does with expressions that cost too much or fail.

use nodegate_policy::simulate::{Scene, compile_inline, simulate};
use nodegate_policy::{Exemptions, Verdict};
use serde_json::{Value as Json, json};

/// The verdict on a label that `user` adds, with one expression.
fn verdict(expression: &str, mode: &str, user: &str) -> Verdict {
    let set = compile_inline(&json!({"governance": {
        "expressions": [{"name": "e", "expression": expression, "mode": mode}],
        "breakGlass": {"users": ["oncall"]},
    }}));
    let node = |labels: Json| json!({"metadata": {"name": "n", "uid": "u", "labels": labels}});
    let scene = Scene {
        node: node(json!({"a": "b"})),
        old: Some(node(json!({}))),
        status: false,
        username: user.to_owned(),
        groups: Vec::new(),
        saved: None,
        pending_taint: None,
    };
    simulate(&set.unwrap(), &scene, &Exemptions::default()).unwrap().verdict
}

#[test]
fn an_entry_that_costs_too_much_prevents_a_verdict_only_if_it_could_deny_the_write() {
    let costly =
        "object.metadata.labels.size() >= 0 && lists.range(100000).all(x, lists.range(100000).all(y, x != y + 100000))";
    let of = |mode, user| {
        let verdict = verdict(costly, mode, user);
        (verdict.too_costly.is_some(), verdict.unknown.len(), verdict.violations.len())
    };
    assert_eq!(of("enforce", "alice"), (true, 0, 0));
    assert_eq!(of("warn", "alice"), (false, 1, 0), "it could only warn");
    assert_eq!(of("audit", "alice"), (false, 1, 0));
    assert_eq!(of("enforce", "oncall"), (false, 1, 0), "it is overridden");
}

#[test]
fn an_entry_that_fails_denies_nothing_and_is_reported_once() {
    let failing = verdict("object.metadata.annotations['x'] == 'y'", "enforce", "alice");
    assert_eq!((failing.too_costly, failing.unknown.len(), failing.violations.len()), (None, 1, 0));
    let denied = verdict("!('a' in object.metadata.labels)", "enforce", "alice");
    assert!(denied.denial().is_some() && denied.unknown.is_empty());
    let overridden = verdict("!('a' in object.metadata.labels)", "enforce", "oncall");
    assert_eq!((overridden.denial(), overridden.violations.len()), (None, 1));
}
