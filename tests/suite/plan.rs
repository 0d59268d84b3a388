//! `nodegate plan` on nodes in files.

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
    - {name: gold, match: {names: ['gpu-*']}, labels: {tier: gold}, taints: [{key: dedicated, value: gpu, effect: NoSchedule}]}
    - {name: tin, match: {names: ['cpu-*']}, labels: {tier: tin}}
    - {name: serial, labelExpressions: {serial: node.metadata.name}}
    - {name: big, trustKubelet: true, match: {capacity: {nvidia.com/gpu: '>=8'}}, labels: {size: big}}
";

/// Six nodes of a kind. The second one has a tier already.
fn nodes(kind: &str, ready: &str) -> Vec<Value> {
    let node = |at: usize| {
        let name = format!("{kind}-{at}");
        let labels = if at == 1 { json!({"tier": "tin"}) } else { json!({}) };
        let metadata = json!({"name": name, "uid": name, "labels": labels});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    };
    (0..6).map(node).collect()
}

fn pods() -> Value {
    let owner = json!([{"kind": "ReplicaSet", "name": "web", "controller": true}]);
    let pod = |at: usize| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("web-{at}"), "namespace": "shop", "ownerReferences": owner},
            "spec": {"nodeName": format!("gpu-{at}")}})
    };
    let pending = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"nodeSelector": {"tier": "gold"}, "tolerations": [{"operator": "Exists"}]}});
    let template = json!({"spec": {"nodeSelector": {"tier": "tin"}}});
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "kube-system"},
        "spec": {"template": template}});
    json!({"apiVersion": "v1", "kind": "List", "items": [pod(0), pod(2), pending, set]})
}

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let items: Vec<Value> = nodes("gpu", "False").into_iter().chain(nodes("cpu", "True")).collect();
    std::fs::write(directory.join("policy.yaml"), POLICY).unwrap();
    std::fs::write(directory.join("nodes.json"), json!({"kind": "List", "items": items}).to_string()).unwrap();
    std::fs::write(directory.join("pods.json"), pods().to_string()).unwrap();
    std::fs::write(directory.join("empty.json"), json!({"kind": "List", "items": []}).to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.arg("plan").args(arguments).current_dir(directory);
    command
}

fn plan(arguments: &[&str]) -> Output {
    command(tempfile::tempdir().unwrap().path(), arguments).output().unwrap()
}

/// Standard output of a command that ends with `code`.
fn planned(code: i32, arguments: &[&str]) -> String {
    let output = plan(&[&["nodes.json", "--policy", "policy.yaml"], arguments].concat());
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_change_is_shown_once_with_its_nodes_and_then_what_happens_to_pods() {
    let expected = "\
+ label serial, 12 different values (rule fleet/serial): 12 nodes (cpu-0, cpu-1, cpu-2, …)
+ label tier=gold (rule fleet/gold): 5 nodes (gpu-0, gpu-2, gpu-3, …)
+ label tier=tin (rule fleet/tin): 5 nodes (cpu-0, cpu-2, cpu-3, …)
~ label tier=gold, was tin (rule fleet/gold): gpu-1
+ taint dedicated=gpu:NoSchedule (rule fleet/gold): 6 nodes (gpu-0, gpu-1, gpu-2, …)
unknown: rule fleet/big could not be evaluated: the capacity of nvidia.com/gpu has not been reported yet: 6 nodes (gpu-0, gpu-1, gpu-2, …)
unschedulable: 2 pods of shop/ReplicaSet/web on gpu-0, gpu-2: taint dedicated=gpu:NoSchedule is not tolerated; 6 nodes accept such a pod
schedulable: pod ml/train on gpu-0: its node selector, affinity and tolerations match a node that they did not match before
DaemonSet kube-system/agent: starts pods on 5 nodes (cpu-0, cpu-2, cpu-3, …); stops pods on gpu-1
12 nodes: 12 to change, 0 with deferred changes; 3 pods affected, 0 evicted
Rules that trust values set by kubelets (trustKubelet): fleet/big
";
    assert_eq!(planned(0, &["--pods", "pods.json"]), expected);
    assert_eq!(planned(1, &["--pods", "pods.json", "--exit-code"]), expected);
}

#[test]
fn an_empty_value_is_shown_as_quotes() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "{apiVersion: nodegate.dev/v1alpha1, kind: NodePolicy, metadata: {name: fleet}, spec: {rules: [
        {name: role, labels: {role: \"\", tier: gold}}]}}";
    let node = "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {tier: \"\"}}}";
    std::fs::write(directory.path().join("role.yaml"), policy).unwrap();
    std::fs::write(directory.path().join("node.yaml"), node).unwrap();
    let output = command(directory.path(), &["node.yaml", "--policy", "role.yaml"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in ["+ label role=\"\" (rule fleet/role): n1\n", "~ label tier=gold, was \"\" (rule fleet/role): n1\n"] {
        assert!(text.contains(line), "{line}{text}");
    }
}

#[test]
fn by_node_each_node_is_shown_with_its_changes() {
    let text = planned(0, &["--by", "node"]);
    let expected = "\ngpu-1\n  + label serial=gpu-1 (rule fleet/serial)\n  ~ label tier=gold, was tin (rule fleet/gold)\n  + taint dedicated=gpu:NoSchedule (rule fleet/gold)\n  unknown: rule fleet/big could not be evaluated: the capacity of nvidia.com/gpu has not been reported yet\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn json_has_the_documented_fields_and_no_value_only_as_prose() {
    let plan: Value = serde_json::from_str(&planned(0, &["--pods", "pods.json", "-o", "json"])).unwrap();
    assert_conforms("plan", &plan);
    let gpu = plan["nodes"].as_array().unwrap().iter().find(|node| node["node"] == "gpu-1").unwrap();
    let tier = json!({"op": "change", "field": "label", "key": "tier", "value": "gold", "was": "tin", "policy": "fleet", "rule": "gold"});
    let taint = json!({"op": "add", "field": "taint", "key": "dedicated", "value": "gpu", "effect": "NoSchedule", "policy": "fleet", "rule": "gold"});
    assert_eq!((&gpu["changes"][1], &gpu["changes"][2]), (&tier, &taint));
    let cause = json!({"kind": "taint", "key": "dedicated", "value": "gpu", "effect": "NoSchedule"});
    let pods = plan["pods"].as_array().unwrap();
    let names: Vec<&Value> = pods.iter().map(|pod| &pod["name"]).collect();
    assert_eq!(names, ["train", "web-0", "web-2"], "in the order of namespace and name, whatever happens to them");
    let pod = &pods[1];
    assert_eq!((&pod["cause"], &pod["effect"], &pod["node"]), (&cause, &json!("unschedulable"), &json!("gpu-0")));
    assert_eq!(plan["summary"]["changed"], 12);
    let unknown = json!([{"policy": "fleet", "rule": "big", "reason": "the capacity of nvidia.com/gpu has not been reported yet"}]);
    assert_eq!(gpu["unknown"], unknown);
    let create: Value = serde_json::from_str(&planned(0, &["--create", "-o", "json"])).unwrap();
    assert_conforms("plan", &create);
}

#[test]
fn removals_name_their_grace_period_and_are_held_back_from_too_many_nodes() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("state")).unwrap();
    for at in 0..6 {
        let name = format!("cpu-{at}");
        let state =
            json!({"nodeName": name, "nodeUID": name, "owned": {"labels": {"old": "x"}, "removeAfter": {"old": 5}}});
        std::fs::write(directory.path().join(format!("state/{name}.json")), state.to_string()).unwrap();
    }
    let mut nodes = nodes("cpu", "True");
    nodes.iter_mut().for_each(|node| node["metadata"]["labels"]["old"] = json!("x"));
    let arguments = ["old.json", "--policy", "policy.yaml", "--state-dir", "state", "--max-removals"];
    let run = |limit: &str, more: &[&str]| {
        let mut command = command(directory.path(), &[&arguments, &[limit] as &[&str], more].concat());
        std::fs::write(directory.path().join("old.json"), json!({"kind": "List", "items": nodes}).to_string()).unwrap();
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let removal =
        "- label old=x (not assigned by any rule anymore, removed after 5 s): 6 nodes (cpu-0, cpu-1, cpu-2, …)\n";
    let held = "\nThe controller holds removals on 6 nodes back until `nodegate apply --confirm`: they exceed --max-removals, or no rule remains\n";
    assert!(run("6", &[]).contains(removal) && !run("6", &[]).contains(held), "{}", run("6", &[]));
    assert!(run("5", &[]).contains(held), "{}", run("5", &[]));
    let plan: Value = serde_json::from_str(&run("5", &["-o", "json"])).unwrap();
    assert_conforms("plan", &plan);
    let changes = plan["nodes"][0]["changes"].as_array().unwrap();
    let removal = json!({"op": "remove", "field": "label", "key": "old", "was": "x", "afterSeconds": 5});
    assert!(changes.contains(&removal) && plan["summary"]["heldBack"] == true, "{plan:#}");
}

#[test]
fn wrong_input_is_an_error_that_says_what_is_wrong() {
    for (arguments, expected) in [
        (&[] as &[&str], "no nodes are selected; pass files with nodes"),
        (&["empty.json"], "empty.json: contains no Node"),
        (&["absent.json"], "absent.json"),
        (&["nodes.json", "--pods", "nodes.json"], "kind is \"Node\""),
        (&["nodes.json", "--pods", "empty.json"], "empty.json: contains no Pod; expected Pods, DaemonSets"),
        (&["nodes.json", "--state-dir", "absent"], "absent"),
        (&["nodes.json", "--kubeconfig", "x"], "cannot be used with"),
        (&["--only", "--kubeconfig", "x", "--namespace", "y"], "--policy"),
    ] {
        let output = plan(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected) && output.stdout.is_empty(), "{arguments:?}: {said}");
    }
}

#[test]
fn faults_in_files_of_nodes_and_pods_are_shown_with_their_lines() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let valueless = "apiVersion: v1\nkind: KIND\nmetadata:\n  name: host-1\n  labels: {tier: gold, team: }\n  annotations:\n    note:\n";
    let expected = "\
error: \"team\" has no value
 --> FILE:5:24
  |
5 |   labels: {tier: gold, team: }
  |                        ^^^^
  |
  = note: in KIND \"host-1\"
  = help: write \"\" for an empty value, or remove the key

error: \"note\" has no value
 --> FILE:7:5
  |
7 |     note:
  |     ^^^^
  |
  = note: in KIND \"host-1\"
  = help: write \"\" for an empty value, or remove the key

error: FILE was not read
";
    std::fs::write(at.join("twice.yaml"), "kind: Node\nmetadata:\n  name: a\n  name: b\n").unwrap();
    for (kind, file, arguments) in [
        ("Node", "node.yaml", &["node.yaml"] as &[&str]),
        ("Pod", "pod.yaml", &["nodes.json", "--policy", "policy.yaml", "--pods", "pod.yaml"]),
    ] {
        std::fs::write(at.join(file), valueless.replace("KIND", kind)).unwrap();
        let output = command(at, arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let expected = expected.replace("FILE", file).replace("KIND", kind);
        assert_eq!((output.status.code(), said), (Some(2), expected), "{arguments:?}");
    }
    let said = String::from_utf8(command(at, &["twice.yaml"]).output().unwrap().stderr).unwrap();
    for part in ["twice.yaml:4:3", "4 |   name: b", "the first one", "error: twice.yaml was not read\n"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn what_publishes_the_labels_of_a_gate_has_to_start_on_a_node_that_waits() {
    let directory = tempfile::tempdir().unwrap();
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "gates"}, "spec": {"gates": [
        {"name": "gpu", "labels": ["nvidia.com/gpu.product", "nvidia.com/gpu.count", "rack"]},
        {"name": "pci", "labels": ["feature.node.kubernetes.io/pci-10de.present"]}]}});
    let set = |name: &str, image: &str, toleration: Value| {
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": "gpu"}, "spec": {"template": {"spec": {
            "containers": [{"name": "c", "image": image}], "tolerations": [toleration]}}}})
    };
    let node_only = json!({"key": "nvidia.com/gpu", "operator": "Exists"});
    let sets = [
        set("gpu-feature-discovery", "nvcr.io/nvidia/k8s-device-plugin:v0.18.0", node_only.clone()),
        set("device-plugin", "nvcr.io/nvidia/k8s-device-plugin:v0.18.0", node_only.clone()),
        set("nfd-worker", "registry.k8s.io/nfd/node-feature-discovery:v0.18.0", json!({"operator": "Exists"})),
        set("agent", "example.com/agent", node_only),
    ];
    let write = |name: &str, content: &Value| std::fs::write(directory.path().join(name), content.to_string()).unwrap();
    write("gates.json", &policy);
    write("sets.json", &json!({"apiVersion": "v1", "kind": "List", "items": sets}));
    let planned = |more: &[&str]| {
        let arguments = [&["nodes.json", "--policy", "gates.json", "--pods", "sets.json"], more].concat();
        let output = command(directory.path(), &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = planned(&[]);
    let warnings: Vec<&str> = text.lines().filter(|line| line.starts_with("Warning")).collect();
    let expected = "Warning: policy \"gates\", gate:gpu: nodes wait for nvidia.com/gpu.product, nvidia.com/gpu.count, but DaemonSet gpu/gpu-feature-discovery, \
         which publishes this, does not tolerate the pending taint startup-taint.cluster-autoscaler.kubernetes.io/nodegate:NoSchedule; \
         add a toleration with its key and operator Exists";
    assert_eq!(warnings, [expected], "{text}");
    let plan: Value = serde_json::from_str(&planned(&["-o", "json"])).unwrap();
    assert_conforms("plan", &plan);
    assert_eq!(plan["shutOut"][0]["daemonSet"], "gpu/gpu-feature-discovery");
    assert!(planned(&["--pending-taint-key", "nvidia.com/gpu"]).lines().all(|line| !line.starts_with("Warning")));
}
