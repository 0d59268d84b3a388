//! What tests with real autoscalers and schedulers share: pods that come in bursts, and what kubelets do.

use std::collections::BTreeSet;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{Config, Event, watcher};
use serde_json::json;
use tokio::task::JoinSet;

use super::control_plane::ControlPlane;

pub(super) const ACCELERATOR: &str = "example.com/accelerator";
pub(super) const ROLE: &str = "node-role.kubernetes.io/fleet";
/// How many pods come at once, unless `NODEGATE_BURST` says it. Each needs a machine of its own.
pub(super) const BURST: u64 = 50;
/// How many bursts come, unless `NODEGATE_BURSTS` says it.
pub(super) const BURSTS: u64 = 2;

/// What kubelets do after they have created their nodes, whose names begin so: each becomes Ready once.
pub(super) async fn kubelets(plane: &ControlPlane, names: &'static str) -> JoinSet<()> {
    let (api, mut task) = (Api::<Node>::all(plane.client(None).await), JoinSet::new());
    task.spawn(async move {
        let mut events = std::pin::pin!(watcher(api.clone(), Config::default()));
        let mut ready = BTreeSet::new();
        while let Some(event) = events.next().await {
            let Ok(Event::Apply(node) | Event::InitApply(node)) = event else { continue };
            let Some(name) = node.metadata.name.filter(|name| name.starts_with(names)) else { continue };
            if ready.insert(name.clone()) {
                let condition = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                    "lastHeartbeatTime": "2026-11-21T00:00:00Z", "lastTransitionTime": "2026-11-21T00:00:00Z"}]);
                let status = Patch::Merge(json!({"status": {"conditions": condition}}));
                api.patch_status(&name, &PatchParams::default(), &status).await.unwrap();
            }
            // The node lifecycle controller's part.
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            if let Some(at) = taints.iter().position(|taint| taint.key == "node.kubernetes.io/not-ready") {
                let path = format!("/spec/taints/{at}");
                let operations = json!([{"op": "test", "path": format!("{path}/key"), "value": "node.kubernetes.io/not-ready"},
                    {"op": "remove", "path": path}]);
                // If the taints have changed meanwhile, the next event comes.
                let operations: json_patch::Patch = serde_json::from_value(operations).unwrap();
                let _ = api.patch(&name, &PatchParams::default(), &Patch::<()>::Json(operations)).await;
            }
        }
    });
    task
}

/// Creates so many pods, each as large as a machine of 4 CPUs. With `needs_label` they go only to nodes with what nodegate gives.
pub(super) async fn burst(pods: &Api<Pod>, number: u64, size: u64, needs_label: bool) {
    let selector = if needs_label { json!({ACCELERATOR: "h100", ROLE: ""}) } else { json!({}) };
    let each = |at| {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": format!("pod-{number}-{at}")}, "spec": {
            "nodeSelector": selector, "tolerations": [{"key": "example.com/dedicated", "operator": "Exists"}],
            "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "3"}}}]}}))
        .unwrap();
        async move { pods.create(&PostParams::default(), &pod).await.unwrap() }
    };
    stream::iter(0..size).map(each).buffer_unordered(10).collect::<Vec<_>>().await;
}

/// How many pods have a node.
pub(super) async fn bound(pods: &Api<Pod>) -> usize {
    let pods = pods.list(&ListParams::default()).await.unwrap();
    pods.items.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())).count()
}
