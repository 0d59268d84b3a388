//! The guide about GPU nodes with DRA, at a real API server.

use serde_json::{Value, json};

use super::commands::run;
use super::control_plane::exclusive;
use super::keeping::{node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, join};
use super::requester::label;
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
