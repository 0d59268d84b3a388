//! The pools of nodes in a report.

use std::process::Command;

use serde_json::{Value, json};

use crate::shared::output::assert_conforms;

#[test]
fn nodes_are_counted_by_pool_and_those_that_are_not_known_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: fleet}\nspec:\n  pools:\n  \
        - {name: gpu, requester: {groups: [\"pool:gpu\"]}}\n  - {name: edge, names: [\"edge-*\"]}\n  - {name: edge, names: [rim]}\n";
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name}});
    let nodes = ["edge-1", "gpu-1", "old", "rim"].map(node);
    let nodes = json!({"apiVersion": "v1", "kind": "List", "items": nodes});
    let saved = |groups: &str, name: &str| {
        let text = format!("{groups}user=system:node:{name}");
        json!({"nodeName": name, "nodeUID": name, "authenticatedAs": text}).to_string()
    };
    std::fs::create_dir(directory.path().join("state")).unwrap();
    for (file, text) in [
        ("policy.yaml", policy.to_owned()),
        ("nodes.json", nodes.to_string()),
        ("state/gpu-1.json", saved("group=pool:gpu\n", "gpu-1")),
        ("state/rim.json", saved("", "rim")),
    ] {
        std::fs::write(directory.path().join(file), text).unwrap();
    }
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(["report", "nodes.json", "--policy", "policy.yaml", "--state-dir", "state"]).args(arguments);
        let output = command.current_dir(directory.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let report: Value = serde_json::from_str(&run(&["-o", "json"])).unwrap();
    assert_conforms("report", &report);
    let expected =
        json!([{"pool": "edge", "nodes": 2, "unknown": []}, {"pool": "gpu", "nodes": 1, "unknown": ["edge-1", "old"]}]);
    assert_eq!(report["pools"], expected);
    let text = run(&[]);
    assert!(text.contains("\nPools:\n       2  edge\n       1  gpu (unknown of edge-1, old)\n"), "{text}");
    let page = run(&["--html", "-"]);
    assert!(page.contains("<strong>2</strong>nodes without a known pool"), "{page}");

    // Which objects provisioners have, only a record says.
    let claim =
        json!({"group": "karpenter.sh", "kind": "NodeClaim", "name": "x7", "uid": "c", "labels": {"pool": "l4"}});
    let provisioned =
        json!({"nodeName": "gpu-1", "nodeUID": "gpu-1", "provisionedFor": "gpu-1", "provisionedBy": [claim]});
    let none = json!({"nodeName": "rim", "nodeUID": "rim", "provisionedFor": "rim", "notProvisionedBy": ["NodeClaim"]});
    let name_from = "  - {nameFrom: {kind: NodeClaim, label: pool}}\n";
    for (file, text) in [
        ("policy.yaml", format!("{policy}{name_from}")),
        ("state/gpu-1.json", provisioned.to_string()),
        ("state/rim.json", none.to_string()),
    ] {
        std::fs::write(directory.path().join(file), text).unwrap();
    }
    let report: Value = serde_json::from_str(&run(&["-o", "json"])).unwrap();
    assert_eq!(report["poolsUnknown"], json!(["edge-1", "old"]));
    assert_eq!(report["pools"][2], json!({"pool": "l4", "nodes": 1, "unknown": []}));
    let text = run(&[]);
    assert!(text.contains("\n       0  any, unknown of edge-1, old\n"), "{text}");
    let page = run(&["--html", "-"]);
    assert!(page.contains("<strong>4</strong>nodes without a known pool"), "{page}");
}
