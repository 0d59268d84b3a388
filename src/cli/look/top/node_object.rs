//! A Node of the API server, of which only a few fields are read.

use std::borrow::Cow;
use std::sync::Arc;

use kube::core::{ClusterResourceScope, ObjectMeta};
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;

use super::news::Node;
use nodegate_policy::PendingTaints;

/// A Node. Its kubelet decides how large the rest of it is.
#[derive(Clone, Debug, Deserialize)]
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

impl Resource for NodeObject {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Node".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "nodes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl NodeObject {
    /// What is kept of it.
    pub(super) fn read(&self, pending: &PendingTaints) -> Node {
        let taints = self.spec.taints.iter().flatten();
        let mut held = taints.filter(|taint| {
            pending.all().iter().any(|id| id.key.as_str() == taint.key && id.effect.as_str() == taint.effect)
        });
        let conditions = self.status.conditions.iter().flatten();
        Node {
            name: Arc::from(self.name_any()),
            uid: self.metadata.uid.clone().unwrap_or_default().into(),
            created: self.metadata.creation_timestamp.as_ref().map(|time| time.0),
            is_ready: conditions.into_iter().any(|one| one.r#type == "Ready" && one.status == "True"),
            pending: held.next().map(|taint| Arc::from(taint.key.as_str())),
        }
    }
}
