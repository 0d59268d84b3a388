//! The pools of nodes in a report.

use std::process::Command;

use serde_json::{Value, json};

use crate::shared::output::assert_conforms;

/// A pool that remembers nothing, as in the document.
fn of_pool(pool: &str, nodes: usize, unknown: &Value) -> Value {
    json!({"pool": pool, "nodes": nodes, "unknown": unknown, "remembered": {}, "disagreements": []})
}

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
    let expected = [("edge", 2, json!([])), ("gpu", 1, json!(["edge-1", "old"]))]
        .map(|(pool, nodes, unknown)| of_pool(pool, nodes, &unknown));
    assert_eq!(report["pools"], json!(expected));
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
    assert_eq!(report["pools"][2], of_pool("l4", 1, &json!([])));
    let text = run(&[]);
    assert!(text.contains("\n       0  any, unknown of edge-1, old\n"), "{text}");
    let page = run(&["--html", "-"]);
    assert!(page.contains("<strong>4</strong>nodes without a known pool"), "{page}");
}

#[test]
fn contradictions_are_listed_from_what_is_recorded_and_explained() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: fleet}\nspec:\n  pools:\n  \
        - {name: gpu, bootstrap: {tokens: [gpu000]}}\n  - {name: cpu, bootstrap: {tokens: [cpu000]}}\n  \
        - {nameFrom: {kind: NodeClaim, label: pool}}\n";
    let id = |instance: &str| format!("aws:///eu-central-1a/{instance}");
    let node = |name: &str, instance: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name}, "spec": {"providerID": id(instance)}});
    let certificates = ["a", "b", "c"].map(|digit| digit.repeat(64));
    let bootstrap = |token: &str, certificate: &str| json!({"user": format!("system:bootstrap:{token}"), "certificates": [certificate]});
    let saved = |name: &str, session: &str, uid: &str| {
        let lines = format!(
            "extra.authentication.kubernetes.io/credential-id=X509SHA256={}\n{session}\nuser=system:node:{name}",
            certificates[0]
        );
        json!({"nodeName": name, "nodeUID": name, "authenticatedAs": lines, "bootstrappedBy": [bootstrap("gpu000", &certificates[0])],
        "asserted": {
            "nodeUID": uid,
            "machines": [{"group": "karpenter.sh", "kind": "NodeClaim", "name": "x7", "providerID": id("i-x7")}],
            "certificates": [bootstrap("cpu000", &certificates[1]), bootstrap("gpu000", &certificates[2])],
        }})
    };
    let nodes =
        json!({"apiVersion": "v1", "kind": "List", "items": [node("a", "i-x7"), node("b", "i-y8"), node("c", "i-x7")]});
    std::fs::create_dir(directory.path().join("state")).unwrap();
    for (file, text) in [
        ("policy.yaml", policy.to_owned()),
        ("nodes.json", nodes.to_string()),
        ("state/a.json", saved("a", "extra.sessionName=i-z9", "a").to_string()),
        ("state/b.json", saved("b", "extra.sessionName=i-z9", "b").to_string()),
        // Of an earlier node of the name.
        ("state/c.json", saved("c", "extra.sessionName=i-z9", "earlier").to_string()),
    ] {
        std::fs::write(directory.path().join(file), text).unwrap();
    }
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(arguments).args(["--policy", "policy.yaml", "--state-dir", "state"]);
        let output = command.current_dir(directory.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let report: Value = serde_json::from_str(&run(&["report", "nodes.json", "-o", "json"])).unwrap();
    assert_conforms("report", &report);
    let certificate = |node: &str| {
        json!({"node": node, "assertion": "certificate", "asserted": certificates[1],
            "evidence": {"user": ["system:bootstrap:cpu000"], "pools": ["cpu"]},
            "proven": {"user": ["system:bootstrap:gpu000"], "pools": ["gpu"]}})
    };
    let provider_id = json!({"node": "a", "assertion": "providerID", "asserted": id("i-x7"),
        "evidence": {"object": ["NodeClaim x7"]}, "proven": {"instance": ["i-z9"]}});
    assert_eq!(report["contradictions"], json!([certificate("a"), provider_id, certificate("b")]));
    let claimed =
        format!("the node has the provider ID {}, but its kubelet was authenticated as instance i-z9", id("i-x7"));
    let issued = "a certificate for the name of this node was issued to system:bootstrap:cpu000 (pool cpu), but the node was created by \
        system:bootstrap:gpu000 (pool gpu)";
    let text = run(&["report", "nodes.json"]);
    let line = format!(
        "\nContradictions to what proves pools:\n  node a: {issued} ({})\n  node a: {claimed}",
        certificates[1]
    );
    assert!(text.contains(&line), "{text}");
    let page = run(&["report", "nodes.json", "--html", "-"]);
    assert!(page.contains("<strong>3</strong>contradictions") && page.contains(issued), "{page}");
    let explained: Value =
        serde_json::from_str(&run(&["explain", "a", "--nodes", "nodes.json", "-o", "json"])).unwrap();
    assert_conforms("explain", &explained);
    let identity = &explained["identity"];
    assert_eq!((&identity["instance"], identity["contradictions"].as_array().map(Vec::len)), (&json!("i-z9"), Some(2)));
    let text = run(&["explain", "a", "--nodes", "nodes.json"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&format!("contradiction: {issued}")) && text.contains(&claimed), "{text}");
}

#[test]
fn violations_of_nodes_of_a_pool_are_found_by_what_is_recorded_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: fleet}\nspec:\n  pools:\n  \
        - {name: gpu, requester: {groups: [\"pool:gpu\"]}}\n  rules:\n  \
        - {name: tier, match: {pools: [gpu]}, labels: {tier: gpu}}\n  governance:\n    required:\n    \
        - {name: owner, keys: [team], match: {pools: [gpu]}}\n    - {name: tier, keys: [tier], match: {pools: [gpu]}}\n";
    let nodes = ["gpu-1", "old"]
        .map(|name| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name}}));
    let saved =
        json!({"nodeName": "gpu-1", "nodeUID": "gpu-1", "authenticatedAs": "group=pool:gpu\nuser=system:node:gpu-1"});
    std::fs::create_dir(directory.path().join("state")).unwrap();
    for (file, text) in [
        ("policy.yaml", policy.to_owned()),
        ("nodes.json", json!({"apiVersion": "v1", "kind": "List", "items": nodes}).to_string()),
        ("state/gpu-1.json", saved.to_string()),
    ] {
        std::fs::write(directory.path().join(file), text).unwrap();
    }
    let violations = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(["report", "nodes.json", "--policy", "policy.yaml", "-o", "json"]).args(arguments);
        let output = command.current_dir(directory.path()).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = report["violations"].as_array().unwrap().iter();
        found.map(|one| (one["node"].clone(), one["rule"].clone())).collect::<Vec<_>>()
    };
    let with_records = violations(&["--violations", "--state-dir", "state"]);
    assert_eq!(with_records, [(json!("gpu-1"), json!("owner"))], "the other label comes from a rule");
    assert_eq!(violations(&["--state-dir", "state"]), with_records);
    assert_eq!(violations(&["--violations"]), [], "nothing proves the pool");
}
