//! Writes to nodes as a kubelet, an administrator or anybody else.

use std::collections::BTreeMap;

use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use crate::eventually::eventually;

/// Somebody who writes to nodes. Objects are plain JSON, so that nothing is lost on the way.
pub(crate) struct Requester {
    nodes: Api<DynamicObject>,
}

/// How a node is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Merge,
    Strategic,
    Json,
    Put,
    Apply,
}

impl Way {
    pub(crate) const ALL: [Self; 5] = [Self::Merge, Self::Strategic, Self::Json, Self::Put, Self::Apply];
}

/// What the API server refused, and why; with the code 0 if it did not answer.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) message: String,
}

pub(crate) type Outcome = Result<Value, Refusal>;

fn outcome(result: Result<DynamicObject, kube::Error>) -> Outcome {
    match result {
        Ok(node) => Ok(serde_json::to_value(node).unwrap()),
        Err(kube::Error::Api(status)) => Err(Refusal { code: status.code, message: status.message.clone() }),
        // Not a status of HTTP, so that no test takes it for a refusal.
        Err(other) => Err(Refusal { code: 0, message: other.to_string() }),
    }
}

impl Requester {
    async fn new(plane: &ControlPlane, impersonate: Option<(&str, &[&str])>) -> Self {
        let client = plane.client(impersonate).await;
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&());
        Self { nodes: Api::all_with(client, &resource) }
    }

    /// A cluster administrator.
    pub(crate) async fn admin(plane: &ControlPlane) -> Self {
        Self::new(plane, None).await
    }

    /// The kubelet of a node.
    pub(crate) async fn kubelet(plane: &ControlPlane, node: &str) -> Self {
        Self::new(plane, Some((&format!("system:node:{node}"), &["system:nodes", "system:authenticated"]))).await
    }

    /// Any user. He needs rights: these tests give them by the group `system:masters` or by RBAC.
    pub(crate) async fn user(plane: &ControlPlane, name: &str, groups: &[&str]) -> Self {
        Self::new(plane, Some((name, groups))).await
    }

    pub(crate) async fn create(&self, node: &Value) -> Outcome {
        let node: DynamicObject = serde_json::from_value(node.clone()).unwrap();
        outcome(self.nodes.create(&PostParams::default(), &node).await)
    }

    pub(crate) async fn get(&self, name: &str) -> Value {
        serde_json::to_value(self.nodes.get(name).await.unwrap()).unwrap()
    }

    /// Waits until the API server's cache has the stored version of a node ([`until_cached`]).
    pub(crate) async fn until_cached(&self, name: &str) {
        let node = self.get(name).await;
        until_cached(&self.nodes.clone().into_client(), &node).await;
    }

    /// Waits until a node is as it should be.
    pub(crate) async fn eventually(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{name}: {what}"), async || {
            let node = self.get(name).await;
            if holds(&node) { Ok(node) } else { Err(format!("{node:#}")) }
        })
        .await
    }

    /// A merge patch of `nodes`.
    pub(crate) async fn merge(&self, name: &str, patch: Value) -> Outcome {
        outcome(self.nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await)
    }

    /// A merge patch of `nodes/status`.
    pub(crate) async fn merge_status(&self, name: &str, patch: Value) -> Outcome {
        outcome(self.nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await)
    }

    /// The same by a client that calls itself so.
    pub(crate) async fn merge_status_as(&self, name: &str, patch: Value, manager: &str) -> Outcome {
        let parameters = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        outcome(self.nodes.patch_status(name, &parameters, &Patch::Merge(patch)).await)
    }

    /// Sets (or with null removes) one label through `nodes`.
    pub(crate) async fn label(&self, name: &str, key: &str, value: Value) -> Outcome {
        self.merge(name, json!({"metadata": {"labels": {key: value}}})).await
    }

    /// Makes labels what is given, `None` for absent, in any of the ways; those not named stay but in an apply, where they go
    /// if they came by an apply.
    pub(crate) async fn set_labels(
        &self,
        name: &str,
        way: Way,
        status: bool,
        labels: &BTreeMap<String, Option<String>>,
    ) -> Outcome {
        let there: BTreeMap<&String, &String> =
            labels.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))).collect();
        let merge = json!({"metadata": {"labels": labels}});
        let patch: Patch<Value> = match way {
            Way::Merge => Patch::Merge(merge),
            Way::Strategic => Patch::Strategic(merge),
            Way::Json => {
                let now = self.get(name).await;
                let mut operations = Vec::new();
                if now["metadata"]["labels"].is_null() {
                    operations.push(json!({"op": "add", "path": "/metadata/labels", "value": {}}));
                }
                for (key, value) in labels {
                    let path = format!("/metadata/labels/{}", key.replace('/', "~1"));
                    match value {
                        Some(value) => operations.push(json!({"op": "add", "path": path, "value": value})),
                        None if now["metadata"]["labels"][key].is_string() => {
                            operations.push(json!({"op": "remove", "path": path}));
                        }
                        None => {}
                    }
                }
                Patch::Json(serde_json::from_value(Value::Array(operations)).unwrap())
            }
            Way::Apply => {
                Patch::Apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": there}}))
            }
            Way::Put => {
                let mut node = self.get(name).await;
                for (key, value) in labels {
                    match value {
                        Some(value) => node["metadata"]["labels"][key] = json!(value),
                        None => {
                            node["metadata"]["labels"].as_object_mut().map(|labels| labels.remove(key));
                        }
                    }
                }
                let object: DynamicObject = serde_json::from_value(node).unwrap();
                let parameters = PostParams::default();
                return outcome(match status {
                    false => self.nodes.replace(name, &parameters, &object).await,
                    true => self.nodes.replace_status(name, &parameters, &object).await,
                });
            }
        };
        let parameters = match way {
            Way::Apply => PatchParams::apply("tests").force(),
            _ => PatchParams::default(),
        };
        outcome(match status {
            false => self.nodes.patch(name, &parameters, &patch).await,
            true => self.nodes.patch_status(name, &parameters, &patch).await,
        })
    }

    /// Replaces the whole node, as the cloud controller manager does.
    pub(crate) async fn replace(&self, node: &Value) -> Outcome {
        let name = node["metadata"]["name"].as_str().unwrap();
        let object: DynamicObject = serde_json::from_value(node.clone()).unwrap();
        outcome(self.nodes.replace(name, &PostParams::default(), &object).await)
    }

    /// Deletes a node, or is refused.
    pub(crate) async fn try_delete(&self, name: &str) -> Result<(), Refusal> {
        match self.nodes.delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) => Err(Refusal { code: status.code, message: status.message.clone() }),
            Err(other) => panic!("{other}"),
        }
    }

    /// Deletes a node if it is there.
    pub(crate) async fn delete(&self, name: &str) {
        let _ = self.nodes.delete(name, &DeleteParams::default()).await;
    }
}

/// A taint of a node as `key=value:Effect`, sorted.
pub(crate) fn taints(node: &Value) -> Vec<String> {
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let text = |taint: &Value, field: &str| taint[field].as_str().unwrap_or_default().to_owned();
    let mut texts: Vec<String> = taints
        .iter()
        .map(|taint| format!("{}={}:{}", text(taint, "key"), text(taint, "value"), text(taint, "effect")))
        .collect();
    texts.sort();
    texts
}

/// A label of a node.
pub(crate) fn label<'a>(node: &'a Value, key: &str) -> Option<&'a str> {
    node["metadata"]["labels"][key].as_str()
}

/// Waits until the API server's cache has this version of a node. A patch begins with the cached node; if that is older than the
/// stored one, the API server admits the patch of either: webhooks are called twice, and the client gets the warnings of both
/// (`GuaranteedUpdate` of `k8s.io/apiserver/pkg/storage/cacher`).
pub(crate) async fn until_cached(client: &Client, node: &Value) {
    let [name, version] = ["name", "resourceVersion"].map(|field| node["metadata"][field].as_str().unwrap());
    let request = hyper::Request::get(format!("/api/v1/nodes/{name}?resourceVersion={version}"));
    client.request_text(request.body(Vec::new()).unwrap()).await.unwrap();
}
