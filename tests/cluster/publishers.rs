//! Programs that publish labels and restart, on a node under NVIDIA's GPU operator.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::control_plane::exclusive;
use super::keeping::{config_maps, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};
use crate::eventually::{eventually, holds};

const NODE: &str = "publishers-1";

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

/// Some orders of the publishers; all of them are tested where a plan is made. nodegate writes to one node only a few times at once.
const ORDERS: [[usize; 4]; 3] = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]];

/// What rules have given.
fn given(node: &Value) -> Vec<(&str, Option<String>)> {
    let keys = ["gpu.vendor", "gpu.model", "gpu.count", "many", "present", "product", "pci", "memory", "configured"];
    let labels = keys.map(|key| (key, label(node, key).map(str::to_owned)));
    labels.into_iter().chain([("taints", Some(taints(node).join(",")))]).collect()
}

#[tokio::test]
async fn publishers_that_go_and_come_change_nothing() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let policies: &[&str] = &["tests/cluster/publishers.yaml"];
    let nodegate = Nodegate::start(plane, &Setup { policies, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let all: BTreeMap<_, _> = PUBLISHED.into_iter().flatten().copied().collect();
    let mut created = node(NODE, json!(all));
    created["status"] = json!({"capacity": {"cpu": "8", "nvidia.com/gpu": "12"}, "conditions": [{"type": "Ready", "status": "True",
        "lastHeartbeatTime": "2026-01-02T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    admin.create(&created).await.unwrap();
    // A node's CREATE stores no status unless its kubelet sends it.
    admin.merge_status(NODE, json!({"status": created["status"]})).await.unwrap();
    let maps = config_maps(plane, &nodegate.namespace).await;
    eventually("its publishers are recorded", async || {
        let record = super::keeping::state(&maps, NODE).await;
        holds(record["publishers"].as_array().is_some_and(|publishers| publishers.len() == 4), || record.to_string())
    })
    .await;
    let before = admin.eventually(NODE, "rules have given all", |node| label(node, "gpu.count") == Some("1")).await;
    let before = given(&before);
    let expected =
        [("many", None), ("product", Some("1")), ("pci", Some("1")), ("memory", Some("1")), ("configured", Some("1"))];
    for (key, value) in expected {
        assert!(before.contains(&(key, value.map(str::to_owned))), "{key}: {before:?}");
    }
    for (at, order) in ORDERS.into_iter().enumerate() {
        for sets in [false, true] {
            for publisher in order {
                // Admission sees writes to the node, and only the controller those to its status.
                let patch = patch(publisher, sets);
                let written =
                    if at % 2 == 0 { admin.merge(NODE, patch).await } else { admin.merge_status(NODE, patch).await };
                assert_eq!(given(&written.unwrap()), before, "{order:?}: {publisher} sets {sets}");
            }
            let step = format!("{at}-{sets}");
            admin.merge_status(NODE, json!({"metadata": {"labels": {"step": step}}})).await.unwrap();
            let seen = |node: &Value| label(node, "seen") == Some(&step);
            let node = admin.eventually(NODE, "the controller has seen it", seen).await;
            assert_eq!(given(&node), before, "{order:?}: all set {sets}");
        }
    }
}
