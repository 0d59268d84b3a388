//! Pods that wait for a node, and a node that joins, before the real scheduler.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;

/// How many pods wait.
pub(crate) const PODS: usize = 50;

/// Pods that wait for any node they may run on. Gone when [`Waiting::clear`] is called.
pub(crate) struct Waiting {
    pods: Api<Pod>,
    nodes: Api<DynamicObject>,
    plane: &'static ControlPlane,
}

impl Waiting {
    /// Makes the pods. `tolerate_not_ready`: as where no node lifecycle controller has to see the node first.
    pub(crate) async fn start(plane: &'static ControlPlane, tolerate_not_ready: bool) -> Self {
        let client = plane.client(None).await;
        let nodes = Api::all_with(client.clone(), &ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()));
        let waiting = Self { pods: Api::namespaced(client, "default"), nodes, plane };
        let tolerations = if tolerate_not_ready {
            json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}])
        } else {
            json!([])
        };
        for at in 0..PODS {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": format!("waiting-{at}")},
                "spec": {"tolerations": tolerations, "containers": [{"name": "c", "image": "none"}]},
            }))
            .unwrap();
            waiting.pods.create(&PostParams::default(), &pod).await.unwrap();
        }
        waiting
    }

    /// A node joins, by its own kubelet, Ready and with room for all.
    pub(crate) async fn join(&self, name: &str) -> Value {
        let room = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
        let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
            "lastHeartbeatTime": "2026-11-21T00:00:00Z", "lastTransitionTime": "2026-11-21T00:00:00Z"}]);
        let node: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"capacity": room, "allocatable": room, "conditions": ready},
        }))
        .unwrap();
        let kubelet = self.plane.client(Some((&format!("system:node:{name}"), &["system:nodes"]))).await;
        let api: Api<DynamicObject> =
            Api::all_with(kubelet, &ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()));
        let created = api.create(&PostParams::default(), &node).await.unwrap();
        serde_json::to_value(created).unwrap()
    }

    /// How many pods are bound to a node.
    pub(crate) async fn bound(&self, node: &str) -> usize {
        let pods = self.pods.list(&ListParams::default()).await.unwrap();
        let is_there = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        pods.items.iter().filter(is_there).count()
    }

    /// Removes the pods and these nodes.
    pub(crate) async fn clear(self, nodes: &[&str]) {
        let now = DeleteParams::default().grace_period(0);
        for at in 0..PODS {
            let _ = self.pods.delete(&format!("waiting-{at}"), &now).await;
        }
        for node in nodes {
            let _ = self.nodes.delete(node, &DeleteParams::default()).await;
        }
    }
}
