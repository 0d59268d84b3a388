//! What a change of nodes does to pods and DaemonSets, as other programs read it. Fields are added, never renamed.

use k8s_openapi::api::core::v1::Taint;
use schemars::JsonSchema;
use serde::Serialize;

use super::Mismatch;

/// What happens to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// It is removed by a NoExecute taint or by the DaemonSet controller.
    Evicted,
    /// It keeps running, but its node would not accept it again; or it is pending, and no node accepts it anymore.
    Unschedulable,
    /// It keeps running, but a topology key that it refers to changes on its node.
    TopologyChanged,
    /// It is pending, and nodes accept it that did not before.
    Schedulable,
}

/// A pod that the change affects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AffectedPod {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The node that it runs on; for a pending pod the first node that accepts it. Absent if no node does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its controller, as `Kind/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What happens to it.
    pub effect: Effect,
    /// What it depends on.
    pub cause: Cause,
    /// How long the pod tolerates the taint before it is evicted, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seconds: Option<i64>,
    /// How many nodes accept the pod after the change, by labels and taints except those for node conditions. Absent
    /// for pods of DaemonSets and for `topologyChanged`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes_left: Option<usize>,
    /// The cause in words.
    pub reason: String,
}

/// The part of a pod and of a node that decides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// What it is.
    pub kind: CauseKind,
    /// The key of the label or taint, if it is a single one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The value that the pod selects, the taint has or the topology key gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The effect of the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

/// The parts of pods and nodes that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CauseKind {
    /// A taint that the pod does not tolerate.
    Taint,
    /// The pod's `nodeSelector`.
    NodeSelector,
    /// The pod's required node affinity.
    NodeAffinity,
    /// A topology key of the pod's spread constraints or pod affinity.
    TopologyKey,
    /// All labels and taints together, for a pending pod.
    Node,
}

impl Cause {
    pub(super) fn node() -> Self {
        Self { kind: CauseKind::Node, key: None, value: None, effect: None }
    }

    pub(super) fn topology(key: &str, value: Option<&String>) -> Self {
        Self { kind: CauseKind::TopologyKey, key: Some(key.to_owned()), value: value.cloned(), effect: None }
    }
}

impl From<&Mismatch> for Cause {
    fn from(mismatch: &Mismatch) -> Self {
        match mismatch {
            Mismatch::NodeSelector { key, value } => {
                Self { kind: CauseKind::NodeSelector, key: Some(key.clone()), value: Some(value.clone()), effect: None }
            }
            Mismatch::NodeAffinity => Self { kind: CauseKind::NodeAffinity, ..Self::node() },
            Mismatch::Taint(taint) => Self::from(taint),
            Mismatch::TopologyKey(key) => Self::topology(key, None),
        }
    }
}

impl From<&Taint> for Cause {
    fn from(taint: &Taint) -> Self {
        let value = taint.value.clone().filter(|value| !value.is_empty());
        Self { kind: CauseKind::Taint, key: Some(taint.key.clone()), value, effect: Some(taint.effect.clone()) }
    }
}

/// A DaemonSet whose set of nodes changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AffectedDaemonSet {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The nodes on which it starts pods, sorted.
    pub starts: Vec<String>,
    /// The nodes that accepted its pods and do not anymore, sorted.
    pub stops: Vec<String>,
}
