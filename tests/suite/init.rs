//! `nodegate init`: a first policy from nodes in files.

mod groups;
mod translation;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::shared::output::assert_conforms;

fn node(name: &str, labels: &Value, taints: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}})
}

fn fleet() -> Value {
    let gpu = |name: &str| {
        let labels = json!({"tier": "gold", "team": "ml", "node-role.kubernetes.io/gpu": "",
            "kubernetes.io/hostname": name, "nvidia.com/gpu.product": "A100"});
        node(name, &labels, &json!([{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]))
    };
    let control_plane = json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
    json!({"apiVersion": "v1", "kind": "List", "items": [
        gpu("gpu-1"), gpu("gpu-2"), node("cpu-1", &json!({"team": "ml"}), &json!([])),
        node("cp-0", &json!({}), &control_plane),
    ]})
}

fn nodegate(directory: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(arguments).current_dir(directory);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    // A command that reads no input may have ended.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Standard output of a command that ends with this code.
fn printed(directory: &Path, arguments: &[&str], code: i32) -> String {
    let output = nodegate(directory, arguments, "");
    let (out, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}{error}");
    out
}

/// Asserts that the policy in `policy/` is fine, that its tests pass, and that it changes nothing on these nodes.
fn assert_changes_nothing(directory: &Path, nodes: &str) {
    let checked = printed(directory, &["check", "policy/policy.yaml", "--exit-code"], 0);
    assert!(checked.ends_with("\nno errors\n"), "{checked}");
    let tested = printed(directory, &["test", "policy"], 0);
    assert!(tested.ends_with(" passed, 0 failed\n"), "{tested}");
    printed(directory, &["plan", "--policy", "policy/policy.yaml", nodes, "--exit-code"], 0);
}

const SUMMARY: &str = r#" RULE           NODES  NAMES         SETS
 cpu-1-and-gpu  3      cpu-1, gpu-*  team=ml
 gpu            2      gpu-*         node-role.kubernetes.io/gpu="", tier=gold, dedicated=gpu:NoSchedule

 LEFT OUT  KEY                                    NODES  REASON
 label     kubernetes.io/hostname                 2      the kubelet sets it for each machine
 label     nvidia.com/gpu.product                 2      NVIDIA's GPU feature discovery or operator sets it for each machine
 taint     node-role.kubernetes.io/control-plane  1      the cluster's installer sets it

read 4 nodes, wrote policy/policy.yaml (2 rules) and policy/test.yaml (4 cases)

Next, review the names in policy/policy.yaml, run its tests, and see that it changes nothing:
  nodegate test policy/test.yaml
  nodegate plan --policy policy/policy.yaml nodes.json
"#;

#[test]
fn the_first_policy_of_a_fleet_passes_its_tests_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    std::fs::write(at.join("nodes.json"), fleet().to_string()).unwrap();
    assert_eq!(printed(at, &["init", "nodes.json"], 0), SUMMARY);
    assert_changes_nothing(at, "nodes.json");
    // The same nodes as YAML from standard input, and in other files.
    let yaml = serde_saphyr::to_string(&fleet()).unwrap();
    let output = nodegate(at, &["init", "-", "--dir", "other", "--name", "mine"], &yaml);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let next = "\n  kubectl get nodes -o json | nodegate plan --policy other/policy.yaml -\n";
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(next), "{output:?}");
    let read = |file: &str| std::fs::read_to_string(at.join(file)).unwrap();
    assert_eq!(read("policy/policy.yaml").replace("name: fleet\n", "name: mine\n"), read("other/policy.yaml"));
    assert_eq!(read("policy/test.yaml"), read("other/test.yaml"));
}

#[test]
fn editors_find_the_schemas_that_the_first_lines_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    std::fs::write(at.join("nodes.json"), fleet().to_string()).unwrap();
    printed(at, &["init", "nodes.json"], 0);
    for (file, kind) in [("policy.yaml", "NodePolicy"), ("test.yaml", "PolicyTest")] {
        let text = std::fs::read_to_string(at.join("policy").join(file)).unwrap();
        let schema = text.lines().next().unwrap().strip_prefix("# yaml-language-server: $schema=").unwrap();
        let schema = std::fs::read_to_string(at.join("policy").join(schema)).unwrap();
        assert_eq!(schema, printed(at, &["render", "schema", kind], 0), "{file}");
        assert_conforms(kind, &serde_saphyr::from_str::<Value>(&text).unwrap());
    }
}

#[test]
fn the_summary_is_structured_too() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("nodes.json"), fleet().to_string()).unwrap();
    let text = printed(directory.path(), &["init", "nodes.json", "-o", "json"], 0);
    let summary: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&summary["nodes"], &summary["cases"]), (&json!(4), &json!(4)));
    assert_conforms("init", &summary);
    let team = json!({"field": "label", "key": "team", "value": "ml"});
    let names = json!(["cpu-1", "gpu-*"]);
    let rule = json!({"rule": "cpu-1-and-gpu", "nodes": 3, "names": names, "values": [], "pools": [], "sets": [team]});
    assert_eq!(summary["rules"][0], rule);
    let taint = json!({"field": "taint", "key": "dedicated", "value": "gpu", "effect": "NoSchedule"});
    assert_eq!(summary["rules"][1]["sets"][2], taint);
    let left = json!({"field": "label", "key": "kubernetes.io/hostname", "nodes": 2, "reason": "the kubelet sets it for each machine"});
    assert_eq!(summary["leftOut"][0], left);
    assert_eq!(summary["files"].as_array().unwrap().len(), 4);
}

#[test]
fn existing_files_are_overwritten_only_with_force() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    std::fs::write(at.join("nodes.json"), fleet().to_string()).unwrap();
    std::fs::create_dir(at.join("policy")).unwrap();
    std::fs::write(at.join("policy/test.yaml"), "mine").unwrap();
    let output = nodegate(at, &["init", "nodes.json"], "");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
    assert!(said.contains("already exist") && said.contains("policy/test.yaml") && said.contains("--force"), "{said}");
    assert_eq!(std::fs::read_to_string(at.join("policy/test.yaml")).unwrap(), "mine");
    assert!(!at.join("policy/policy.yaml").exists(), "all files are written, or none");
    // A link that leads nowhere is in the way as well: a write would follow it.
    std::fs::remove_file(at.join("policy/test.yaml")).unwrap();
    std::os::unix::fs::symlink("elsewhere", at.join("policy/test.yaml")).unwrap();
    assert_eq!(nodegate(at, &["init", "nodes.json"], "").status.code(), Some(2));
    assert!(!at.join("policy/elsewhere").exists());
    std::fs::remove_file(at.join("policy/test.yaml")).unwrap();
    printed(at, &["init", "nodes.json"], 0);
    std::fs::write(at.join("policy/policy.yaml"), "x".repeat(100_000)).unwrap();
    printed(at, &["init", "nodes.json", "--force"], 0);
    assert_changes_nothing(at, "nodes.json");
}

#[test]
fn without_nodes_or_labels_there_is_no_policy() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let write = |name: &str, content: &Value| std::fs::write(at.join(name), content.to_string()).unwrap();
    write("empty.json", &json!({"kind": "List", "items": []}));
    write("plain.json", &node("a", &json!({"kubernetes.io/os": "linux"}), &json!([])));
    write("star.json", &node("a*", &json!({"tier": "x"}), &json!([])));
    write(
        "twice.json",
        &json!({"kind": "List", "items": [node("a", &json!({"x": "1"}), &json!([])), node("a", &json!({}), &json!([]))]}),
    );
    write("odd.json", &node("a", &json!({"x": 1}), &json!([])));
    write("fleet.json", &fleet());
    for (arguments, expected) in [
        (&["-"] as &[&str], "standard input: contains no Node"),
        (&["empty.json"], "empty.json: contains no Node"),
        (&["absent.json"], "absent.json"),
        (&["plain.json"], "found no label or taint for a policy"),
        (&["star.json"], "\"a*\" is not a valid name of a node"),
        (&["twice.json"], "node a is given twice"),
        (&["odd.json"], "expected a string, found 1"),
        (&[], "no nodes are selected; pass files with nodes"),
        (&["fleet.json", "--name", "A b"], "not a valid name"),
        (&["fleet.json", "--dir", "fleet.json"], "fleet.json"),
        (&["fleet.json", "--kubeconfig", "x"], "cannot be used with"),
    ] {
        let output = nodegate(at, &[&["init"], arguments].concat(), "");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert!(!at.join("policy").exists(), "{arguments:?}");
    }
    assert!(printed(at, &["init", "plain.json"], 2).contains("kubernetes.io/os"), "what was left out is listed");
}

#[test]
fn a_policy_from_recorded_nodes_changes_nothing() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/admission-reviews");
    for entry in std::fs::read_dir(recorded).unwrap() {
        let review = entry.unwrap().path();
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let review: Value = serde_json::from_str(&std::fs::read_to_string(review).unwrap()).unwrap();
        let mut stored = review["request"]["object"].clone();
        stored["kind"] = "Node".into();
        std::fs::write(at.join("node.json"), stored.to_string()).unwrap();
        printed(at, &["init", "node.json"], 0);
        assert_changes_nothing(at, "node.json");
    }
}

#[test]
fn a_large_fleet_is_read_as_json_and_as_yaml() {
    let images: Vec<Value> = (0..25).map(|number| json!({"names": [format!("image-{number}")]})).collect();
    let items: Vec<Value> = (0..2500)
        .map(|number| {
            let mut node = node(&format!("n-{number}"), &json!({"tier": "gold"}), &json!([]));
            node["status"] = json!({"images": images});
            node
        })
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    std::fs::write(at.join("nodes.json"), list.to_string()).unwrap();
    assert!(printed(at, &["init", "nodes.json"], 0).contains(" n     2500   n-*    tier=gold\n"));
    std::fs::write(at.join("nodes.yaml"), serde_saphyr::to_string(&list).unwrap()).unwrap();
    assert!(printed(at, &["init", "nodes.yaml", "--force"], 0).contains(" n     2500   n-*    tier=gold\n"));
    // What YAML does not take.
    let deep = format!("kind: Node\nmetadata: {{name: n}}\nspec: {}{}\n", "[".repeat(40), "]".repeat(40));
    std::fs::write(at.join("deep.yaml"), deep).unwrap();
    let output = nodegate(at, &["init", "deep.yaml", "--force"], "");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && said.contains("32 levels") && said.contains("write it as JSON"),
        "{said}"
    );
}

#[test]
fn what_an_example_policy_sets_is_found_again() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for (example, rules) in [("fako", 4), ("llm-d-lab", 1)] {
        let (policy, nodes) = (examples.join(example).join("policy.yaml"), examples.join(example).join("nodes"));
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let set = nodegate_stores::files::Sources { policies: vec![policy], ..Default::default() }.load().unwrap();
        let mut found = Vec::new();
        for entry in std::fs::read_dir(nodes).unwrap() {
            let node: Value = serde_saphyr::from_str(&std::fs::read_to_string(entry.unwrap().path()).unwrap()).unwrap();
            let (username, groups) = ("admin".to_owned(), vec!["system:masters".to_owned()]);
            let scene = nodegate_policy::simulate::Scene::of(node, username, groups);
            found.push(nodegate_policy::simulate::simulate(&set, &scene, &Default::default()).unwrap().node);
        }
        std::fs::write(at.join("nodes.json"), json!({"kind": "List", "items": found}).to_string()).unwrap();
        let summary: Value = serde_json::from_str(&printed(at, &["init", "nodes.json", "-o", "json"], 0)).unwrap();
        assert_eq!(summary["rules"].as_array().unwrap().len(), rules, "{summary:#}");
        assert_changes_nothing(at, "nodes.json");
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("nodes.json"), fleet().to_string()).unwrap();
    let command = format!("{} init nodes.json | true; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_nodegate"));
    let output = Command::new("bash").args(["-c", &command]).current_dir(directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(directory.path().join("policy/test.yaml").exists());
}
