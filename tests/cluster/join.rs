//! Nodes get their labels and taints in the object their CREATE returns.
#![allow(clippy::await_holding_lock, reason = "one test at a time uses the control plane")]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::control_plane::exclusive;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};

/// The Node documents of an example, by name.
pub(crate) fn example_nodes(example: &str) -> BTreeMap<String, Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example).join("nodes");
    let files = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut nodes = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for tree in nodegate_policy::api::source::parse_documents(&text).unwrap() {
            let node = tree.to_json();
            nodes.insert(node["metadata"]["name"].as_str().unwrap().to_owned(), node);
        }
    }
    assert!(!nodes.is_empty(), "{} has no nodes", directory.display());
    nodes
}

fn assert_labels(node: &Value, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(label(node, key), Some(*value), "{key} of {}", node["metadata"]["name"]);
    }
}

#[tokio::test]
async fn every_fako_node_carries_its_labels_in_the_object_the_create_returns() {
    let cluster = exclusive();
    let _nodegate =
        Nodegate::start(cluster.plane, &Setup { policies: &["examples/fako/policy.yaml"], ..Setup::default() });
    let dual_gpu = [
        ("nvidia.com/gpu", "true"),
        ("gpu.nvidia.present", "true"),
        ("gpu.count", "2"),
        ("gpu.rtx5070", "true"),
        ("gpu.rtx3050", "true"),
        ("accelerator", "nvidia-gpu"),
        ("hardware.tier", "dual-gpu"),
        ("node-type", "gpu-compute"),
    ];
    let fast = [("hardware.tier", "high-performance"), ("voice-pipeline", "enabled")];
    let standard = [("hardware.tier", "standard")];
    let expected: [(&str, &[(&str, &str)]); 7] = [
        ("yeezyai", &dual_gpu),
        ("pgbee", &fast),
        ("pgmac01", &fast),
        ("pgmac02", &fast),
        ("pglenovo01", &standard),
        ("pglenovo02", &standard),
        ("thinkpad01", &standard),
    ];
    let nodes = example_nodes("fako");
    assert_eq!(nodes.len(), expected.len());
    let admin = Requester::admin(cluster.plane).await;
    for (name, labels) in expected {
        admin.delete(name).await;
        let created = Requester::kubelet(cluster.plane, name).await.create(&nodes[name]).await.unwrap();
        assert_labels(&created, labels);
        // A kubelet may not carry role labels: in the patch they would have kept the node from joining.
        let keys = created["metadata"]["labels"].as_object().unwrap().keys();
        assert!(keys.clone().all(|key| !key.starts_with("node-role.kubernetes.io/")), "{name}: {keys:?}");
        assert!(
            taints(&created).iter().all(|taint| !taint.starts_with("nodegate.dev/")),
            "{name} is pending and nobody lifts it"
        );
        assert_eq!(admin.get(name).await["metadata"]["labels"], created["metadata"]["labels"]);
        admin.delete(name).await;
    }
}

#[tokio::test]
async fn llm_d_lab_control_planes_join_tainted_and_workers_are_labelled_with_their_role() {
    let cluster = exclusive();
    let _nodegate =
        Nodegate::start(cluster.plane, &Setup { policies: &["examples/llm-d-lab/policy.yaml"], ..Setup::default() });
    let admin = Requester::admin(cluster.plane).await;
    for (name, node) in example_nodes("llm-d-lab") {
        admin.delete(&name).await;
        let control_plane =
            taints(&node).iter().any(|taint| taint.starts_with("node-role.kubernetes.io/control-plane="));
        let created = Requester::kubelet(cluster.plane, &name).await.create(&node).await.unwrap();
        let tainted = taints(&created).contains(&"llm-d-lab=control-plane:NoSchedule".to_owned());
        assert_eq!(tainted, control_plane, "{name}: {:?}", taints(&created));
        if !control_plane {
            assert_eq!(label(&created, "llm-d-lab-deployer"), None, "{name} has no role yet");
            let worker = admin.label(&name, "node-role.kubernetes.io/worker", json!("")).await.unwrap();
            assert_eq!(
                label(&worker, "llm-d-lab-deployer"),
                Some("true"),
                "{name}: in the very write that gives the role"
            );
        }
        admin.delete(&name).await;
    }
}

#[tokio::test]
async fn a_restarted_kubelet_gets_conflict_and_its_node_is_unchanged() {
    let cluster = exclusive();
    let nodegate =
        Nodegate::start(cluster.plane, &Setup { policies: &["examples/fako/policy.yaml"], ..Setup::default() });
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "pgbee").await);
    admin.delete("pgbee").await;
    let node = &example_nodes("fako")["pgbee"];
    kubelet.create(node).await.unwrap();
    let before = admin.get("pgbee").await;
    let calls = nodegate.requests("mutate");
    assert_eq!(kubelet.create(node).await.unwrap_err().code, 409);
    assert!(nodegate.requests("mutate") > calls, "the restart's CREATE is reviewed");
    assert_eq!(admin.get("pgbee").await, before);
    admin.delete("pgbee").await;
}

#[tokio::test]
async fn a_recreated_node_has_its_persisted_labels_and_taints_from_the_start() {
    let cluster = exclusive();
    let state = r#"{"nodeName": "kept-1", "labels": {"persist.demo/type": "expensive", "other": "x", "kubernetes.io/hostname": "old"},
        "capturedAt": "2026-01-14T17:00:00Z", "taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]}"#;
    let setup = Setup { policies: &["tests/cluster/persist.yaml"], state: &[("kept-1", state)], ..Setup::default() };
    let _nodegate = Nodegate::start(cluster.plane, &setup);
    let admin = Requester::admin(cluster.plane).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "kept-1", "labels": {"kubernetes.io/hostname": "kept-1"}}});
    let created = Requester::kubelet(cluster.plane, "kept-1").await.create(&node).await.unwrap();
    assert_labels(&created, &[("persist.demo/type", "expensive"), ("kubernetes.io/hostname", "kept-1")]);
    assert_eq!(label(&created, "other"), None, "no persist section names it");
    assert!(taints(&created).contains(&"dedicated=ml:NoSchedule".to_owned()));
    admin.delete("kept-1").await;
}

#[tokio::test]
async fn the_cloud_controllers_write_sets_the_labels_of_the_instance_type() {
    let cluster = exclusive();
    let _nodegate =
        Nodegate::start(cluster.plane, &Setup { policies: &["tests/cluster/instance-type.yaml"], ..Setup::default() });
    let admin = Requester::admin(cluster.plane).await;
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "cloud-1", "labels": {"kubernetes.io/hostname": "cloud-1"}},
        "spec": {"taints": [{"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}]},
    });
    let mut created = Requester::kubelet(cluster.plane, "cloud-1").await.create(&node).await.unwrap();
    assert_eq!(label(&created, "gpu.count"), None, "nothing is known of the machine yet");
    // What k8s.io/cloud-provider's node controller writes in one update.
    created["spec"]["providerID"] = json!("aws:///eu-central-1a/i-0123456789abcdef0");
    let taints_left: Vec<Value> = created["spec"]["taints"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|taint| taint["key"] != "node.cloudprovider.kubernetes.io/uninitialized")
        .cloned()
        .collect();
    created["spec"]["taints"] = json!(taints_left);
    for (key, value) in
        [("node.kubernetes.io/instance-type", "p4d.24xlarge"), ("topology.kubernetes.io/zone", "eu-central-1a")]
    {
        created["metadata"]["labels"][key] = json!(value);
    }
    let cloud = Requester::user(cluster.plane, "system:cloud-controller-manager", &["system:masters"]).await;
    let updated = cloud.replace(&created).await.unwrap();
    assert_labels(
        &updated,
        &[
            ("gpu.count", "8"),
            ("gpu.model", "a100-sxm4-40gb"),
            ("accelerator", "nvidia-gpu"),
            ("tier.example.com/class", "dense"),
        ],
    );
    assert!(taints(&updated).contains(&"nvidia.com/gpu=present:NoSchedule".to_owned()), "{:?}", taints(&updated));
    admin.delete("cloud-1").await;
}

#[tokio::test]
async fn heartbeats_and_cordons_and_condition_taints_make_no_call() {
    let cluster = exclusive();
    let nodegate =
        Nodegate::start(cluster.plane, &Setup { policies: &["examples/fako/policy.yaml"], ..Setup::default() });
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "pgmac01").await);
    admin.delete("pgmac01").await;
    kubelet.create(&example_nodes("fako")["pgmac01"]).await.unwrap();
    let calls = (nodegate.requests("mutate"), nodegate.requests("validate"));
    for minute in 10..15 {
        let condition = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
            "lastHeartbeatTime": format!("2026-11-20T22:{minute}:00Z"), "lastTransitionTime": "2026-11-20T22:00:00Z"});
        kubelet.merge_status("pgmac01", json!({"status": {"conditions": [condition]}})).await.unwrap();
    }
    assert_eq!((nodegate.requests("mutate"), nodegate.requests("validate")), calls, "a heartbeat made a call");
    admin.merge("pgmac01", json!({"spec": {"unschedulable": true}})).await.unwrap();
    assert_eq!((nodegate.requests("mutate"), nodegate.requests("validate")), calls, "a cordon made a call");
    let unreachable = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]);
    admin.merge("pgmac01", json!({"spec": {"taints": unreachable}})).await.unwrap();
    assert_eq!(nodegate.requests("mutate"), calls.0, "a condition taint made a mutating call");
    admin.delete("pgmac01").await;
}
