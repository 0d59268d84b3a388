//! `nodegate explain` on nodes in files.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::shared::output::assert_conforms;

const POLICY: &str = "\
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: fleet}
spec:
  rules:
    - {name: gold, priority: 10, match: {names: ['gpu-*']}, labels: {tier: gold}, taints: [{key: dedicated, value: gpu, effect: NoSchedule}]}
    - {name: tin, labels: {tier: tin}}
    - {name: big, trustKubelet: true, match: {capacity: {nvidia.com/gpu: '>=8'}}, labels: {size: big}}
";

fn node() -> Value {
    let claims = json!({"manager": "kubectl-label", "operation": "Update", "time": "2026-11-21T10:00:00Z",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:team": {}}}}});
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "gpu-1", "uid": "u", "creationTimestamp": "2026-11-20T10:00:00Z",
            "labels": {"tier": "gold", "team": "ml"}, "managedFields": [claims]},
        "spec": {"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]}})
}

fn explain(directory: &Path, arguments: &[&str]) -> Output {
    std::fs::write(directory.join("policy.yaml"), POLICY).unwrap();
    std::fs::write(directory.join("nodes.json"), node().to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.arg("explain").args(["--nodes", "nodes.json", "--policy", "policy.yaml"]).args(arguments);
    command.current_dir(directory).output().unwrap()
}

/// Standard output of a command that succeeds.
fn explained(arguments: &[&str]) -> String {
    let output = explain(tempfile::tempdir().unwrap().path(), arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_node_is_explained_as_a_table() {
    let expected = r#" FIELD  KEY        VALUE           SOURCE           OWNED  SINCE
 label  tier       gold            rule fleet/gold  yes    2026-11-20T10:00:00Z
                                   (priority 10)
 taint  dedicated  gpu:NoSchedule  rule fleet/gold  yes    -
                                   (priority 10)
(1 key that no rule affects: --all shows them)

Other values that rules assign:
  label tier: rule fleet/tin (priority 0) assigns "tin": another rule has a
    higher priority

Missing:
  label size=big (rule fleet/big): unknown: capacity nvidia.com/gpu >=8:
    capacity nvidia.com/gpu is absent; the node is starting, so devices may
    still appear
"#;
    assert_eq!(explained(&["gpu-1"]), expected);
    assert!(
        explained(&["gpu-1", "--all"]).contains("\n label  team       ml              kubectl-label    no     -\n")
    );
}

#[test]
fn an_empty_value_is_shown_as_quotes() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("nodes.json"), node().to_string().replace("\"ml\"", "\"\"")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["explain", "--nodes", "nodes.json", "gpu-1", "--all"]).current_dir(directory.path());
    let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let row = output.lines().find(|line| line.contains(" team ")).unwrap();
    assert_eq!(row.split_whitespace().nth(2), Some("\"\""), "{output}");
}

#[test]
fn of_a_file_without_managed_fields_it_is_unknown_what_is_owned() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("policy.yaml"), POLICY).unwrap();
    let mut node = node();
    node["metadata"].as_object_mut().unwrap().remove("managedFields");
    std::fs::write(directory.path().join("nodes.json"), node.to_string()).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(["explain", "--nodes", "nodes.json", "--policy", "policy.yaml", "gpu-1"]).args(arguments);
        String::from_utf8(command.current_dir(directory.path()).output().unwrap().stdout).unwrap()
    };
    let why = "? because the file has no managedFields; print it with\n";
    let how = "  `kubectl get node gpu-1 -o yaml --show-managed-fields`\n";
    let table = run(&[]);
    assert!(
        table.contains("  ?      ") && !table.contains("  yes  ") && table.contains(&format!("\nowned: {why}{how}")),
        "{table}"
    );
    assert!(run(&["tier"]).contains(&format!("  owned:   {why}")), "{}", run(&["tier"]));
    let json: Value = serde_json::from_str(&run(&["-o", "json"])).unwrap();
    assert!(json["writersUnknown"].as_str().is_some_and(|why| why.contains("--show-managed-fields")), "{json}");
}

#[test]
fn a_key_is_explained_whether_the_node_has_it_or_not() {
    let tier = "\
label tier=gold
  source:  rule fleet/gold (priority 10)
  since:   2026-11-20T10:00:00Z
  owned:   yes
  removed: 60 s after the rule stops matching, unless another rule assigns the
           key
  other:   rule fleet/tin (priority 0) assigns \"tin\": another rule has a higher
           priority
";
    assert_eq!(explained(&["gpu-1", "tier"]), tier);
    assert!(explained(&["gpu-1", "size"]).starts_with("missing: label size=big (rule fleet/big): unknown: "));
    assert_eq!(
        explained(&["gpu-1", "nothing"]),
        "node gpu-1 has no label, annotation or taint nothing, and no rule assigns one\n"
    );
}

#[test]
fn each_condition_of_the_rules_that_could_give_a_key_is_shown() {
    let expected = "\
rule fleet/big (priority 0): unknown on node gpu-1
  unknown  capacity nvidia.com/gpu >=8   (capacity nvidia.com/gpu is absent; the
           node is starting, so devices may still appear)
";
    assert_eq!(explained(&["gpu-1", "--why-not", "size"]), expected);
    let tier = explained(&["gpu-1", "--why-not", "tier"]);
    assert!(tier.contains("  true     it matches every node\n") && tier.starts_with("rule fleet/gold"), "{tier}");
    assert_eq!(explained(&["gpu-1", "--why-not", "x"]), "no rule assigns a label, annotation or taint x to any node\n");
}

#[test]
fn json_has_the_documented_fields() {
    let answer: Value = serde_json::from_str(&explained(&["gpu-1", "-o", "json"])).unwrap();
    assert_conforms("explain", &answer);
    assert_eq!(answer["entries"][0]["source"]["lastWrite"], "2026-11-21T10:00:00Z");
    assert_eq!(answer["missing"][0]["why"], "unknown");
    let answer: Value = serde_json::from_str(&explained(&["gpu-1", "--why-not", "size", "-o", "json"])).unwrap();
    assert_conforms("why-not", &answer);
    let yaml = explained(&["gpu-1", "tier", "-o", "yaml"]);
    assert!(yaml.contains("removedWhen:\n    when: ruleStopsMatching\n"), "{yaml}");
}

#[test]
fn saved_state_tells_what_is_owned() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("state")).unwrap();
    let state = json!({"nodeName": "gpu-1", "nodeUID": "u", "owned": {"labels": {"team": "ml"}},
        "history": [{"id": 1, "time": "2026-11-20T12:00:00Z", "how": "admission", "field": "label", "key": "team", "new": "ml"}]});
    std::fs::write(directory.path().join("state/gpu-1.json"), state.to_string()).unwrap();
    let output = explain(directory.path(), &["gpu-1", "team", "--state-dir", "state"]);
    let expected = "\
label team=ml
  source:  a rule that does not assign it anymore
  since:   2026-11-20T12:00:00Z
  owned:   yes
  removed: 60 s after the controller noticed that no rule assigns it anymore
";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn wrong_input_is_an_error_that_says_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["gpu-2"] as &[&str], "no node gpu-2 in the files; they contain gpu-1"),
        (&["gpu-1", "--nodes", "absent.json"], "absent.json"),
        (&["gpu-1", "--state-dir", "absent"], "absent"),
        (&["gpu-1", "--policy", "absent.yaml"], "absent.yaml"),
        (&["gpu-1", "a", "--why-not", "b"], "cannot be used with"),
        (&["gpu-1", "--kubeconfig", "x", "--namespace", "y"], "cannot be used with"),
    ] {
        let output = explain(directory.path(), arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected) && output.stdout.is_empty(), "{arguments:?}: {said}");
    }
    let alone = Command::new(env!("CARGO_BIN_EXE_nodegate")).args(["explain", "gpu-1"]).output().unwrap();
    let said = String::from_utf8(alone.stderr).unwrap();
    assert!(alone.status.code() == Some(2) && said.contains("pass files with --nodes, or select a cluster"), "{said}");
}
