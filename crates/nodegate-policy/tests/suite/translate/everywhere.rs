//! Translations, and what Kyverno and NFD do themselves, compared on every node of a small world.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{given, kyverno, nfd};

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

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
fn a_translation_sets_labels_on_the_same_nodes_as_kyverno() {
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
            let translation = kyverno::of(&[&[&format!("match: {}", json!({"any": of_nodes})), kyverno::LABEL]]);
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

/// What NFD says of an expression (`evaluateMatchExpression` in `pkg/apis/nfd/nodefeaturerule`); `None` if that is an error.
fn holds(expression: &Value, value: Option<&str>) -> Option<bool> {
    let Some(value) = value else { return Some(false) };
    let values: Vec<&str> = expression["value"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let bound = |at: usize| values[at].parse::<i64>().unwrap();
    let number = value.parse::<i64>().ok();
    match expression["op"].as_str().unwrap() {
        "Exists" => Some(true),
        "In" => Some(values.contains(&value)),
        "NotIn" => Some(!values.contains(&value)),
        "Gt" => Some(number? > bound(0)),
        "Lt" => Some(number? < bound(0)),
        "GtLt" => Some((bound(0) + 1..bound(1)).contains(&number?)),
        op => panic!("{op}"),
    }
}

/// Whether all terms of `matchFeatures` hold (`evaluateFeatureMatcher`). The first one that does not, or is an error, decides.
fn all_hold(part: &Value, features: &Value) -> Option<bool> {
    for term in list(&part["matchFeatures"]) {
        let Some(elements) = features.get(term["feature"].as_str().unwrap().to_ascii_lowercase()) else {
            return Some(false);
        };
        for (element, expression) in term["matchExpressions"].as_object().unwrap() {
            if !holds(expression, elements.get(element).and_then(Value::as_str))? {
                return Some(false);
            }
        }
    }
    Some(true)
}

/// Whether a rule matches a node with these features (`Execute`). The first item of `matchAny` that holds, or is an error, decides.
fn matches(rule: &Value, features: &Value) -> Option<bool> {
    let any = list(&rule["matchAny"]);
    let mut is_matched = any.is_empty();
    for item in &any {
        if all_hold(item, features)? {
            is_matched = true;
            break;
        }
    }
    Some(is_matched && all_hold(rule, features)?)
}

/// The features of nodes, by name. On the last one, no worker runs.
fn machines() -> Vec<(&'static str, Value)> {
    let ubuntu = json!({"ID": "ubuntu", "VERSION_ID": "22.04", "VERSION_ID.major": "22", "VERSION_ID.minor": "04"});
    let debian = json!({"ID": "debian", "VERSION_ID": "12", "VERSION_ID.major": "12"});
    let machine = |name: &'static str, kernel: Value, system: &Value| {
        let name_of = json!({"nodename": name});
        (name, json!({"kernel.version": kernel, "system.osrelease": system, "system.name": name_of}))
    };
    let kernel = |full: &str, major: &str, minor: &str, revision: &str| json!({"full": full, "major": major, "minor": minor, "revision": revision});
    vec![
        machine("a-1", kernel("6.8.0-45-generic", "6", "8", "0"), &ubuntu),
        machine("a-2", kernel("6.1.90", "6", "1", "90"), &debian),
        machine("b-1", kernel("7-rc1", "7", "", ""), &debian),
        machine("b-2", kernel("7-rc1", "7", "", ""), &ubuntu),
        machine("c-1", json!({"full": "custom"}), &json!({"ID": "nixos"})),
        ("d-1", json!({})),
    ]
}

/// The labels that nfd-worker publishes of features (`source/kernel`, `source/system`).
fn published(features: &Value) -> BTreeMap<String, Value> {
    let parts = [("kernel.version", "kernel-version."), ("system.osrelease", "system-os_release.")];
    let elements = parts.iter().flat_map(|(feature, prefix)| {
        let elements = features.get(feature).and_then(Value::as_object).into_iter().flatten();
        elements.map(move |(element, value)| (format!("feature.node.kubernetes.io/{prefix}{element}"), value.clone()))
    });
    elements.collect()
}

#[test]
fn a_translation_sets_labels_on_the_same_nodes_as_nfd() {
    let term = |feature: &str, element: &str, op: &str, value: &[&str]| {
        let expression = if value.is_empty() { json!({"op": op}) } else { json!({"op": op, "value": value}) };
        json!({"feature": feature, "matchExpressions": {element: expression}})
    };
    let items = [
        vec![term("kernel.version", "major", "In", &["6"])],
        vec![term("kernel.version", "minor", "Gt", &["1"])],
        vec![term("Kernel.Version", "minor", "GtLt", &["0", "8"])],
        vec![term("kernel.version", "revision", "Exists", &[]), term("system.osrelease", "ID", "NotIn", &["ubuntu"])],
        vec![term("kernel.version", "full", "NotIn", &["7-rc1"])],
        vec![term("system.osrelease", "ID", "In", &["ubuntu", "nixos"])],
        vec![term("system.osrelease", "VERSION_ID.minor", "Lt", &["5"])],
        vec![term("system.name", "nodename", "In", &["a-1", "d-1"])],
    ];
    let mut rules = vec![json!({})];
    for one in &items {
        rules.push(json!({"matchFeatures": one}));
        for other in &items {
            let any = json!([{"matchFeatures": one}, {"matchFeatures": other}]);
            rules.push(json!({"matchAny": any}));
            rules.push(json!({"matchAny": any, "matchFeatures": items[4]}));
        }
    }
    let (mut counts, mut left_out) = ([0, 0], 0);
    for rule in &rules {
        let parts: Vec<String> =
            rule.as_object().unwrap().iter().map(|(key, value)| format!("{key}: {value}")).collect();
        let mut parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        parts.push(nfd::LABEL);
        let translation = nfd::of(&[&parts]);
        if !translation.left_out.is_empty() {
            // The minor version may be empty.
            assert!(rule["matchAny"][0]["matchFeatures"].to_string().contains("\"minor\""), "{rule}");
            left_out += 1;
            continue;
        }
        for (name, features) in machines() {
            let matched = matches(rule, &features) == Some(true);
            counts[usize::from(matched)] += 1;
            let expect = if matched { json!({"labels": {"vendor.io/new": "true"}}) } else { json!({"patch": false}) };
            let differences = given(&translation, &json!({"name": name, "labels": published(&features)}), &expect);
            assert!(differences.is_empty(), "{rule} {name}: {differences:?}");
        }
    }
    assert!(counts.iter().all(|count| *count > 200) && left_out == 32, "{counts:?} {left_out}");
}
