//! People: policies that go too far, changes to be taken back, somebody who undoes every repair.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, eventually_state, node, tells, until_led};
use super::super::nodegate::{Nodegate, Setup, with_cluster};
use super::super::requester::{Requester, label};
use super::{POLICY, delete_all, names, until_told};

/// Runs `nodegate` with the cluster, to its end.
fn command(plane: &ControlPlane, namespace: &str, arguments: &[&str]) -> (i32, String) {
    let connect = with_cluster(plane, namespace, false).into_iter().take(4);
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate"))
        .args(arguments)
        .args(connect)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap_or(-1), text)
}

#[tokio::test]
async fn a_policy_that_would_remove_keys_from_too_many_nodes_removes_none_until_confirmed() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodes = names("kept-s", 12);
    delete_all(&admin, &nodes).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let policy = |rules: &str| {
        let text = format!(
            "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: strip}}\nspec:\n  rules: [{rules}]\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    policy(
        r#"{name: tier, match: {names: ["kept-s-*"]}, labels: {tier: gold}, removeAfter: 0s}, {name: other, labels: {other: x}}"#,
    );
    let path = file.to_str().unwrap();
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: &[path], cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    for name in &nodes {
        admin.create(&node(name, json!({}))).await.unwrap();
    }
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    for name in &nodes {
        eventually_state(&maps, name, "owned", |state| state["owned"]["labels"]["tier"] == "gold").await;
    }
    policy(r#"{name: other, labels: {other: x}}"#);
    let are_held = || {
        let text = nodegate.probe("/metrics").unwrap_or_default();
        text.contains("\nnodegate_removals_held_back_nodes 12\n")
    };
    nodegate.eventually("the brake comes", are_held).await;
    nodegate.until_resynced(nodes.len() as u64).await;
    for name in &nodes {
        assert_eq!(label(&admin.get(name).await, "tier"), Some("gold"));
    }
    let reported = || {
        let (_, text) = command(cluster.plane, &nodegate.namespace, &["report"]);
        let is_told = text.contains("Removals are held back:\n  12 nodes would lose labels or taints");
        is_told && text.contains("- label tier=gold (not assigned by any rule anymore): 12 nodes")
    };
    nodegate.eventually("the report says it, too", reported).await;
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["apply", "--policy", path]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("--confirm"), "{text}");
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["apply", "--policy", path, "--confirm"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("12 removed"), "{text}");
    for name in &nodes {
        assert_eq!(label(&admin.get(name).await, "tier"), None);
    }
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["apply", "--policy", path]);
    assert_eq!((code, text.contains(" 0 keys set, 0 changed, 0 removed")), (0, true), "{text}");
    delete_all(&admin, &nodes).await;
}

#[tokio::test]
async fn history_shows_who_changed_what_and_reverts_it() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("history-1").await;
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    admin.create(&node("history-1", json!({"color": "red"}))).await.unwrap();
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    eventually_state(&maps, "history-1", "recorded", |state| !state["nodeUID"].is_null()).await;
    cluster.plane.kubectl(&["label", "node", "history-1", "color=blue", "--overwrite"], None).unwrap();
    let has_history = |state: &Value| state["history"].as_array().is_some_and(|history| !history.is_empty());
    let state = eventually_state(&maps, "history-1", "the change is recorded", has_history).await;
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["history", "history-1"]);
    assert_eq!(code, 0, "{text}");
    for part in ["(kubectl-label)", "user", "color", r#""red" → "blue""#] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let id = state["history"][0]["id"].to_string();
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["history", "history-1", "--revert", &id]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(label(&admin.get("history-1").await, "color"), Some("red"));
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["history", "nobody"]);
    assert_eq!(code, 2, "{text}");
    admin.delete("history-1").await;
}

#[tokio::test]
async fn a_key_that_is_reverted_repeatedly_is_no_longer_repaired() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("kept-f").await;
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    admin.create(&node("kept-f", json!({}))).await.unwrap();
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    eventually_state(&maps, "kept-f", "owned", |state| !state["owned"]["labels"]["hardware.tier"].is_null()).await;
    // Through nodes/status, which no mutating webhook may see.
    for turn in 0..5 {
        admin.eventually("kept-f", "repaired", |node| label(node, "hardware.tier") == Some("standard")).await;
        let value = format!("mine-{turn}");
        admin.merge_status("kept-f", json!({"metadata": {"labels": {"hardware.tier": value}}})).await.unwrap();
        if turn < 4 {
            admin.eventually("kept-f", "repaired", |node| label(node, "hardware.tier") == Some("standard")).await;
        }
    }
    until_told(cluster.plane, &nodegate, "kept-f", "LeftAlone").await;
    // The fifth revert was still repaired; from now on it is not. What the leader makes of a change it tells later.
    let are_told =
        |from: &'static str, to: &'static str| move |state: &Value| tells(state, "hardware.tier", Some(from), Some(to));
    eventually_state(&maps, "kept-f", "the last repair is told", are_told("mine-4", "standard")).await;
    admin.merge_status("kept-f", json!({"metadata": {"labels": {"hardware.tier": "mine"}}})).await.unwrap();
    eventually_state(&maps, "kept-f", "the change is told", are_told("standard", "mine")).await;
    assert_eq!(label(&admin.get("kept-f").await, "hardware.tier"), Some("mine"));
    admin.delete("kept-f").await;
}
