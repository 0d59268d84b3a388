//! A Node of the API server, of which only a few fields are read.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;

use super::news;
use nodegate_policy::PendingTaints;

/// A Node. Its kubelet decides how large the rest of it is.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = Node)]
pub(super) struct NodeObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    taints: Option<Vec<Taint>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Taint {
    key: String,
    effect: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Option<Vec<Condition>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

impl NodeObject {
    /// What is kept of it.
    pub(super) fn read(&self, pending: &PendingTaints) -> news::Node {
        let taints = self.spec.taints.iter().flatten();
        let mut held = taints.filter(|taint| {
            pending.all().iter().any(|id| id.key.as_str() == taint.key && id.effect.as_str() == taint.effect)
        });
        let conditions = self.status.conditions.iter().flatten();
        news::Node {
            name: Arc::from(self.name_any()),
            uid: self.metadata.uid.clone().unwrap_or_default().into(),
            created: self.metadata.creation_timestamp.as_ref().map(|time| time.0),
            is_ready: conditions.into_iter().any(|one| one.r#type == "Ready" && one.status == "True"),
            pending: held.next().map(|taint| Arc::from(taint.key.as_str())),
        }
    }
}
