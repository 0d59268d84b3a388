//! A translation of Kyverno's `match` and what Kyverno does, compared on every node of a small world.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::given;
use super::kyverno::{LABEL, of};

/// Whether a name fits a pattern of Kyverno: `*` is any text, `?` one character.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.first(), name.first()) {
        (None, None) => true,
        (Some(b'*'), _) => fits(&pattern[1..], name) || (!name.is_empty() && fits(pattern, &name[1..])),
        (Some(b'?'), Some(_)) => fits(&pattern[1..], &name[1..]),
        (Some(one), Some(other)) => one == other && fits(&pattern[1..], &name[1..]),
        _ => false,
    }
}

/// Whether a node fits an item of `match`, as Kyverno and Kubernetes' selectors define it.
fn selects(resources: &Value, node: &Value) -> bool {
    let name = node["name"].as_str().unwrap().as_bytes();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let names = [list(&resources["names"]), resources.get("name").cloned().into_iter().collect()].concat();
    let by_name = names.is_empty() || names.iter().any(|one| fits(one.as_str().unwrap().as_bytes(), name));
    let labels = resources["selector"]["matchLabels"].as_object().cloned().unwrap_or_default();
    let label = |key: &str| node["labels"].get(key);
    by_name
        && labels.iter().all(|(key, value)| label(key) == Some(value))
        && list(&resources["selector"]["matchExpressions"]).iter().all(|of| {
            let (value, values) = (label(of["key"].as_str().unwrap()), list(&of["values"]));
            match of["operator"].as_str().unwrap() {
                "In" => value.is_some_and(|value| values.contains(value)),
                "NotIn" => value.is_none_or(|value| !values.contains(value)),
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
}

#[test]
fn a_translation_sets_labels_on_the_same_nodes_as_the_original() {
    let items = [
        json!({}),
        json!({"name": "a-1"}),
        json!({"names": ["a-?", "b-1"]}),
        json!({"names": ["*-1"]}),
        json!({"selector": {"matchLabels": {"k": "x"}}}),
        json!({"selector": {"matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}]}}),
        json!({"selector": {"matchExpressions": [{"key": "k", "operator": "NotIn", "values": ["x"]}]}}),
        json!({"selector": {"matchExpressions": [{"key": "l", "operator": "Exists"}]}}),
        json!({"selector": {"matchExpressions": [{"key": "k", "operator": "DoesNotExist"}]}}),
        json!({"names": ["a*"], "selector": {"matchLabels": {"k": "y"}, "matchExpressions": [{"key": "l", "operator": "Exists"}]}}),
    ];
    let mut nodes = Vec::new();
    for name in ["a-1", "a-12", "b-1", "c"] {
        for k in [None, Some("x"), Some("y"), Some("z")] {
            for l in [None, Some("x")] {
                let labels = [("k", k), ("l", l)].into_iter().filter_map(|(key, value)| Some((key, value?)));
                nodes.push(json!({"name": name, "labels": labels.collect::<BTreeMap<_, _>>()}));
            }
        }
    }
    let mut counts = [0, 0];
    for one in &items {
        for other in &items {
            let of_nodes = [one, other].map(|item| {
                let mut item = item.clone();
                item["kinds"] = json!(["Node"]);
                json!({"resources": item})
            });
            let translation = of(&[&[&format!("match: {}", json!({"any": of_nodes})), LABEL]]);
            assert_eq!(translation.left_out, [], "{of_nodes:?}");
            for node in &nodes {
                let selected = selects(one, node) || selects(other, node);
                counts[usize::from(selected)] += 1;
                let expect = if selected { json!({"labels": {"tier": "gpu"}}) } else { json!({"patch": false}) };
                let differences = given(&translation, node, &expect);
                assert!(differences.is_empty(), "{of_nodes:?} {node}: {differences:?}");
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
}
