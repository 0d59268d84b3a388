//! Writes for what chance seldom draws: values that come nearer, and what a rule gives in the same write.

use serde_json::{Value, json};

/// Everything warns, so that each write is made whatever is said of it.
pub(super) fn policy() -> Value {
    json!({
        "rules": [{"name": "gives", "match": {"selector": {"matchExpressions": [{"key": "trigger", "operator": "Exists"}]}},
            "labels": {"given": "gold"}, "taints": [{"key": "given", "effect": "NoSchedule"}]}],
        "governance": {
            "naming": [{"name": "short", "mode": "warn", "keys": ["short"], "of": "value", "maxLength": 3},
                {"name": "lower", "mode": "warn", "keys": ["short"], "of": "value", "pattern": "lower-case", "maxLength": 5}],
            "allowed": [{"name": "between", "mode": "warn", "key": "number", "range": {"min": 10, "max": 20}}],
            "dependencies": [{"name": "needs", "mode": "warn", "when": {"given": "*"}, "require": {"other": "*"}, "requireTaints": ["x"]},
                {"name": "needs-no-taint-of-rule", "mode": "warn", "when": {"third": "*"}, "requireTaints": ["given:NoSchedule"]}],
            "expressions": [{"name": "without", "mode": "warn",
                "expression": r#"!("given" in object.metadata.labels) || "other" in object.metadata.labels"#},
                {"name": "untainted", "mode": "warn", "expression": r#"!object.spec.taints.exists(t, t.key == "given")"#}],
        },
    })
}

/// The node, and merge patches by an administrator.
pub(super) fn writes(name: &str) -> Vec<Value> {
    let mut writes =
        vec![json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"start": "x"}}})];
    let label = |key: &str, value: Value| json!({"metadata": {"labels": {key: value}}});
    for value in ["ABCDEFGH", "abcdefgh", "abcde", "abcdef", "ABC", "AB", "a"] {
        writes.push(label("short", json!(value)));
    }
    for value in [
        "40",
        "30",
        "35",
        "1",
        "x",
        "y",
        "2",
        "-",
        "21",
        "9",
        "0009",
        "15",
        "9223372036854775807",
        "9223372036854775808",
    ] {
        let value = if value == "-" { Value::Null } else { json!(value) };
        writes.push(label("number", value));
    }
    for (key, value) in [
        ("trigger", json!("x")),
        ("unrelated", json!("x")),
        ("third", json!("x")),
        ("trigger", Value::Null),
        ("given", json!("other")),
        ("given", Value::Null),
        ("given", json!("gold")),
        ("other", json!("x")),
        ("other", Value::Null),
        ("third", Value::Null),
        ("third", json!("y")),
    ] {
        writes.push(label(key, value));
    }
    writes.push(json!({"spec": {"taints": []}}));
    writes.push(json!({"spec": {"taints": [{"key": "given", "effect": "NoSchedule"}]}}));
    // A rule adds its taint to others, of which one is older than a second, and changes the value of one.
    let evicting = json!({"key": "x", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"});
    for given in [json!([]), json!([{"key": "given", "value": "other", "effect": "NoSchedule"}])] {
        let mut taints = vec![json!({"key": "before", "value": "v", "effect": "NoSchedule"}), evicting.clone()];
        taints.extend(given.as_array().unwrap().iter().cloned());
        writes.push(json!({"metadata": {"labels": {"trigger": null}}, "spec": {"taints": taints}}));
        writes.push(label("trigger", json!("x")));
    }
    writes
}
