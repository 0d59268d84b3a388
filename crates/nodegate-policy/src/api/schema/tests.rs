//! What the check reports.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::api::source::parse_documents;

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
        .map(|fault| format!("{}:{} {}: {}", fault.place.line, fault.place.column, fault.path, fault.message))
        .collect();
    assert_eq!(
        found,
        [
            "6:3 spec.rulez: unknown field; did you mean \"rules\"?",
            "9:19 spec.rules[0].labels.a: expected a string, found true; write it in quotes: \"true\"",
            "10:22 spec.rules[0].match.names: expected a list, found \"yeezyai\"; write it as [\"yeezyai\"]",
            "10:31 spec.rules[0].match.capacty: unknown field; did you mean \"capacity\"?",
            "11:7 spec.rules[1]: the field \"name\" is missing; add it",
            "13:13 spec.rules[2].mode: \"enforced\" is not a valid value; write enforce or default",
            "14:17 spec.rules[2].priority: expected an integer, found \"high\"",
        ]
    );
    let spec: NodePolicySpec = serde_json::from_value(tree.to_json()["spec"].clone()).unwrap();
    assert_eq!(spec.rules.len(), 2);
    let (_, path) = tree.locate(&FieldPath::root().key("spec").key("rules").index(1).key("name"));
    assert_eq!(path.to_string(), "spec.rules[2].name");
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
    let found: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect();
    assert_eq!(
        found,
        [
            "spec.rules[0].match: has no value; write {} for an empty mapping, or remove the field",
            "spec.rules[0].labels.key: has no value; write \"\" for an empty string, or remove the field",
            "spec.rules[0].priority: has no value; write an integer, or remove the field",
            "spec.rules[1].match.names: has no value; write a list, or remove the field",
            "spec.rules[1].match.selector.matchLabels.a: has no value; write \"\" for an empty string, or remove the field",
            "spec.rules[1].mode: has no value; write a value, or remove the field",
            "spec.rules[2].name: has no value; write \"\" for an empty string, or remove the field",
            "spec.governance: has no value; write {} for an empty mapping, or remove the field",
        ]
    );
    let mut tree =
        parse_documents("{kind: NodePolicy, metadata: {name: a}, apiVersion: nodegate.dev/v1alpha1, spec: {rules: }}")
            .unwrap()
            .remove(0);
    let mut faults = Vec::new();
    check(&mut tree, document_schema(), &FieldPath::root(), &mut faults);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].message, "has no value; write a list, or remove the field");
}

#[test]
fn in_a_value_of_any_type_only_times_may_have_no_value() {
    let text = "{conditions: [{lastHeartbeatTime: , status: \"True\"}], creationTimestamp: , spec: {providerID: , a: [{b: }]}}";
    let mut tree = parse_documents(text).unwrap().remove(0);
    let mut faults = Vec::new();
    assert!(check(&mut tree, &json!({}), &FieldPath::root(), &mut faults));
    let found: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect();
    assert_eq!(
        found,
        [
            "spec.providerID: has no value; write a value, or remove the field",
            "spec.a[0].b: has no value; write a value, or remove the field",
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
                    "maximum"
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
