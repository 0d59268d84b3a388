//! The cluster cannot be wedged: what happens when the server is dead.
#![allow(clippy::await_holding_lock, reason = "one test at a time uses the control plane")]

use serde_json::json;

use super::control_plane::exclusive;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};

const NODE: &str = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "outage-1", "labels": {"kubernetes.io/hostname": "outage-1"}}}"#;

#[tokio::test]
async fn under_fail_a_dead_server_blocks_everyone_but_kubelets_and_break_glass() {
    let cluster = exclusive();
    let flags = ["--failure-policy", "Fail", "--break-glass-group", "nodegate:break-glass"];
    let mut nodegate =
        Nodegate::start(cluster.plane, &Setup { serve: &flags[2..], render: &flags, ..Setup::default() });
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "outage-1").await);
    admin.delete("outage-1").await;
    let rescuer = Requester::user(cluster.plane, "alice", &["system:masters", "nodegate:break-glass"]).await;
    nodegate.kill();

    kubelet.create(&serde_json::from_str(NODE).unwrap()).await.expect("a kubelet joins");
    kubelet.label("outage-1", "pool", json!("a")).await.expect("a kubelet's label");
    let condition = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-20T22:00:00Z", "lastTransitionTime": "2026-11-20T22:00:00Z"});
    kubelet.merge_status("outage-1", json!({"status": {"conditions": [condition]}})).await.expect("a heartbeat");
    assert_eq!(admin.label("outage-1", "team", json!("x")).await.unwrap_err().code, 500);
    rescuer.label("outage-1", "team", json!("x")).await.expect("break glass recovers");
    admin.merge("outage-1", json!({"spec": {"unschedulable": true}})).await.expect("a cordon makes no call");
    let lifecycle = Requester::user(
        cluster.plane,
        "system:serviceaccount:kube-system:node-controller",
        &["system:masters", "system:serviceaccounts"],
    )
    .await;
    let lost = json!({"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}});
    lifecycle.merge("outage-1", lost).await.expect("the node lifecycle controller taints a lost node");
    admin.delete("outage-1").await;
}

#[tokio::test]
async fn under_fail_a_living_server_still_judges_kubelets() {
    let cluster = exclusive();
    let setup =
        Setup { policies: &["tests/cluster/protect.yaml"], render: &["--failure-policy", "Fail"], ..Setup::default() };
    let _nodegate = Nodegate::start(cluster.plane, &setup);
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "outage-1").await);
    admin.delete("outage-1").await;
    kubelet.create(&serde_json::from_str(NODE).unwrap()).await.unwrap();
    let written = kubelet.label("outage-1", "hardware.tier", json!("gold")).await.unwrap();
    assert_eq!(label(&written, "hardware.tier"), None, "put back in the very write");
    let through_status = json!({"metadata": {"labels": {"hardware.tier": "gold"}}});
    let refusal = kubelet.merge_status("outage-1", through_status).await.unwrap_err();
    assert_eq!(refusal.code, 403, "{refusal:?}");
    admin.label("outage-1", "hardware.tier", json!("gold")).await.unwrap();
    admin.delete("outage-1").await;
}

#[tokio::test]
async fn under_ignore_a_dead_server_blocks_nobody() {
    let cluster = exclusive();
    let mut nodegate = Nodegate::start(cluster.plane, &Setup::default());
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "outage-1").await);
    admin.delete("outage-1").await;
    nodegate.kill();
    kubelet.create(&serde_json::from_str(NODE).unwrap()).await.unwrap();
    let updated = admin.label("outage-1", "node.kubernetes.io/kind", json!("x")).await.unwrap();
    assert_eq!(label(&updated, "node.kubernetes.io/kind"), Some("x"));
    admin.delete("outage-1").await;
}
