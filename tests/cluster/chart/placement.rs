//! On which nodes the real scheduler puts the chart's pods.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{Objects, items};
use crate::control_plane::{ControlPlane, exclusive};
use crate::eventually::eventually;

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// A node, Ready, with room for all.
fn node(name: &str, is_control_plane: bool, zone: Option<&str>) -> Node {
    let room = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    if is_control_plane {
        node["metadata"]["labels"][CONTROL_PLANE] = json!("");
        node["spec"] = json!({"taints": [{"key": CONTROL_PLANE, "effect": "NoSchedule"}]});
    }
    if let Some(zone) = zone {
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!(zone);
    }
    serde_json::from_value(node).unwrap()
}

/// A pod of the Deployment as its controller makes it, without what only a kubelet needs.
fn pod(template: &Value, at: usize) -> Pod {
    let mut pod = template.clone();
    pod["metadata"]["name"] = json!(format!("replica-{at}"));
    pod["metadata"]["labels"]["pod-template-hash"] = json!("h");
    for field in ["serviceAccountName", "volumes", "imagePullSecrets"] {
        pod["spec"].as_object_mut().unwrap().remove(field);
    }
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    for container in pod["spec"]["containers"].as_array_mut().unwrap() {
        container.as_object_mut().unwrap().remove("volumeMounts");
    }
    serde_json::from_value(pod).unwrap()
}

/// The nodes that three replicas get, one after the other.
async fn placed(plane: &ControlPlane, template: &Value, nodes: &[Node]) -> Vec<String> {
    let client = plane.client(None).await;
    let (fleet, pods): (Api<Node>, Api<Pod>) = (Api::all(client.clone()), Api::namespaced(client, "default"));
    for node in nodes {
        fleet.create(&PostParams::default(), node).await.unwrap();
        // The API server gives each new node the taint `not-ready`, and no node lifecycle controller takes it away here.
        let own = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let patch = Patch::Merge(json!({"spec": {"taints": own}}));
        let name = node.metadata.name.as_deref().unwrap();
        fleet.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
    let bound = async || {
        let all = pods.list(&ListParams::default()).await.unwrap();
        all.items.into_iter().filter_map(|pod| pod.spec?.node_name).collect::<Vec<_>>()
    };
    for at in 1..=3 {
        pods.create(&PostParams::default(), &pod(template, at)).await.unwrap();
        eventually("the scheduler binds the replica", async || {
            let bound = bound().await;
            if bound.len() == at { Ok(()) } else { Err(bound.join(", ")) }
        })
        .await;
    }
    let places = bound().await;
    for at in 1..=3 {
        pods.delete(&format!("replica-{at}"), &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    for node in nodes {
        fleet.delete(node.metadata.name.as_deref().unwrap(), &DeleteParams::default()).await.unwrap();
    }
    places
}

#[test]
fn pods_prefer_control_plane_nodes_unless_told_otherwise() {
    let Some(objects) = Objects::render(&json!({})) else { return };
    let preferred =
        &objects.pod()["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    let expression = json!({"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"});
    assert_eq!(preferred[0]["preference"]["matchExpressions"], json!([expression]));
    assert_eq!(preferred[1]["weight"], preferred[0]["weight"], "half of what keeps pods apart");
    let apart =
        &objects.pod()["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    for term in items(apart) {
        // Otherwise the pods of the version before would count in a rolling update.
        assert_eq!(term["podAffinityTerm"]["matchLabelKeys"], json!(["pod-template-hash"]));
    }
    let own = json!({"podAntiAffinity": {}});
    let Some(objects) = Objects::render(&json!({"affinity": own})) else { return };
    assert_eq!(objects.pod()["spec"]["affinity"], own);
}

/// With spread constraints alone, all replicas stood on one node where nodes have no zone, as with kubeadm and on bare metal: the
/// scheduler ignores nodes that lack the label of a constraint.
#[tokio::test]
async fn replicas_share_a_node_only_if_there_is_no_other() {
    let Some(objects) = Objects::render(&json!({})) else { return };
    let cluster = exclusive();
    let _scheduler = cluster.plane.component("kube-scheduler", &[]);
    let template = objects.pod();
    let worker = |name: &str| node(name, false, None);
    let control_plane = |name: &str| node(name, true, None);
    for (nodes, expected) in [
        (vec![control_plane("cp-1"), worker("w-1"), worker("w-2")], 3),
        (vec![worker("w-1"), worker("w-2")], 2),
        (vec![control_plane("cp-1"), worker("w-1")], 2),
        (vec![worker("w-1")], 1),
        (vec![node("cp-1", true, Some("a")), worker("w-1"), worker("w-2")], 3),
        (vec![node("z-1", false, Some("a")), worker("w-1")], 2),
        ((1..=4).map(|at| node(&format!("z-{at}"), false, Some(if at < 4 { "a" } else { "b" }))).collect(), 3),
    ] {
        let names: Vec<&str> = nodes.iter().filter_map(|node| node.metadata.name.as_deref()).collect();
        let places = placed(cluster.plane, template, &nodes).await;
        let different: BTreeSet<&String> = places.iter().collect();
        assert_eq!(different.len(), expected, "{places:?} of {names:?}");
        assert!(!names.contains(&"z-4") || places.iter().any(|place| place == "z-4"), "{places:?}: both zones");
    }
    let several = ["cp-1", "cp-2", "cp-3"].map(control_plane).into_iter().chain(["w-1", "w-2", "w-3"].map(worker));
    let mut places = placed(cluster.plane, template, &several.collect::<Vec<_>>()).await;
    places.sort_unstable();
    assert_eq!(places, ["cp-1", "cp-2", "cp-3"]);
}
