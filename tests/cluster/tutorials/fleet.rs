//! Nodes of somebody who moves to nodegate.

use serde_json::{Value, json};

use crate::control_plane::ControlPlane;

/// The nodes of a test, which are gone when it ends.
pub(super) struct Nodes<'a> {
    plane: &'a ControlPlane,
    names: Vec<&'static str>,
}

impl<'a> Nodes<'a> {
    /// The cluster has these nodes only, once they are created.
    pub(super) fn new(plane: &'a ControlPlane, names: &[&'static str]) -> Self {
        plane.kubectl(&["delete", "nodes", "--all"], None).unwrap();
        Self { plane, names: names.to_vec() }
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        let _ = self.plane.kubectl(&[&["delete", "node", "--ignore-not-found"], &self.names[..]].concat(), None);
    }
}

/// Creates a node that is ready, has room, and has joined long ago.
pub(super) fn ready_node(plane: &ControlPlane, name: &str, labels: Value, taints: Value) {
    let room = json!({"cpu": "16", "memory": "64Gi", "pods": "110"});
    let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": "2026-11-21T00:00:00Z", "lastTransitionTime": "2026-11-21T00:00:00Z"}]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"capacity": room, "allocatable": room, "conditions": ready}});
    plane.kubectl(&["create", "-f", "-"], Some(&node.to_string())).unwrap();
    // The API server adds node.kubernetes.io/not-ready, which a controller removes elsewhere.
    let taints = json!({"spec": {"taints": taints}}).to_string();
    plane.kubectl(&["patch", "node", name, "--type=merge", "-p", &taints], None).unwrap();
}

/// Creates a pod with this `spec`, which needs no container to run.
pub(super) fn create_pod(plane: &ControlPlane, name: &str, mut spec: Value) {
    spec["terminationGracePeriodSeconds"] = json!(0);
    spec["containers"] = json!([{"name": "c", "image": "none"}]);
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec});
    plane.kubectl(&["create", "-f", "-"], Some(&pod.to_string())).unwrap();
}

/// A pod, by its name.
pub(super) fn pod(plane: &ControlPlane, name: &str) -> Value {
    serde_json::from_str(&plane.kubectl(&["get", "pod", name, "-n", "default", "-o", "json"], None).unwrap()).unwrap()
}
