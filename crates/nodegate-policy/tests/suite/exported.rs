//! Which rules native policies hold, why others are left out, and into how many policies rules are divided.

use std::collections::BTreeMap;

use nodegate_policy::native::{Native, NativeOptions, export};
use nodegate_policy::simulate::{Scene, compile_inline};
use serde_json::{Value as Json, json};

use crate::evaluation::Policy;
use crate::native::{desired, review};

fn exported(spec: &Json) -> Native {
    let options = NativeOptions { name: "p".to_owned(), ..NativeOptions::default() };
    export(&compile_inline(spec).unwrap(), &options)
}

/// What native policies set on a node that is created with these labels.
fn labels_set(native: &Native, labels: &Json) -> BTreeMap<String, String> {
    let node = json!({"metadata": {"name": "a", "labels": labels}});
    let (username, groups) = ("admin".to_owned(), Vec::new());
    let scene = Scene::of(node, username, groups);
    let [labels, ..] = desired(&Policy::all(&native.objects), &scene);
    labels
}

#[test]
fn what_is_left_out_is_listed_with_the_reason_and_not_set() {
    let native = exported(&json!({
        "rules": [
            {"name": "static", "match": {"names": ["a"]}, "labels": {"tier": "gold", "site": "x", "area": "1"}},
            {"name": "gpu", "match": {"gpu": {"vendor": "nvidia"}}, "labels": {"accelerator": "nvidia", "tier": "silver"}, "priority": 1},
            {"name": "reader", "match": {"selector": {"matchLabels": {"accelerator": "nvidia"}}}, "labels": {"fast": "true"}},
            {"name": "again", "match": {"selector": {"matchLabels": {"fast": "true"}}}, "labels": {"faster": "true"}},
            {"name": "known", "match": {"selector": {"matchLabels": {"area": "1"}}}, "labels": {"near": "true"}},
            {"name": "computed", "match": {"names": ["a"]}, "labels": {"kept": "1"}, "labelExpressions": {"size": "node.metadata.name"}},
            {"name": "mapped", "labelMap": {"keys": ["map.example/*"], "expression": "{'map.example/x': '1'}"}},
            {"name": "of-map", "match": {"selector": {"matchLabels": {"map.example/x": "1"}}}, "labels": {"of-map": "1"}},
            {"name": "any", "match": {"expression": "node.metadata.labels.exists(k, k == 'x')"}, "labels": {"some": "true"}},
            {"name": "on-tier", "match": {"expression": "node.metadata.labels['site'] == 'x'"}, "labels": {"sited": "true"}},
            {"name": "on-taints", "match": {"expression": "node.spec.taints.exists(t, t.key == 't')"}, "labels": {"tainted": "true"}},
            {"name": "on-gpu", "match": {"expression": "gpu.count > 0"}, "labels": {"counted": "true"}},
            {"name": "may-fail", "match": {"expression": "node.metadata.name == 'a'"}, "labels": {"safe": "true", "hardware.tier": "x", "site": "y"}, "priority": -1},
            {"name": "greatest", "match": {"expression": "math.greatest(1, 2) > 1"}, "labels": {"big": "true"}},
            {"name": "image", "match": {"osImage": ["Ubuntu 2?.04*"]}, "labels": {"imaged": "true"}},
            {"name": "taints", "match": {"names": ["none"]}, "taints": [{"key": "t", "effect": "NoSchedule"}]},
            {"name": "on-taint", "match": {"taints": ["t"]}, "labels": {"of-taint": "true"}},
        ],
        "protect": {"keys": ["hardware.tier"]},
        "governance": {"naming": [
            {"name": "words", "keys": ["word"], "regex": "[a-z]+"},
            {"name": "noted-key", "keys": ["word"], "in": ["annotations"], "of": "key", "regex": "[a-z]+"},
            {"name": "noted", "keys": ["word"], "in": ["annotations"], "of": "value", "regex": "[a-z]+"},
        ], "expressions": [
            {"name": "encoded", "expression": "base64.encode(bytes(object.metadata.name)) != 'YQ=='"},
            {"name": "encoded-message", "expression": "object.metadata.name != 'x'", "messageExpression": "base64.encode(bytes(object.metadata.name))"},
        ]},
    }));
    let listed: Vec<(String, String)> =
        native.left_out.iter().map(|one| (one.what.clone(), one.reason.clone())).collect();
    let computed = "the value is computed; nodegate drops an invalid label, but the API server would refuse the write";
    let cannot = |what: &str, rule: &str| {
        format!("reads label {what}, which rule test/{rule} may set, but the native policy cannot evaluate that rule")
    };
    let reads = |what: &str| format!("its expression reads {what}");
    let mut expected: Vec<(&str, String)> = vec![
        ("again", cannot("fast", "reader")),
        ("any", reads("labels by computed keys")),
        ("computed: label size", computed.to_owned()),
        ("encoded", "it calls a function that Kubernetes does not have".to_owned()),
        ("encoded-message", "it calls a function that Kubernetes does not have".to_owned()),
        ("greatest", "its expression calls math.greatest(), which Kubernetes does not have".to_owned()),
        ("gpu", "matches on GPU inference, which only nodegate has".to_owned()),
        ("image", "contains an osImage glob with ?, [...] or non-ASCII characters".to_owned()),
        ("mapped", computed.to_owned()),
        ("may-fail: label hardware.tier", "a protected label can only be set natively by rules whose conditions cannot fail, and this expression may fail".to_owned()),
        ("may-fail: label site", "rule test/static sets it as well, and this expression may fail".to_owned()),
        ("of-map", cannot("map.example/x", "mapped")),
        ("noted", "its regex may have another meaning in the API server's regular expressions (RE2)".to_owned()),
        ("on-gpu", reads("GPU inference, which only nodegate has")),
        ("on-taints", reads("taints, which rules set")),
        ("on-tier", reads("label site, which rules set or a kubelet may not assert")),
        ("reader", cannot("accelerator", "gpu")),
        ("static: label tier", "rule test/gpu, which is not exported, may set it with higher precedence".to_owned()),
    ];
    expected.sort();
    assert_eq!(listed, expected.into_iter().map(|(what, reason)| (what.to_owned(), reason)).collect::<Vec<_>>());
    let held: Vec<&str> = native.held.iter().map(|id| &*id.rule).collect();
    assert_eq!(held, ["known", "noted-key", "on-taint", "protect", "taints", "words"]);
    // Neither what is left out nor what depends on it, whatever the node has.
    let set = labels_set(
        &native,
        &json!({"accelerator": "nvidia", "x": "1", "nvidia.com/gpu.present": "true", "map.example/x": "1"}),
    );
    let keys: Vec<&str> = set.keys().map(String::as_str).collect();
    assert_eq!(keys, ["area", "kept", "near", "safe", "site"]);
}

#[test]
fn conditions_see_the_values_that_other_rules_set() {
    let matches = |operator: &str, values: Json| {
        let requirement = json!({"key": "pool", "operator": operator, "values": values});
        let native = exported(&json!({"rules": [
            {"name": "first", "match": {"names": ["a"]}, "labels": {"pool": "gold"}},
            {"name": "second", "match": {"selector": {"matchExpressions": [requirement]}}, "labels": {"out": "1"}},
        ]}));
        assert_eq!(native.left_out, []);
        labels_set(&native, &json!({"pool": "lead"})).contains_key("out")
    };
    for (operator, values, expected) in [
        ("In", json!(["gold"]), true),
        ("In", json!(["lead"]), false),
        ("NotIn", json!(["gold"]), false),
        ("NotIn", json!(["lead"]), true),
        ("Exists", json!([]), true),
        ("DoesNotExist", json!([]), false),
    ] {
        assert_eq!(matches(operator, values.clone()), expected, "{operator} {values}");
    }
}

#[test]
fn a_validation_has_a_message_even_if_its_expression_for_one_fails() {
    let native = exported(&json!({"governance": {"expressions": [{
        "name": "named", "expression": "object.metadata.name != 'x'", "messageExpression": "object.metadata.annotations['why']",
    }]}}));
    let messages: Vec<&str> = native
        .objects
        .iter()
        .flat_map(|object| object["spec"]["validations"].as_array().into_iter().flatten())
        .map(|validation| validation["message"].as_str().unwrap())
        .collect();
    let message = messages.last().unwrap();
    assert!(
        message.starts_with("nodegate: failed expression: object.metadata.name != 'x' (policy test, rule named);"),
        "{message}"
    );
}

/// The labels that each mutating policy may set.
fn parts(native: &Native) -> Vec<Vec<String>> {
    let keys = |object: &Json| -> Vec<String> {
        let variables = object["spec"]["variables"].as_array().unwrap();
        let desired = variables.iter().find(|variable| variable["name"] == "desiredLabels").unwrap();
        let desired = desired["expression"].as_str().unwrap();
        (0..500).map(|at| format!("k{at}")).filter(|key| desired.contains(&format!("?\"{key}-x\":"))).collect()
    };
    native.objects.iter().filter(|object| object["kind"] == "MutatingAdmissionPolicy").map(keys).collect()
}

#[test]
fn many_rules_are_divided_into_policies_and_rules_that_need_each_other_stay_together() {
    // Each rule but the last two is independent. The last reads what two others set, and the one before sets a key of another.
    let rules: Vec<Json> = (0..450)
        .map(|at| match at {
            449 => json!({"name": "last", "match": {"selector": {"matchLabels": {"k0-x": "1", "k300-x": "1"}}}, "labels": {"k449-x": "1"}}),
            448 => json!({"name": "same", "labels": {"k1-x": "2"}, "priority": -1}),
            at => json!({"name": format!("r{at}"), "match": {"names": [format!("n{at}")]}, "labels": {format!("k{at}-x"): "1"}}),
        })
        .collect();
    let native = exported(&json!({"rules": rules}));
    assert_eq!(native.left_out, []);
    let parts = parts(&native);
    assert_eq!(parts.len(), 3, "of at most 200 rules");
    let part_of = |key: &str| parts.iter().position(|part| part.iter().any(|there| there == key)).unwrap();
    assert_eq!((part_of("k0"), part_of("k300")), (part_of("k449"), part_of("k449")));
    assert_eq!(parts.iter().flatten().filter(|key| *key == "k1").count(), 1, "one policy decides between two rules");
    let names: Vec<&str> = native.objects.iter().filter_map(|object| object["spec"]["policyName"].as_str()).collect();
    assert!(["p", "p-1", "p-2"].iter().all(|name| names.contains(name)), "{names:?}");
}

#[test]
fn a_warning_about_broken_glass_says_who_overrides_what() {
    let native = exported(&json!({"governance": {
        "breakGlass": {"groups": ["oncall"]},
        "reserved": [{"name": "tiers", "keys": ["tier"], "allow": {"users": ["cmdb"]}}],
    }}));
    let node = json!({"metadata": {"name": "a", "labels": {"tier": "gold"}}});
    let scene = Scene::of(node.clone(), "alice".to_owned(), vec!["oncall".to_owned()]);
    let mut told = Vec::new();
    for policy in Policy::all(&native.objects).iter().filter(|policy| policy.action.is_some()) {
        let Some(evaluation) = policy.evaluated(review(&node, &scene)) else { continue };
        for validation in policy.object["spec"]["validations"].as_array().unwrap() {
            if evaluation.holds(validation["expression"].as_str().unwrap()) == Some(false) {
                let message = evaluation.value(validation["messageExpression"].as_str().unwrap()).unwrap();
                told.push((policy.action.clone().unwrap(), message.as_str().unwrap().to_owned()));
            }
        }
    }
    let [(action, message)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(action, "Warn");
    assert!(message.starts_with("nodegate: user alice overrides (break glass): "), "{message}");
    assert!(message.contains("tier") && message.contains("tiers"), "{message}");
}

#[test]
fn what_rules_give_to_protected_labels_and_only_to_these_is_known_where_writes_are_judged() {
    let spec =
        json!({"protect": {"keys": ["tier"]}, "rules": [{"name": "r", "labels": {"tier": "gold", "plain": "x"}}]});
    let native = exported(&spec);
    let judging = native.objects.iter().find(|object| object["kind"] == "ValidatingAdmissionPolicy").unwrap();
    let variables = judging["spec"]["variables"].as_array().unwrap();
    let desired =
        variables.iter().find(|variable| variable["name"] == "desiredLabels").unwrap()["expression"].to_string();
    assert!(desired.contains("gold") && !desired.contains("plain"), "{desired}");
}
