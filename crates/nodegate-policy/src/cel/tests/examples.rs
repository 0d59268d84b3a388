//! The expressions of the documentation.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::{Expression, RequestVariables, Scope, Variables, Yields};
use super::{compile, evaluate, evaluate_write, node, whole, with_node, with_object};

#[test]
fn an_architecture_is_compared() {
    assert_eq!(evaluate(r#"node.status.nodeInfo.architecture == "arm64""#), Ok(true));
    assert_eq!(evaluate(r#"node.status.nodeInfo.architecture == "amd64""#), Ok(false));
}

#[test]
fn the_number_of_gpus_becomes_text() {
    let text = with_node(|variables| compile("string(gpu.count)", Yields::Text).evaluate_text(variables));
    assert_eq!(text, Ok("2".to_owned()));
}

#[test]
fn a_role_label_is_computed_from_the_pool() {
    let source = r#"{"node-role.kubernetes.io/" + node.metadata.labels["pool"]: ""}"#;
    let expression = compile(source, Yields::TextMap);
    let labels = with_node(|variables| expression.evaluate_map(variables));
    assert_eq!(labels, Ok(BTreeMap::from([("node-role.kubernetes.io/infra".to_owned(), String::new())])));
    let mut other = node();
    other["metadata"]["labels"] = json!({});
    let error = with_object(&other, |variables| expression.evaluate_map(variables)).unwrap_err();
    assert_eq!(error.to_string(), r#"node.metadata.labels has no "pool""#);
}

#[test]
fn labels_are_computed_from_other_labels() {
    let source = r#"node.metadata.labels.transformMap(k, v, k != "pool", v.upperAscii())"#;
    let labels = with_node(|variables| compile(source, Yields::TextMap).evaluate_map(variables)).unwrap();
    let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(labels, ["count=3", "kubernetes.io/arch=ARM64", "tier=GOLD"]);
}

/// Match conditions that Kubernetes accepts have the same meaning here.
#[test]
fn match_conditions_of_kubernetes_work() {
    let changed = "request.operation == \"CREATE\" || object.metadata.?labels.orValue({}) != \
                   oldObject.metadata.?labels.orValue({}) || object.?spec.?taints.orValue([]) != \
                   oldObject.?spec.?taints.orValue([])";
    let stamped = "object.metadata.?annotations[?\"nodegate.dev/last-change\"].orValue(\"\") != \
                   oldObject.metadata.?annotations[?\"nodegate.dev/last-change\"].orValue(\"\")";
    let kubelet = "request.userInfo.username.startsWith(\"system:node:\") && \"system:nodes\" in \
                   request.userInfo.?groups.orValue([])";
    let conditions = |t: &str| format!("{t}.filter(t, !t.key.startsWith(\"node.kubernetes.io/\"))");
    let taints = format!("{} != {}", conditions("object.spec.taints"), conditions("oldObject.spec.taints"));

    let groups = ["system:nodes", "system:authenticated"];
    let request = RequestVariables {
        operation: "UPDATE",
        name: "gpu-1",
        username: "system:node:gpu-1",
        groups: groups.to_vec(),
        ..RequestVariables::default()
    };
    let (old, mut new) = (node(), node());
    new["spec"]["taints"][1]["key"] = json!("node.kubernetes.io/unreachable");
    new["metadata"]["annotations"]["nodegate.dev/last-change"] = json!("someone");
    let evaluate = |source: &str| evaluate_write(source, &new, Some(&old), &request);
    assert_eq!(evaluate(changed), Ok(true), "a taint changed");
    assert_eq!(evaluate(stamped), Ok(true), "an annotation changed");
    assert_eq!(evaluate(kubelet), Ok(true));
    assert_eq!(evaluate(&taints), Ok(false), "only a taint of a condition changed");
}

#[test]
fn governance_sees_object_old_object_and_request() {
    let old = node();
    let mut new = node();
    new["metadata"]["labels"]["tier"] = json!("silver");
    let request = RequestVariables { operation: "UPDATE", username: "alice", dry_run: true, ..Default::default() };
    let evaluate = |source: &str, old| evaluate_write(source, &new, old, &request);
    assert_eq!(evaluate("object.metadata.labels.tier == oldObject.metadata.labels.tier", Some(&old)), Ok(false));
    assert_eq!(evaluate("oldObject == null && request.dryRun && request.userInfo.username == 'alice'", None), Ok(true));
    // Null has no fields: the result is unknown, not false.
    assert!(evaluate("oldObject.metadata.name == object.metadata.name", None).is_err());
    assert_eq!(evaluate("oldObject == null || oldObject.metadata.name == object.metadata.name", None), Ok(true));
}

#[test]
fn a_message_is_computed_from_the_write() {
    let object = node();
    let request = RequestVariables { operation: "CREATE", username: "alice", ..Default::default() };
    let source = "request.userInfo.username + \" may not call \" + object.metadata.name + \" a \" + \
                  object.metadata.labels.tier + \" node\" + (oldObject == null ? \" yet\" : \"\")";
    let expression = Expression::compile(source, Scope::Write, Yields::Text).unwrap();
    let object = object.to_string();
    let text = expression.evaluate_text(&Variables::write(&whole(&object).completed(), None, Some(&request.value())));
    assert_eq!(text, Ok("alice may not call gpu-1 a gold node yet".to_owned()));
}
