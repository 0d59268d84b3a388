//! What goes wrong in a real cluster. After each: every node has what it should, and nothing is pending.

mod api_server;
mod chaos;
mod clock;
mod flapping;
mod joins;
mod people;
mod records;
mod replicas;
mod soak;

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::keeping::{is_pending, node};
use super::requester::{Requester, label, taints};

const POLICY: &[&str] = &["tests/suite/cluster/keeping.yaml"];

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{prefix}-{at}")).collect()
}

async fn join_all(plane: &ControlPlane, names: &[String]) {
    for name in names {
        Requester::kubelet(plane, name).await.create(&node(name, json!({"persist.demo/own": name}))).await.unwrap();
    }
}

async fn delete_all(admin: &Requester, names: &[String]) {
    for name in names {
        admin.delete(name).await;
    }
}

/// Whether a node of the policy `keeping` is exactly as it should be.
fn is_right(node: &Value) -> bool {
    label(node, "node-role.kubernetes.io/worker").is_some()
        && label(node, "hardware.tier") == Some("standard")
        && taints(node).contains(&"fleet=kept:NoSchedule".to_owned())
        && !is_pending(node)
}

async fn all_right(admin: &Requester, names: &[String]) {
    for name in names {
        let node = admin.eventually(name, "exactly as it should be", is_right).await;
        assert_eq!(label(&node, "persist.demo/own"), Some(name.as_str()), "a persisted label was lost");
    }
}
