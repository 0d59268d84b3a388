//! What goes wrong in a real cluster. After each: every node has what it should, and nothing is pending.

mod api_server;
mod chaos;
mod clock;
mod flapping;
mod joins;
mod people;
mod records;
mod replicas;
mod restored;
mod soak;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::keeping::{is_pending, node};
use super::nodegate::Nodegate;
use super::requester::{Requester, label, taints};
use crate::eventually::{eventually, holds};

/// The label that is saved: its value is the node's name.
const OWN: &str = "persist.demo/own";
const POLICY: &[&str] = &["tests/cluster/keeping.yaml"];

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{prefix}-{at}")).collect()
}

async fn join_all(plane: &ControlPlane, names: &[String]) {
    for name in names {
        Requester::kubelet(plane, name).await.create(&node(name, json!({OWN: name}))).await.unwrap();
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

/// Whether it also has the label that is saved. A node that was created while no replica answered gets that from the
/// leader, possibly after a webhook has added the rest to another write.
fn is_whole(node: &Value) -> bool {
    is_right(node) && label(node, OWN) == node["metadata"]["name"].as_str()
}

async fn all_right(admin: &Requester, names: &[String]) {
    for name in names {
        admin.eventually(name, "exactly as it should be, with the label that was saved", is_whole).await;
    }
}

/// The messages of all events with a reason, each after the name of its node.
fn events(plane: &ControlPlane, reason: &str) -> String {
    let path =
        format!("jsonpath={{range .items[?(@.reason==\"{reason}\")]}}{{.involvedObject.name}}: {{.message}} {{end}}");
    plane.kubectl(&["get", "events", "-A", "-o", &path], None).unwrap()
}

/// Waits until an event with a reason names a node; the messages of all with this reason.
async fn until_told(plane: &ControlPlane, nodegate: &Nodegate<'_>, node: &str, reason: &str) -> String {
    eventually(&format!("an event {reason} names {node}"), async || {
        let told = events(plane, reason);
        if told.contains(&format!("{node}: ")) { Ok(told) } else { Err(format!("{told}\n{}", nodegate.log())) }
    })
    .await
}

/// Waits until a new admission policy acts, which denies this user a ConfigMap of this name: asks with dry runs.
async fn until_denied(plane: &ControlPlane, user: Option<&str>, name: &str) {
    let impersonated: Option<(&str, &[&str])> = user.map(|user| (user, &["system:masters"] as &[&str]));
    let maps: Api<ConfigMap> = Api::default_namespaced(plane.client(impersonated).await);
    let map = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    eventually(&format!("the API server denies {name}"), async || {
        let answer = format!("{:?}", maps.create(&dry_run, &map).await);
        holds(answer.contains("ValidatingAdmissionPolicy"), || answer)
    })
    .await;
}
