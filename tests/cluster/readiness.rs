//! The guide about nodes that wait for conditions, with the real Node Readiness Controller: `just node-readiness`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::commands::run;
use super::control_plane::{Component, ControlPlane, exclusive, free_port};
use super::keeping::{is_pending, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, join};
use super::requester::{Requester, taints};
use crate::shared::guides::block;

const TAINT: &str = "readiness.k8s.io/gpu-driver=pending:NoSchedule";

/// Starts the controller with the guide's rule. What it writes goes to the directory.
fn readiness_controller(plane: &ControlPlane, directory: &Path) -> Component {
    let installed = std::env::var_os("NODEGATE_NODE_READINESS");
    let installed = PathBuf::from(installed.expect("set NODEGATE_NODE_READINESS: just node-readiness"));
    plane.define(&installed.join("crds"));
    plane.kubectl(&["apply", "-f", "-"], Some(&block("node-readiness", "kind: NodeReadinessRule"))).unwrap();
    plane.program(&installed.join("node-readiness-controller"), &directory.join("log"), |command| {
        command.arg(format!("--health-probe-bind-address=127.0.0.1:{}", free_port()));
    })
}

fn has_taint(node: &Value) -> bool {
    taints(node).iter().any(|taint| taint == TAINT)
}

#[tokio::test]
#[ignore = "needs the Node Readiness Controller: just node-readiness"]
async fn a_node_has_the_taint_of_its_readiness_rule_from_its_create_on() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let admin = Requester::admin(plane).await;
    let directory = tempfile::tempdir().unwrap();
    let _controller = readiness_controller(plane, directory.path());
    let gpu = json!({"node-class": "gpu"});
    let joined = async |name: &str| join(plane, &node(name, gpu.clone()), Credential::default(), false).await.unwrap();

    // The controller alone adds it after the node has joined.
    assert!(!has_taint(&joined("gpu-1").await));
    admin.eventually("gpu-1", "the controller adds it", has_taint).await;

    let policy = directory.path().join("policy.yaml").display().to_string();
    std::fs::write(&policy, block("node-readiness", "kind: NodePolicy")).unwrap();
    let mut nodegate = Nodegate::start(plane, &Setup { policies: &[&policy], cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let born = joined("gpu-2").await;
    assert!(has_taint(&born) && is_pending(&born), "{born:#}");

    // The controller takes its taint, nodegate the other one, and neither sets that of the other again.
    let ready = |status: &str| {
        json!([{"type": "nvidia.com/GPUReady", "status": status, "reason": "Probe", "message": "",
        "lastHeartbeatTime": "2026-11-28T00:00:00Z", "lastTransitionTime": "2026-11-28T00:00:00Z"}])
    };
    let report = |status: &str| {
        let patch = json!({"status": {"conditions": ready(status)}}).to_string();
        plane
            .kubectl(&["patch", "node", "gpu-2", "--subresource=status", "--type=merge", "--patch", &patch], None)
            .unwrap();
    };
    report("False");
    nodegate.until_resynced(2).await;
    assert!(has_taint(&admin.get("gpu-2").await));
    report("True");
    admin.eventually("gpu-2", "the controller removes it", |node| !has_taint(node)).await;
    nodegate.until_resynced(2).await;
    let waiting = admin.get("gpu-2").await;
    assert!(!has_taint(&waiting) && is_pending(&waiting), "{waiting:#}");
    admin.label("gpu-2", "fabric.example.com/rack", json!("r7")).await.unwrap();
    admin.eventually("gpu-2", "it has passed the gate", |node| !is_pending(node)).await;
    nodegate.until_resynced(2).await;
    assert!(!has_taint(&admin.get("gpu-2").await));

    // Without the policy's rule, the taint comes late again, and `plan` says so.
    let plan = |policy: &str| {
        run(plane, None, &["plan", "--policy", policy, "--only", "--namespace", &nodegate.namespace]).with(0)
    };
    assert!(!plan(&policy).contains("NodeReadinessRule"), "{}", plan(&policy));
    let others = directory.path().join("others.yaml").display().to_string();
    let text =
        block("node-readiness", "kind: NodePolicy").replace("readiness.k8s.io/gpu-driver", "readiness.k8s.io/other");
    std::fs::write(&others, text).unwrap();
    let warning =
        "NodeReadinessRule gpu-driver adds the taint readiness.k8s.io/gpu-driver:NoSchedule after a node has joined";
    assert!(plan(&others).contains(warning), "{}", plan(&others));
    nodegate.terminate();
}
