//! Programs that publish labels and restart, on a node under NVIDIA's GPU operator.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::{Value, json};

use super::control_plane::exclusive;
use super::keeping::{config_maps, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};
use crate::eventually::{eventually, holds};

/// The labels of GPU Feature Discovery, Node Feature Discovery, the GPU operator and the MIG manager. The only GPU is shared by
/// twelve pods.
const PUBLISHED: [&[(&str, &str)]; 4] = [
    &[
        ("nvidia.com/gpu.product", "NVIDIA-A10G-SHARED"),
        ("nvidia.com/gpu.count", "1"),
        ("nvidia.com/gpu.replicas", "12"),
        ("nvidia.com/gpu.memory", "23028"),
    ],
    &[("feature.node.kubernetes.io/pci-0302_10de.present", "true"), ("feature.node.kubernetes.io/cpu-model.id", "1")],
    &[("nvidia.com/gpu.present", "true"), ("nvidia.com/gpu.deploy.device-plugin", "true")],
    &[("nvidia.com/mig.config.state", "success")],
];

/// The patch with which a publisher sets its labels, or takes them away.
fn patch(publisher: usize, sets: bool) -> Value {
    let labels = PUBLISHED[publisher].iter().map(|(key, value)| (*key, if sets { json!(value) } else { Value::Null }));
    json!({"metadata": {"labels": labels.collect::<BTreeMap<_, _>>()}})
}

/// All orders of the publishers.
fn orders() -> Vec<Vec<usize>> {
    (0..PUBLISHED.len()).fold(vec![Vec::new()], |orders, _| {
        let longer = |order: &Vec<usize>| {
            let rest = (0..PUBLISHED.len()).filter(|at| !order.contains(at));
            rest.map(|at| [order.as_slice(), &[at]].concat()).collect::<Vec<_>>()
        };
        orders.iter().flat_map(longer).collect()
    })
}

/// What rules have given.
fn given(node: &Value) -> Vec<(&'static str, Option<String>)> {
    let keys = ["gpu.vendor", "gpu.model", "gpu.count", "many", "present", "product", "pci", "memory", "configured"];
    let labels = keys.map(|key| (key, label(node, key).map(str::to_owned)));
    labels.into_iter().chain([("taints", Some(taints(node).join(",")))]).collect()
}

#[tokio::test]
async fn publishers_that_go_and_come_in_any_order_change_nothing() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let policies: &[&str] = &["tests/cluster/publishers.yaml"];
    let nodegate = Nodegate::start(plane, &Setup { policies, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let maps = config_maps(plane, &nodegate.namespace).await;
    // A node for each order, because nodegate writes to one node only a few times a minute.
    for (at, order) in orders().into_iter().enumerate() {
        let name = format!("publishers-{at}");
        let before = joined(&admin, &maps, &name).await;
        for sets in [false, true] {
            for publisher in &order {
                // Admission sees writes to the node, and only the controller those to its status.
                let patch = patch(*publisher, sets);
                let written =
                    if at % 2 == 0 { admin.merge(&name, patch).await } else { admin.merge_status(&name, patch).await };
                assert_eq!(given(&written.unwrap()), before, "{order:?}: {publisher} sets {sets}");
            }
            let step = sets.to_string();
            admin.merge_status(&name, json!({"metadata": {"labels": {"step": step}}})).await.unwrap();
            let seen = |node: &Value| label(node, "seen") == Some(&step);
            let node = admin.eventually(&name, "the controller has seen it", seen).await;
            assert_eq!(given(&node), before, "{order:?}: all set {sets}");
        }
    }
}

/// Creates a node with the labels of all publishers: what rules have given once these are recorded.
async fn joined(admin: &Requester, maps: &Api<ConfigMap>, name: &str) -> Vec<(&'static str, Option<String>)> {
    let all: BTreeMap<_, _> = PUBLISHED.into_iter().flatten().copied().collect();
    let mut created = node(name, json!(all));
    created["status"] = json!({"capacity": {"cpu": "8", "nvidia.com/gpu": "12"}, "conditions": [{"type": "Ready", "status": "True",
        "lastHeartbeatTime": "2026-01-02T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    admin.create(&created).await.unwrap();
    // A node's CREATE stores no status unless its kubelet sends it.
    admin.merge_status(name, json!({"status": created["status"]})).await.unwrap();
    eventually("its publishers are recorded", async || {
        let record = super::keeping::state(maps, name).await;
        holds(record["publishers"].as_array().is_some_and(|publishers| publishers.len() == 4), || record.to_string())
    })
    .await;
    let before = admin.eventually(name, "rules have given all", |node| label(node, "gpu.count") == Some("1")).await;
    let before = given(&before);
    let expected =
        [("many", None), ("product", Some("1")), ("pci", Some("1")), ("memory", Some("1")), ("configured", Some("1"))];
    for (key, value) in expected {
        assert!(before.contains(&(key, value.map(str::to_owned))), "{key}: {before:?}");
    }
    before
}
