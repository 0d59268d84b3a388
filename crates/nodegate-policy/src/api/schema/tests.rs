//! What the check reports.
#![allow(clippy::unwrap_used)]

use super::check::MEANING;
use super::*;
use crate::api::source::{FieldPath, parse_documents};

#[test]
fn every_error_is_reported_and_the_rest_is_parsed() {
    let text = "
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: a}
spec:
  rulez: []
  rules:
    - name: one
      labels: {a: true}
      match: {names: yeezyai, capacty: {}}
    - labels: {b: \"x\"}
    - name: three
      mode: enforced
      priority: high
";
    let mut tree = parse_documents(text).unwrap().remove(0);
    let mut faults = Vec::new();
    check(&mut tree, document_schema(), &FieldPath::root(), &mut faults);
    let found: Vec<String> = faults
        .iter()
        .map(|fault| format!("{}:{} {}: {}", fault.place.line, fault.place.column, fault.path, fault.problem))
        .collect();
    assert_eq!(
        found,
        [
            "6:3 spec.rulez: unknown field \"rulez\"; did you mean \"rules\"?",
            "9:19 spec.rules[0].labels.a: expected a string, found true; write it in quotes: \"true\"",
            "10:22 spec.rules[0].match.names: expected a list, found \"yeezyai\"; write it as [\"yeezyai\"]",
            "10:31 spec.rules[0].match.capacty: unknown field \"capacty\"; did you mean \"capacity\"?",
            "11:7 spec.rules[1]: the field \"name\" is missing; add it",
            "13:13 spec.rules[2].mode: \"enforced\" is not a valid value; write enforce or default",
            "14:17 spec.rules[2].priority: expected an integer, found \"high\"; write a number without quotes, such as 10",
        ]
    );
    let spec: NodePolicySpec = serde_json::from_value(tree.to_json()["spec"].clone()).unwrap();
    assert_eq!(spec.rules.len(), 2);
    let (_, path) = tree.locate(&FieldPath::root().key("spec").key("rules").index(1).key("name"));
    assert_eq!(path.to_string(), "spec.rules[2].name");
}

#[test]
fn what_is_most_likely_meant_is_the_remedy() {
    let text = "
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: a}
spec:
  rules:
    - name: outdented
      match:
      names: [x]
      labels: {a: b}
    - name: no space
      labels: {team:ml}
    - name: labels
      match: {labels: {a: b}}
      labels: {a: b}
  persist: [a, b]
  governance:
    required: [x]
";
    let mut tree = parse_documents(text).unwrap().remove(0);
    let mut faults = Vec::new();
    check(&mut tree, document_schema(), &FieldPath::root(), &mut faults);
    let found: Vec<String> = faults
        .iter()
        .map(|fault| format!("{}:{} {}: {}", fault.place.line, fault.place.column, fault.path, fault.problem))
        .collect();
    assert_eq!(
        found,
        [
            "9:7 spec.rules[0].names: \"names\" is a field of \"match\", but it is written beside it; indent it below \"match\"",
            "12:16 spec.rules[1].labels[\"team:ml\"]: the field has no value; write a space after the colon: team: ml",
            "14:15 spec.rules[2].match.labels: unknown field \"labels\"; write selector: {matchLabels: {KEY: VALUE}}",
            "16:3 spec.persist: expected a mapping, found a list; write {labels: [a, b]}",
            "18:16 spec.governance.required[0]: expected a mapping, found \"x\"; write {keys: [x]}",
        ]
    );
}

#[test]
fn a_field_without_a_value_is_an_error_that_says_what_to_write() {
    let text = "
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: a, creationTimestamp: null}
spec:
  rules:
    - {name: one, match: , labels: {key: , other: x}, priority: }
    - {name: two, match: {names: , selector: {matchLabels: {a: }}}, labels: {a: b}, mode: ~}
    - {name: , labels: {a: b}}
  governance:
";
    let mut tree = parse_documents(text).unwrap().remove(0);
    let mut faults = Vec::new();
    check(&mut tree, document_schema(), &FieldPath::root(), &mut faults);
    let found: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.path, fault.problem)).collect();
    assert_eq!(
        found,
        [
            "spec.rules[0].match: the field has no value; write {} for an empty mapping, or remove the field",
            "spec.rules[0].labels.key: the field has no value; write \"\" for an empty string, or remove the field",
            "spec.rules[0].priority: the field has no value; write an integer, or remove the field",
            "spec.rules[1].match.names: the field has no value; write a list, or remove the field",
            "spec.rules[1].match.selector.matchLabels.a: the field has no value; write \"\" for an empty string, or remove the field",
            "spec.rules[1].mode: the field has no value; write a value, or remove the field",
            "spec.rules[2].name: the field has no value; write \"\" for an empty string, or remove the field",
            "spec.governance: the field has no value; write {} for an empty mapping, or remove the field",
        ]
    );
    let mut tree =
        parse_documents("{kind: NodePolicy, metadata: {name: a}, apiVersion: nodegate.dev/v1alpha1, spec: {rules: }}")
            .unwrap()
            .remove(0);
    let mut faults = Vec::new();
    check(&mut tree, document_schema(), &FieldPath::root(), &mut faults);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].problem.to_string(), "the field has no value; write a list, or remove the field");
}

#[test]
fn in_a_value_of_any_type_only_times_may_have_no_value() {
    let text = "{conditions: [{lastHeartbeatTime: , status: \"True\"}], creationTimestamp: , spec: {providerID: , a: [{b: }]}}";
    let mut tree = parse_documents(text).unwrap().remove(0);
    let mut faults = Vec::new();
    assert!(check(&mut tree, &json!({}), &FieldPath::root(), &mut faults));
    let found: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.path, fault.problem)).collect();
    assert_eq!(
        found,
        [
            "spec.providerID: the field has no value; write a value, or remove the field",
            "spec.a[0].b: the field has no value; write a value, or remove the field",
        ]
    );
}

#[test]
fn the_longer_a_name_the_more_of_it_may_be_mistyped() {
    for (written, meant) in [
        ("mdoe", Some("mode")),
        ("m", None),
        ("mxyz", None),
        ("LABELS", Some("labels")),
        ("matchExpresns", Some("matchExpressions")),
        ("matchExp", None),
    ] {
        assert_eq!(nearest(written, &["mode", "labels", "matchExpressions"]), meant, "{written}");
    }
}

#[test]
fn the_schema_uses_only_what_the_check_understands() {
    fn walk(schema: &Json) {
        let object = schema.as_object().unwrap();
        for key in object.keys() {
            assert!(
                [
                    "type",
                    "properties",
                    "required",
                    "items",
                    "additionalProperties",
                    "enum",
                    "description",
                    "title",
                    "default",
                    "format",
                    "minimum",
                    "maximum",
                    MEANING,
                ]
                .contains(&key.as_str()),
                "{key} in {schema}"
            );
        }
        assert!(object["type"].is_string(), "{schema}");
        for inner in object.get("properties").and_then(Json::as_object).into_iter().flat_map(|p| p.values()) {
            walk(inner);
        }
        for inner in ["items", "additionalProperties"]
            .iter()
            .filter_map(|key| object.get(*key))
            .filter(|inner| inner.is_object())
        {
            walk(inner);
        }
    }
    walk(document_schema());
}

/// Every taint of `tree` in the other form, and how it is after the check.
fn checked<T: JsonSchema>(text: &str) -> (Json, Vec<String>) {
    let mut tree = parse_documents(text).unwrap().remove(0);
    let mut faults = Vec::new();
    check(&mut tree, &schema_of::<T>(), &FieldPath::root(), &mut faults);
    (tree.to_json(), faults.iter().map(|fault| format!("{}: {}", fault.path, fault.problem)).collect())
}

#[test]
fn a_taint_is_a_text_or_a_mapping_wherever_there_is_one() {
    let texts = "{rules: [{name: a, match: {taints: [k, \"k=v:NoExecute\", \"k:NoExecute\"]}, taints: [\"k=v:NoSchedule\", \"k:NoSchedule\"]}],
        governance: {dependencies: [{when: {}, requireTaints: [\"k=v:NoSchedule\"]}]}}";
    let mappings = "{rules: [{name: a, match: {taints: [{key: k}, {key: k, value: v, effect: NoExecute}, {key: k, effect: NoExecute}]},
        taints: [{key: k, value: v, effect: NoSchedule}, {key: k, effect: NoSchedule}]}],
        governance: {dependencies: [{when: {}, requireTaints: [{key: k, value: v, effect: NoSchedule}]}]}}";
    let (from_texts, faults) = checked::<NodePolicySpec>(texts);
    assert_eq!((&from_texts, faults), (&checked::<NodePolicySpec>(mappings).0, Vec::new()));
    assert_eq!(from_texts["rules"][0]["taints"][0], json!({"key": "k", "value": "v", "effect": "NoSchedule"}));
    assert_eq!(from_texts["rules"][0]["match"]["taints"][1], "k=v:NoExecute");
    assert_eq!(from_texts["governance"]["dependencies"][0]["requireTaints"][0], "k=v:NoSchedule");
}

#[test]
fn a_mapping_that_is_no_taint_is_refused_and_no_key_can_pass_for_an_effect() {
    let rule = |taint: &str| format!("{{rules: [{{name: a, match: {{taints: [{taint}]}}}}]}}");
    for (taint, fault) in [
        ("{value: v}", "taints[0]: the field \"key\" is missing; add it"),
        ("{key: k, efect: NoExecute}", "unknown field \"efect\"; did you mean \"effect\"?"),
        ("{key: \"k:NoExecute\"}", "\"k:NoExecute\" is not a valid label key"),
        ("{key: \"k=v\", effect: NoExecute}", "\"k=v\" is not a valid label key"),
        ("{key: k, value: \"v:NoExecute\"}", "\"v:NoExecute\" is not a valid label value"),
        ("{key: k, value: 1.10, effect: NoExecute}", "expected a string, found 1.10; write it in quotes: \"1.10\""),
        ("[k]", "expected a string, found a list"),
    ] {
        let (left, faults) = checked::<NodePolicySpec>(&rule(taint));
        assert!(faults.len() == 1 && faults[0].contains(fault), "{taint}: {faults:?}");
        assert_eq!(left["rules"][0]["match"]["taints"], json!([]), "{taint}");
    }
}

#[test]
fn editors_know_both_forms_of_a_taint() {
    let schema = for_editors(schema_of::<NodePolicySpec>());
    let rule = &schema["properties"]["rules"]["items"]["properties"];
    let types = |schema: &Json| {
        let forms = schema["anyOf"].as_array().unwrap().iter();
        forms.map(|form| form["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(types(&rule["taints"]["items"]), ["string", "object"]);
    assert_eq!(types(&rule["match"]["properties"]["taints"]["items"]), ["string", "object"]);
    assert!(!schema.to_string().contains(MEANING), "only the check knows this keyword");
}
