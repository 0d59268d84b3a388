//! The guide about GPU nodes with DRA, at a real API server.

use serde_json::{Value, json};

use super::commands::run;
use super::control_plane::exclusive;
use super::keeping::{node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, join};
use super::requester::{Requester, label};
use crate::shared::guides::block;

fn slice(node: &str, gpus: usize) -> Value {
    let gpu = |at| {
        json!({"name": format!("gpu-{at}"), "attributes": {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA H100 80GB HBM3"}},
            "capacity": {"memory": {"value": "81559Mi"}}})
    };
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node}, "spec": {
        "driver": "gpu.nvidia.com", "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": (0..gpus).map(gpu).collect::<Vec<_>>()}})
}

#[tokio::test]
async fn labels_of_gpus_are_there_at_the_join_and_are_compared_with_resource_slices() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy.yaml").display().to_string();
    std::fs::write(&policy, block("gpu-dra", "kind: NodePolicy")).unwrap();
    let mut nodegate = Nodegate::start(plane, &Setup { policies: &[&policy], cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    for name in ["h100-1", "h100-2", "h100-3"] {
        let born = join(plane, &node(name, json!({})), Credential::default(), false).await.unwrap();
        assert_eq!(label(&born, "nvidia.com/gpu.product"), Some("NVIDIA-H100-80GB-HBM3"), "{born:#}");
    }
    let slices = json!({"apiVersion": "v1", "kind": "List", "items": [slice("h100-1", 8), slice("h100-2", 7)]});
    plane.kubectl(&["apply", "-f", "-"], Some(&slices.to_string())).unwrap();
    let text = run(plane, None, &["report", "--namespace", &nodegate.namespace]).with(0);
    let shown = block("gpu-dra", "GPU labels that differ");
    assert!(text.contains(&shown), "the guide shows\n{shown}\nbut the report is\n{text}");
    plane.kubectl(&["delete", "resourceslices", "--all"], None).unwrap();
    nodegate.terminate();
}

/// What `nodegate report` compares is for labels of pools; here the devices themselves give the labels.
#[tokio::test]
async fn labels_follow_what_drivers_publish_and_stay_while_a_driver_restarts() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let admin = Requester::admin(plane).await;
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy.yaml").display().to_string();
    // A minute later, what is removed here is removed with the guide's policy.
    let text = block("gpu-dra", "name: dra-devices").replace("- name: gpus\n", "- name: gpus\n      removeAfter: 1s\n");
    std::fs::write(&policy, text).unwrap();
    let apply = |slice: &Value| plane.kubectl(&["apply", "-f", "-"], Some(&slice.to_string())).unwrap();
    apply(&slice("h100-1", 8));
    let mut nodegate = Nodegate::start(plane, &Setup { policies: &[&policy], cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let born = join(plane, &node("h100-1", json!({})), Credential::default(), false).await.unwrap();
    assert_eq!(label(&born, "nvidia.com/gpu.count"), None, "admission does not know devices: {born:#}");
    join(plane, &node("cpu-1", json!({})), Credential::default(), false).await.unwrap();
    let has = |count: &'static str| move |node: &Value| label(node, "nvidia.com/gpu.count") == Some(count);
    let given = admin.eventually("h100-1", "eight GPUs", has("8")).await;
    assert_eq!(label(&given, "nvidia.com/gpu.product"), Some("NVIDIA-H100-80GB-HBM3"));
    apply(&slice("h100-1", 7));
    admin.eventually("h100-1", "one is lost", has("7")).await;
    let explained =
        run(plane, None, &["explain", "h100-1", "nvidia.com/gpu.count", "--namespace", &nodegate.namespace]);
    assert!(explained.with(0).contains("dra-devices/gpus"));
    run(plane, None, &["plan", "--exit-code", "--namespace", &nodegate.namespace]).with(0);

    plane.kubectl(&["delete", "resourceslices", "--all"], None).unwrap();
    nodegate.until_resynced(2).await;
    assert!(has("7")(&admin.get("h100-1").await), "it is not known what it has");
    assert_eq!(label(&admin.get("cpu-1").await, "nvidia.com/gpu.count"), None);
    let mut others = slice("h100-1", 1);
    others["spec"]["driver"] = json!("other.example.com");
    apply(&others);
    admin.eventually("h100-1", "it has no GPU", |node| label(node, "nvidia.com/gpu.count").is_none()).await;
    plane.kubectl(&["delete", "resourceslices", "--all"], None).unwrap();
    nodegate.terminate();
}
