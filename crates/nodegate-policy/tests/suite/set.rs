//! What a compiled set tells about itself, and what does not compile together.

use std::time::Duration;

use nodegate_policy::simulate::compile_inline;
use nodegate_policy::{ANNOTATIONS_MAX, NodeFacts, Origin, PolicyDocument, PolicySet};
use serde_json::{Value as Json, json};

fn document(name: &str, spec: Json) -> PolicyDocument {
    PolicyDocument::new(name, Origin::Object, serde_json::from_value(spec).unwrap())
}

fn set(documents: &[(&str, Json)]) -> PolicySet {
    let documents: Vec<PolicyDocument> = documents.iter().map(|(name, spec)| document(name, spec.clone())).collect();
    PolicySet::compile(&documents).unwrap()
}

#[test]
fn a_set_names_its_policies_rules_and_people() {
    let set = set(&[
        (
            "b",
            json!({
                "rules": [
                    {"name": "trusting", "match": {"capacity": {"nvidia.com/gpu": ">=1"}}, "trustKubelet": true,
                     "labels": {"node-role.kubernetes.io/gpu": ""}},
                    {"name": "plain", "labels": {"a": "b"}},
                ],
                "governance": {"breakGlass": {"users": ["zoe", "adam"], "serviceAccounts": ["ops:repair"], "groups": ["sre"]}},
            }),
        ),
        ("a", json!({"presets": ["baseline"], "governance": {"breakGlass": {"groups": ["oncall"]}}})),
    ]);
    assert_eq!(set.policies().collect::<Vec<_>>(), ["a", "b", "preset:baseline"]);
    assert_eq!(set.documents().len(), 3);
    assert_eq!(set.trusting_rules().collect::<Vec<_>>(), ["b/trusting"]);
    assert_eq!(set.break_glass_people(), ["adam", "ops:repair", "zoe"]);
    assert_eq!(set.break_glass_groups(), ["oncall", "sre"]);
    assert!(set.rule_count() >= 2);
}

#[test]
fn what_nodes_wait_for_says_whether_it_is_a_place() {
    let set = set(&[(
        "a",
        json!({"gates": [{"name": "driver", "labels": ["gpu"]}], "topologies": [{"name": "fabric", "levels": ["block", "rack"]}]}),
    )]);
    let gates = set.gate_labels().map(|gate| (gate.id.to_string(), gate.labels.len(), gate.is_topology));
    let expected = [("a/gate:driver".to_owned(), 1, false), ("a/topology:fabric".to_owned(), 2, true)];
    assert_eq!(gates.collect::<Vec<_>>(), expected);
}

#[test]
fn the_longest_retention_of_all_persist_sections_holds() {
    let persist = |retention: &str| json!({"persist": {"labels": ["a.example/*"], "retention": retention}});
    assert_eq!(set(&[("a", json!({}))]).retention(), None, "nothing is saved");
    assert_eq!(set(&[("a", persist("24h"))]).retention(), Some(Duration::from_secs(86_400)));
    let both = set(&[("a", persist("24h")), ("b", persist("1h"))]);
    assert_eq!(both.retention(), Some(Duration::from_secs(86_400)));
    let default = set(&[("a", persist("24h")), ("b", json!({"persist": {"labels": ["a.example/*"]}}))]);
    assert_eq!(default.retention(), Some(Duration::from_secs(90 * 86_400)), "the default of one of them is longer");
    assert_eq!(default.without_retention().collect::<Vec<_>>(), ["b/persist"]);
}

#[test]
fn annotations_are_governed_where_an_entry_or_an_expression_is_about_them() {
    let governs = |governance: Json| set(&[("a", json!({"governance": governance}))]).governs_annotations();
    let required = |of: Json| json!({"required": [{"name": "owner", "keys": ["owner"], "of": of}]});
    assert!(governs(required(json!(["annotations"]))) && !governs(required(json!(["labels"]))));
    let reserved = |of: Json| json!({"reserved": [{"name": "owner", "keys": ["owner"], "of": of}]});
    assert!(governs(reserved(json!(["annotations"]))) && !governs(reserved(json!(["labels"]))));
    let expression = |text: &str| json!({"expressions": [{"name": "e", "expression": text}]});
    assert!(
        governs(expression("!('x' in object.metadata.annotations)"))
            && !governs(expression("!('x' in object.metadata.labels)"))
    );
    for whole in [
        "object.metadata == oldObject.metadata",
        "object == oldObject",
        "object.metadata[?'annotations'] == optional.none()",
    ] {
        assert!(governs(expression(whole)), "{whole}");
    }
    for other in
        ["object.metadata.labels['annotations'] == ''", "has(object.metadata) && object.spec == oldObject.spec"]
    {
        assert!(!governs(expression(other)), "{other}");
    }
    let asked = |condition: &str| json!({"required": [{"keys": ["a"], "match": {"expression": condition}}]});
    assert!(governs(asked("'x' in node.metadata.annotations")) && !governs(asked("'x' in node.metadata.labels")));
}

#[test]
fn a_set_has_expressions_if_a_rule_or_an_entry_has_one() {
    let has = |spec: Json| set(&[("a", spec)]).has_expressions();
    assert!(!has(
        json!({"rules": [{"name": "r", "labels": {"a": "b"}}], "governance": {"required": [{"keys": ["a"]}]}})
    ));
    assert!(has(json!({"rules": [{"name": "r", "match": {"expression": "true"}, "labels": {"a": "b"}}]})));
    assert!(has(json!({"governance": {"expressions": [{"expression": "'a' in object.metadata.labels"}]}})));
}

#[test]
fn dependencies_that_need_each_other_are_an_error_only_if_their_values_meet() {
    let compiled = |back: Json| {
        let there = json!({"name": "there", "when": {"a": "1"}, "require": {"b": "1"}});
        let mut back = back;
        back["name"] = json!("back");
        compile_inline(&json!({"governance": {"dependencies": [there, back]}}))
    };
    for (when, require, is_cycle) in
        [("1", "1", true), ("*", "1", true), ("1", "*", true), ("2", "1", false), ("1", "2", false)]
    {
        let errors = compiled(json!({"when": {"b": when}, "require": {"a": require}})).err();
        assert_eq!(errors.is_some(), is_cycle, "b={when} needs a={require}: {errors:?}");
    }
}

#[test]
fn two_policies_of_one_name_are_an_error_and_two_without_one_are_not() {
    let errors = PolicySet::compile(&[document("p", json!({})), document("p", json!({}))]).unwrap_err();
    assert!(matches!(errors.as_slice(), [error] if error.path.to_string() == "metadata.name"), "{errors:?}");
    PolicySet::compile(&[document("p", json!({})), document("q", json!({}))]).unwrap();
}

#[test]
fn all_policies_together_have_at_most_two_thousand_expressions() {
    let compiled = |rules: usize, entries: usize| {
        let rules: Vec<Json> = (0..rules)
            .map(|at| json!({"name": format!("r{at}"), "match": {"expression": "node.metadata.name == 'n'"}, "labels": {"a": "b"}}))
            .collect();
        let entries: Vec<Json> = (0..entries)
            .map(|at| json!({"name": format!("e{at}"), "expression": "object.metadata.name != 'x'"}))
            .collect();
        compile_inline(&json!({"rules": rules, "governance": {"expressions": entries}}))
    };
    assert!(compiled(1_999, 1).is_ok());
    let errors = compiled(1_999, 2).unwrap_err();
    assert!(matches!(errors.as_slice(), [error] if error.to_string().contains("2001 expressions")), "{errors:?}");
}

#[test]
fn the_annotations_of_a_rule_may_be_as_large_as_kubernetes_allows_and_no_larger() {
    let compiled = |size: usize| {
        let annotations = json!({"a": "x".repeat(size - 2), "b": ""});
        compile_inline(&json!({"rules": [{"name": "noted", "annotations": annotations}]}))
    };
    assert!(compiled(ANNOTATIONS_MAX).is_ok());
    let errors = compiled(ANNOTATIONS_MAX + 1).unwrap_err();
    assert!(matches!(errors.as_slice(), [error] if error.to_string().contains("larger than 256 KiB")), "{errors:?}");
}

#[test]
fn an_object_that_is_no_node_or_has_a_part_twice_is_an_error() {
    let fault = |text: &str| NodeFacts::parse(text).unwrap_err().to_string();
    assert!(fault("[]").contains("expected a Node"), "{}", fault("[]"));
    assert!(fault("{}").contains("missing field `metadata`"));
    for part in ["metadata", "spec", "status"] {
        let text = format!(r#"{{"metadata": {{}}, "spec": {{}}, "status": {{}}, "{part}": {{}}}}"#);
        assert!(fault(&text).contains(&format!("duplicate field `{part}`")), "{}", fault(&text));
    }
}

#[test]
fn readers_of_a_label_are_the_rules_and_entries_that_name_it() {
    let spec = json!({
        "migrations": [{"from": "tier", "to": "hardware.tier", "phase": "dualWrite"}],
        "rules": [
            {"name": "selects", "match": {"selector": {"matchLabels": {"tier": "a"}}}, "labels": {"x": "1"}},
            {"name": "computes", "labelExpressions": {"y": "node.metadata.labels['tier']"}},
            {"name": "other", "match": {"selector": {"matchLabels": {"hardware.tier": "a"}}}, "labels": {"z": "1"}},
        ],
        "persist": {"match": {"selector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}}, "labels": ["a"]},
        "governance": {
            "required": [{"name": "needs", "keys": ["owner"], "match": {"selector": {"matchLabels": {"tier": "a"}}}}],
            "expressions": [
                {"name": "quotes", "expression": "!('tier' in object.metadata.labels)"},
                {"name": "selects", "expression": "object.metadata.?labels.tier.orValue('') == ''"},
                {"name": "other", "expression": "!('hardware.tier' in object.metadata.labels)"},
            ],
        },
    });
    let set = set(&[("p", spec)]);
    let readers: Vec<String> = set.uses_of_label("tier").iter().map(|(id, _)| id.to_string()).collect();
    assert_eq!(readers, ["p/computes", "p/needs", "p/persist", "p/quotes", "p/selects"]);
}

#[test]
fn what_sets_saves_or_governs_a_label_uses_it_too() {
    let about = |key: &str| {
        json!({
            "rules": [
                {"name": "sets", "labels": {key: "a"}},
                {"name": "maps", "labelMap": {"keys": [key], "expression": "{'other': 'a'}"}},
            ],
            "inventory": [{"name": "cmdb", "url": "https://cmdb.internal/{node}", "allow": [key]}],
            "persist": {"labels": [key]},
            "governance": {
                "required": [{"name": "required", "keys": [key]}],
                "allowed": [{"name": "allowed", "key": key, "values": ["a"]}],
                "immutable": [{"name": "immutable", "keys": [key]}],
                "dependencies": [{"name": "depends", "when": {"x": "1"}, "require": {key: "*"}}],
                "naming": [{"name": "named", "keys": [key], "of": "value", "pattern": "lower-case"}],
                "reserved": [{"name": "reserved", "keys": [key], "of": ["labels"], "allow": {"users": ["a"]}}],
            },
        })
    };
    let migration = json!({"migrations": [{"from": "tier", "to": "new", "phase": "dualWrite"}]});
    let used = |specs: &[(&str, serde_json::Value)], key: &str| -> Vec<String> {
        set(specs).uses_of_label(key).iter().map(|(id, what)| format!("{id} {what:?}")).collect()
    };
    let all = [
        "p/allowed Governs",
        "p/depends Governs",
        "p/immutable Governs",
        "p/inventory:cmdb Sets",
        "p/maps Sets",
        "p/named Governs",
        "p/persist Persists",
        "p/required Governs",
        "p/reserved Governs",
        "p/sets Sets",
    ];
    assert_eq!(used(&[("p", about("tier")), ("m", migration.clone())], "tier"), all);
    assert_eq!(used(&[("p", about("other")), ("m", migration.clone())], "tier"), Vec::<String>::new());
    // Entries for both keys can stay, but not those that a node without the old key violates.
    let both = json!({
        "persist": {"labels": ["tier", "new"]},
        "governance": {
            "required": [{"name": "required", "keys": ["tier", "new"]}],
            "allowed": [{"name": "a", "key": "tier", "values": ["a"]}, {"name": "b", "key": "new", "values": ["a"]}],
            "immutable": [{"name": "immutable", "keys": ["tier", "new"]}],
            "reserved": [{"name": "reserved", "keys": ["tier", "new"], "of": ["labels"], "allow": {"users": ["a"]}}],
        },
    });
    assert_eq!(used(&[("p", both), ("m", migration)], "tier"), ["p/required Governs"]);
}

fn faults(spec: Json) -> Vec<String> {
    let Err(errors) = PolicySet::compile(&[document("hostile", spec)]) else { panic!("it has no errors") };
    errors.iter().map(ToString::to_string).collect()
}

/// Each of the rules names the same key, so that without bounds their dependencies are as many as the square of their number.
#[test]
fn dependencies_between_rules_and_entries_take_bounded_memory() {
    let each = |count: usize, of: &dyn Fn(usize) -> Json| (0..count).map(of).collect::<Json>();
    let matching = json!({"selector": {"matchLabels": {"a": "b"}}});
    let writer = |at| json!({"name": format!("w{at}"), "match": {"names": ["n"]}, "labels": {"a": "b"}});
    let reader = |at| json!({"name": format!("r{at}"), "match": matching.clone(), "labels": {"c": "d"}});
    let rules = |one: Json, other: Json| {
        [one, other].iter().flat_map(|list| list.as_array().unwrap().clone()).collect::<Json>()
    };
    // Many rules may set a key that many others read.
    set(&[("p", json!({"rules": rules(each(5_000, &writer), each(5_000, &reader))}))]);
    // Those that are not evaluated with their own values have an edge to each reader.
    let default = |at| json!({"name": format!("d{at}"), "mode": "default", "labels": {"a": "b"}});
    let found = faults(json!({"rules": rules(each(700, &default), each(700, &reader))}));
    assert!(found[0].contains("rules depend on each other in more than 400000 ways"), "{found:?}");
    let both = |at| json!({"name": format!("b{at}"), "match": matching.clone(), "labels": {"a": "b"}});
    assert_eq!(faults(json!({"rules": each(3_300, &both)})).len(), 1);
    let derived = |_| json!({"label": "a", "anyOf": ["a"]});
    set(&[("p", json!({"derived": each(8_300, &derived)}))]);
    let dependency = |_| json!({"when": {"a": "*"}, "require": {"a": "*"}});
    let found = faults(json!({"governance": {"dependencies": each(5_500, &dependency)}}));
    assert!(found[0].contains("refer to each other in too many ways"), "{found:?}");
}

/// A thread of `serve` has a small stack.
#[test]
fn a_long_chain_of_rules_needs_no_stack() {
    let rule = |at: usize| json!({"name": format!("r{at}"), "match": {"selector": {"matchLabels": {format!("k{at}"): "v"}}}, "labels": {format!("k{}", at + 1): "v"}});
    let spec = json!({"rules": (0..40_000).map(rule).collect::<Json>()});
    let compiling = std::thread::Builder::new().stack_size(512 << 10).spawn(move || set(&[("p", spec)]).rule_count());
    assert_eq!(compiling.unwrap().join().unwrap(), 40_000);
}

/// An error repeats the names of the policy and of the rule that it is in.
#[test]
fn long_names_are_refused_and_not_repeated_by_every_error() {
    let long = "x".repeat(1 << 17);
    let bad: serde_json::Map<String, Json> = (0..2_000).map(|at| (format!("-{at}"), json!("v"))).collect();
    let text = |name: &str, rule: &str| {
        json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": name},
            "spec": {"rules": [{"name": rule, "match": {"names": ["n"]}, "labels": bad}]}})
        .to_string()
    };
    for (name, rule) in [(long.as_str(), "r"), ("p", long.as_str())] {
        let mut errors = Vec::new();
        let documents = PolicyDocument::parse_all(&Origin::Object, &text(name, rule), &mut errors);
        errors.extend(PolicySet::compile(&documents).err().into_iter().flatten());
        let size: usize = errors.iter().map(|error| error.to_string().len()).sum();
        assert!(errors.len() >= 1_000 && size < 2 << 20, "{} errors of {size} bytes", errors.len());
    }
    let found = faults(json!({"rules": [{"name": long, "match": {"names": ["n"]}, "labels": {"a": "b"}}]}));
    assert!(found.iter().any(|error| error.contains("the name has 131072 bytes, but the limit is 253")));
    let entry = json!({"name": "x".repeat(254), "keys": ["a"]});
    let found = faults(json!({"governance": {"required": [entry]}}));
    assert!(found.iter().any(|error| error.contains("the name has 254 bytes")), "{found:?}");
}
