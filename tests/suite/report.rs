//! `nodegate report --violations` on files.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: fleet}
spec:
  rules: [{name: named, match: {names: ["gpu-*"]}, labels: {node-type: gpu}}]
  governance:
    required: [{name: tier, keys: [tier]}, {name: type, keys: [node-type], mode: audit}]
    allowed: [{name: tiers, key: tier, values: [gold], mode: warn}]
    expressions: [{name: slots, expression: 'int(object.metadata.labels[?"slots"].orValue("1")) > 0', message: no slots}]
    reserved: [{name: ours, namespaces: [corp.example]}]
"#;

const NODES: &str = r#"
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: gpu-1, labels: {tier: gold, corp.example/a: b}}}
  - {apiVersion: v1, kind: Node, metadata: {name: cpu-1, labels: {tier: tin, slots: "0"}}}
  - {apiVersion: v1, kind: Node, metadata: {name: cpu-2, labels: {slots: many, node-type: x}}}
"#;

fn report(directory: &Path, arguments: &[&str]) -> Output {
    let command = || Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command().args(["report", "--violations"]).args(arguments).current_dir(directory).output().unwrap()
}

#[test]
fn violations_of_nodes_in_files_are_listed_and_are_findings() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("policy.yaml"), POLICY).unwrap();
    std::fs::write(directory.path().join("nodes.yaml"), NODES).unwrap();
    let output = report(directory.path(), &["--policy", "policy.yaml", "-o", "json", "nodes.yaml"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let judged: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&judged["policies"]["names"], &judged["nodes"]), (&json!(["fleet"]), &json!(3)));
    assert!(judged["policies"]["hash"].as_str().unwrap().starts_with("sha256:"));
    let found: Vec<String> = judged["violations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| ["node", "rule", "mode"].map(|field| line[field].as_str().unwrap()).join(" "))
        .collect();
    // What the policy itself gives (node-type of gpu-1) is there; who wrote corp.example/a is not asked.
    let expected =
        ["cpu-1 slots enforce", "cpu-1 tiers warn", "cpu-1 type audit", "cpu-2 tier enforce", "cpu-2 slots unknown"];
    assert_eq!(found, expected);
    let table = report(directory.path(), &["--policy", "policy.yaml", "nodes.yaml"]);
    let table = String::from_utf8(table.stdout).unwrap();
    let sum = "3 nodes, 2 with violations: 2 in enforce mode, 1 in warn mode, 1 in audit mode; 1 expression failed to evaluate, \
               which counts as a finding\npolicies: fleet (sha256:";
    assert!(table.contains("no slots") && table.contains(sum), "{table}");
}

#[test]
fn an_expression_that_fails_to_evaluate_is_a_finding() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("policy.yaml"), POLICY).unwrap();
    let node = "{apiVersion: v1, kind: Node, metadata: {name: gpu-1, labels: {tier: gold, slots: many}}}";
    std::fs::write(directory.path().join("nodes.yaml"), node).unwrap();
    let output = report(directory.path(), &["--policy", "policy.yaml", "nodes.yaml"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn nodes_without_violations_are_no_finding_and_no_nodes_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("policy.yaml"), POLICY).unwrap();
    let node = "{apiVersion: v1, kind: Node, metadata: {name: gpu-1, labels: {tier: gold}}}";
    std::fs::write(directory.path().join("nodes.yaml"), node).unwrap();
    let output = report(directory.path(), &["--policy", "policy.yaml", "nodes.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("1 node, 0 with violations"));
    let output = report(directory.path(), &["--policy", "policy.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no nodes are selected"));
}
