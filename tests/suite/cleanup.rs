//! `nodegate cleanup` on nodes in files.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::shared::output::assert_conforms;

fn node(name: &str, tier: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "uid": "u", "labels": {"tier": tier, "team": "ml"},
            "annotations": {"nodegate.dev/last-change": "alice"}},
        "spec": {"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
            {"key": "nodegate.dev/pending", "effect": "NoSchedule"}]}})
}

/// Two nodes and their saved state; others have changed a label of the second one.
fn write(directory: &Path) {
    let nodes = json!({"kind": "List", "items": [node("gpu-1", "gold"), node("gpu-2", "tin\u{1b}[2J")]});
    std::fs::write(directory.join("nodes.json"), nodes.to_string()).unwrap();
    std::fs::create_dir(directory.join("state")).unwrap();
    for name in ["gpu-1", "gpu-2"] {
        let owned = json!({"labels": {"tier": "gold"}, "taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]});
        let state = json!({"nodeName": name, "nodeUID": "u", "labels": {"team": "ml"}, "owned": owned});
        std::fs::write(directory.join(format!("state/{name}.json")), state.to_string()).unwrap();
    }
}

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["cleanup", "--nodes", "nodes.json", "--state-dir", "state"]).args(arguments).current_dir(directory);
    command
}

fn cleanup(arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    command(directory.path(), arguments).output().unwrap()
}

fn printed(arguments: &[&str], code: i32) -> String {
    let output = cleanup(arguments);
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_would_be_removed_is_listed_once_for_all_nodes() {
    let expected = r#" FIELD       KEY                       VALUE           RESULT                                     NODES
 label       tier                      gold            would be removed                           gpu-1
 label       tier                      gold            kept: others changed it to "tin\u{1b}[2J"  gpu-2
 annotation  nodegate.dev/last-change  alice           would be removed                           2: gpu-1, gpu-2
 taint       dedicated                 gpu:NoSchedule  would be removed                           2: gpu-1, gpu-2
 taint       nodegate.dev/pending      NoSchedule      would be removed                           2: gpu-1, gpu-2

7 keys and 0 objects would be removed, 1 key and 0 objects kept
"#;
    assert_eq!(printed(&[], 0), expected);
    assert_eq!(printed(&["--exit-code"], 1), expected);
    let one = printed(&["--node", "gpu-2"], 0);
    assert!(!one.contains("gpu-1") && one.contains("3 keys"), "{one}");
}

#[test]
fn an_empty_value_is_shown_as_quotes() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    for name in ["nodes.json", "state/gpu-1.json"] {
        let file = directory.path().join(name);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, text.replace("\"gold\"", "\"\"")).unwrap();
    }
    let output = command(directory.path(), &["--node", "gpu-1"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let row = text.lines().find(|line| line.contains(" tier ")).unwrap();
    assert_eq!(row.split_whitespace().nth(2), Some("\"\""), "{text}");
}

#[test]
fn json_has_the_documented_fields() {
    let answer: Value = serde_json::from_str(&printed(&["-o", "json"], 0)).unwrap();
    assert_conforms("cleanup", &answer);
    let tier = |node: usize| answer["nodes"][node]["keys"][0].clone();
    assert_eq!(tier(0), json!({"field": "label", "key": "tier", "value": "gold", "result": "wouldRemove"}));
    assert_eq!((&tier(1)["why"], &tier(1)["found"]), (&json!("changed"), &json!("tin\u{1b}[2J")));
    let yaml = printed(&["-o", "yaml", "--node", "gpu-1"], 0);
    assert!(yaml.starts_with("confirmed: false\n"), "{yaml}");
}

#[test]
fn nodes_without_anything_of_nodegate_need_no_cleanup() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let plain = json!({"kind": "Node", "metadata": {"name": "n", "labels": {"tier": "gold"}}});
    std::fs::write(directory.path().join("nodes.json"), plain.to_string()).unwrap();
    let output = command(directory.path(), &["--exit-code"]).output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), b"nothing to clean up\n" as &[u8]));
}

#[test]
fn wrong_input_is_an_error_that_says_what_is_wrong() {
    for (arguments, expected) in [
        (&["--node", "gpu-3"] as &[&str], "no node gpu-3 in the files"),
        (&["--nodes", "absent.json"], "absent.json"),
        (&["--confirm"], "cannot be used with"),
        (&["--policy", "fleet"], "cannot be used with"),
        (&["--decommissioned"], "cannot be used with"),
        (&["--kubeconfig", "x", "--namespace", "y"], "cannot be used with"),
    ] {
        let output = cleanup(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected) && output.stdout.is_empty(), "{arguments:?}: {said}");
    }
    let alone = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("cleanup").output().unwrap();
    let said = String::from_utf8(alone.stderr).unwrap();
    assert!(alone.status.code() == Some(2) && said.contains("no cluster is selected"), "{said}");
}
