//! The guide about nodes that wait for conditions, with the real Node Readiness Controller: `just node-readiness`.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::control_plane::{ControlPlane, exclusive, free_port};
use super::keeping::{is_pending, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, join};
use super::requester::{Requester, taints};
use crate::shared::guides::block;

const TAINT: &str = "readiness.k8s.io/gpu-driver=pending:NoSchedule";

/// The controller, which ends when this is dropped.
struct ReadinessController {
    child: Child,
    _log: TempDir,
}

impl Drop for ReadinessController {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ReadinessController {
    fn start(plane: &ControlPlane) -> Self {
        let installed =
            std::env::var_os("NODEGATE_NODE_READINESS").expect("set NODEGATE_NODE_READINESS: just node-readiness");
        let installed = PathBuf::from(installed);
        let definition = installed.join("nodereadinessrules.yaml");
        let definition = definition.to_str().unwrap();
        plane.kubectl(&["apply", "--server-side", "-f", definition], None).unwrap();
        plane.kubectl(&["wait", "--for=condition=Established", "--timeout=20s", "-f", definition], None).unwrap();
        plane.kubectl(&["apply", "-f", "-"], Some(&block("node-readiness", "kind: NodeReadinessRule"))).unwrap();
        let directory = TempDir::with_prefix("nodegate-readiness-").unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(installed.join("node-readiness-controller"))
            .arg(format!("--health-probe-bind-address=127.0.0.1:{}", free_port()))
            .env("KUBECONFIG", plane.kubeconfig_file("readiness", None))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, _log: directory }
    }
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
    let _controller = ReadinessController::start(plane);
    let gpu = json!({"node-class": "gpu"});
    let joined = async |name: &str| join(plane, &node(name, gpu.clone()), Credential::default(), false).await.unwrap();

    // The controller alone adds it after the node has joined.
    assert!(!has_taint(&joined("gpu-1").await));
    admin.eventually("gpu-1", "the controller adds it", has_taint).await;

    let directory = tempfile::tempdir().unwrap();
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
    nodegate.terminate();
}
