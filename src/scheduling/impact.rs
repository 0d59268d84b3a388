//! What a change of labels and taints does to pods and DaemonSets.

use std::collections::HashMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Taint, Toleration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Mismatch, NO_EXECUTE, NodeState, PodSpec, Requirements};

/// A node before and after the change.
#[derive(Clone, Debug)]
pub struct Transition {
    /// The node as it is.
    pub before: NodeState,
    /// The node after the change; `None` if neither labels nor taints change.
    pub after: Option<NodeState>,
}

impl Transition {
    fn after(&self) -> &NodeState {
        self.after.as_ref().unwrap_or(&self.before)
    }
}

/// The parts of a pod that matter here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    metadata: Metadata,
    spec: PodSpec,
    status: PodStatus,
}

impl Pod {
    /// Whether it has ended or is being deleted.
    fn is_over(&self) -> bool {
        let ended = matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        ended || self.metadata.deletion_timestamp.is_some()
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: Option<String>,
    owner_references: Option<Vec<Owner>>,
    deletion_timestamp: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Owner {
    kind: String,
    name: String,
    controller: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: Option<String>,
}

/// The parts of a DaemonSet that matter here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    metadata: Metadata,
    spec: DaemonSetSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct DaemonSetSpec {
    template: PodTemplate,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodTemplate {
    spec: PodSpec,
}

/// What happens to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// It is removed from its node: by a NoExecute taint, or by the DaemonSet controller.
    Evicted,
    /// It keeps running, but its node would not accept it again. Without a node: it is pending, and no node accepts it
    /// anymore.
    Unschedulable,
    /// It keeps running. A topology key that its spread constraints or its pod affinity refer to gets another value on its
    /// node.
    TopologyChanged,
    /// It is pending, and nodes accept it that did not before.
    Schedulable,
}

impl Effect {
    /// The name as the documents write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Unschedulable => "unschedulable",
            Self::TopologyChanged => "topologyChanged",
            Self::Schedulable => "schedulable",
        }
    }
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
    /// The part of the pod and of the node that it depends on.
    pub cause: Cause,
    /// How long the pod tolerates the taint before it is evicted, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seconds: Option<i64>,
    /// How many nodes accept the pod after the change, as far as labels and taints decide it. Absent for pods of
    /// DaemonSets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes_left: Option<usize>,
    /// The cause in words.
    pub reason: String,
}

/// The part of a pod and of a node that decides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// Which part it is.
    pub kind: CauseKind,
    /// The key of the label or taint, where it is a single one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The value that the pod selects, or that the taint has, or that the topology key gets.
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
    /// A topology key that the pod's spread constraints or its pod affinity refer to.
    TopologyKey,
    /// All labels and taints together: for a pending pod that nodes accept now, or that no node accepts anymore.
    Node,
}

impl Cause {
    fn node() -> Self {
        Self { kind: CauseKind::Node, key: None, value: None, effect: None }
    }

    fn topology(key: &str, value: Option<&String>) -> Self {
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
    /// The nodes on which it stops its pods, sorted.
    pub stops: Vec<String>,
}

/// What a change of nodes does to pods. DaemonSets are added first, then pods.
#[derive(Debug)]
pub struct Impact {
    nodes: Vec<Transition>,
    /// Where each node is in `nodes`.
    places: HashMap<String, usize>,
    daemon_sets: HashMap<(String, String), Requirements>,
    affected_sets: Vec<AffectedDaemonSet>,
    pods: Vec<AffectedPod>,
    /// How many nodes accept pods with the same requirements, before and after.
    accepting: HashMap<String, Accepting>,
}

/// How many nodes accept a pod.
#[derive(Clone, Debug, Default)]
struct Accepting {
    before: usize,
    after: usize,
    /// The first node that did not accept it before.
    new: Option<String>,
}

impl Impact {
    /// The impact of these changes, without any pods yet.
    pub fn new(nodes: Vec<Transition>) -> Self {
        Self {
            places: nodes.iter().enumerate().map(|(at, node)| (node.before.name.clone(), at)).collect(),
            nodes,
            daemon_sets: HashMap::new(),
            affected_sets: Vec::new(),
            pods: Vec::new(),
            accepting: HashMap::new(),
        }
    }

    /// Whether no node changes, so that no pod is affected.
    pub fn is_none(&self) -> bool {
        self.nodes.iter().all(|node| node.after.is_none())
    }

    /// Takes a DaemonSet into account.
    pub fn add_daemon_set(&mut self, set: &DaemonSet) {
        let requirements = of_daemon_set(&set.spec.template.spec);
        let changed = || self.nodes.iter().filter_map(|node| Some((&node.before, node.after.as_ref()?)));
        let runs = |node: &NodeState| requirements.fits(node).is_ok();
        let named = |chosen: &dyn Fn(&NodeState, &NodeState) -> bool| {
            let mut names: Vec<String> =
                changed().filter(|(before, after)| chosen(before, after)).map(|(node, _)| node.name.clone()).collect();
            names.sort_unstable();
            names
        };
        let starts = named(&|before, after| !runs(before) && runs(after));
        let stops = named(&|before, after| runs(before) && stops(&requirements, after).is_some());
        let (namespace, name) = (set.metadata.namespace.clone().unwrap_or_default(), set.metadata.name.clone());
        if !starts.is_empty() || !stops.is_empty() {
            self.affected_sets.push(AffectedDaemonSet {
                namespace: namespace.clone(),
                name: name.clone(),
                starts,
                stops,
            });
        }
        self.daemon_sets.insert((namespace, name), requirements);
    }

    /// Takes a pod into account.
    pub fn add_pod(&mut self, pod: &Pod) {
        if pod.is_over() {
            return;
        }
        let affected = match pod.spec.node_name.as_deref().filter(|name| !name.is_empty()) {
            Some(node) => self.places.get(node).copied().and_then(|at| self.running(pod, at)),
            None => self.pending(pod),
        };
        self.pods.extend(affected);
    }

    /// A running pod that its node would not accept again, as the node is now. Pods of DaemonSets and static pods are not
    /// scheduled, so they never count.
    pub fn stranded(&mut self, pod: &Pod) -> Option<AffectedPod> {
        let at = self.places.get(pod.spec.node_name.as_deref()?).copied()?;
        let scheduled = owner(pod).is_none_or(|owner| owner.kind != "DaemonSet" && owner.kind != "Node");
        if pod.is_over() || !scheduled {
            return None;
        }
        let requirements = Requirements::of(&pod.spec);
        let mismatch = requirements.fits(self.nodes[at].after()).err()?;
        let node = Some(self.nodes[at].before.name.clone());
        let found = affected(pod, node, Effect::Unschedulable, Cause::from(&mismatch), &mismatch);
        Some(AffectedPod { nodes_left: Some(self.accepting(&requirements).after), ..found })
    }

    /// The affected pods, the ones that are evicted first, and the affected DaemonSets.
    pub fn finish(mut self) -> (Vec<AffectedPod>, Vec<AffectedDaemonSet>) {
        self.pods.sort_by(|one, other| {
            (one.effect, &one.namespace, &one.name).cmp(&(other.effect, &other.namespace, &other.name))
        });
        self.affected_sets.sort_unstable();
        (self.pods, self.affected_sets)
    }

    /// The effect on a pod that runs on the node at `at`.
    fn running(&mut self, pod: &Pod, at: usize) -> Option<AffectedPod> {
        let (before, after) = (self.nodes[at].before.clone(), self.nodes[at].after.clone()?);
        let node = Some(before.name.clone());
        let requirements = Requirements::of(&pod.spec);
        // The owner of a static pod is its node, whose kubelet runs it whatever the taints are.
        if owner(pod).is_some_and(|owner| owner.kind == "Node") {
            return None;
        }
        if let Some(owner) = owner(pod).filter(|owner| owner.kind == "DaemonSet") {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let set = self.daemon_sets.get(&(namespace, owner.name.clone()));
            let requirements = set.unwrap_or(&requirements);
            let stopped = stops(requirements, &before).is_none().then(|| stops(requirements, &after)).flatten()?;
            return Some(affected(pod, node, Effect::Evicted, Cause::from(&stopped), &stopped));
        }
        if let Some((taint, seconds)) = evicting(&requirements, &before, &after) {
            let mismatch = Mismatch::Taint(taint);
            let pod = affected(pod, node, Effect::Evicted, Cause::from(&mismatch), &mismatch);
            let nodes_left = Some(self.accepting(&requirements).after);
            return Some(AffectedPod { after_seconds: seconds, nodes_left, ..pod });
        }
        if requirements.fits(&before).is_ok()
            && let Err(mismatch) = requirements.fits(&after)
        {
            let pod = affected(pod, node, Effect::Unschedulable, Cause::from(&mismatch), &mismatch);
            return Some(AffectedPod { nodes_left: Some(self.accepting(&requirements).after), ..pod });
        }
        let moved = requirements.topology().find(|key| before.labels.get(*key) != after.labels.get(*key))?;
        let value = after.labels.get(moved);
        let reason = match value {
            Some(value) => format!("topology key {moved} becomes {value:?}"),
            None => format!("the node loses the topology key {moved}"),
        };
        Some(affected(pod, node, Effect::TopologyChanged, Cause::topology(moved, value), &reason))
    }

    /// The effect on a pod without a node.
    fn pending(&mut self, pod: &Pod) -> Option<AffectedPod> {
        let gated = pod.spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        // The DaemonSet controller chooses the nodes of its pods.
        if gated || owner(pod).is_some_and(|owner| owner.kind == "DaemonSet") {
            return None;
        }
        let Accepting { before, after, new } = self.accepting(&Requirements::of(&pod.spec)).clone();
        let found = match new {
            Some(node) => {
                let reason = "its node selector, affinity and tolerations match a node that they did not match before";
                affected(pod, Some(node), Effect::Schedulable, Cause::node(), &reason)
            }
            None if before > 0 && after == 0 => {
                affected(pod, None, Effect::Unschedulable, Cause::node(), &"no node accepts it anymore")
            }
            None => return None,
        };
        Some(AffectedPod { nodes_left: Some(after), ..found })
    }

    /// How many nodes accept pods with these requirements. It is computed once for equal requirements.
    fn accepting(&mut self, requirements: &Requirements) -> &Accepting {
        // Values of these types always serialize; equal texts would only share a count.
        let key = serde_json::to_string(requirements).unwrap_or_default();
        let nodes = &self.nodes;
        self.accepting.entry(key).or_insert_with(|| {
            let mut accepting = Accepting::default();
            for node in nodes {
                let before = requirements.fits(&node.before).is_ok();
                let after = node.after.as_ref().map_or(before, |after| requirements.fits(after).is_ok());
                accepting.before += usize::from(before);
                accepting.after += usize::from(after);
                if after && !before && accepting.new.is_none() {
                    accepting.new = Some(node.before.name.clone());
                }
            }
            accepting
        })
    }
}

/// The requirements of the pods of a DaemonSet, with the NoExecute tolerations that its controller adds
/// (`AddOrUpdateDaemonPodTolerations`).
fn of_daemon_set(spec: &PodSpec) -> Requirements {
    let mut requirements = Requirements::of(spec);
    requirements.tolerations.extend(["not-ready", "unreachable"].map(|condition| Toleration {
        key: Some(format!("node.kubernetes.io/{condition}")),
        operator: Some("Exists".to_owned()),
        effect: Some(NO_EXECUTE.to_owned()),
        ..Toleration::default()
    }));
    requirements
}

/// Why the DaemonSet controller removes its pod from this node, if it does (`NodeShouldRunDaemonPod`): an untolerated
/// NoSchedule taint only keeps new pods away.
fn stops(requirements: &Requirements, node: &NodeState) -> Option<Mismatch> {
    requirements.selects(node).err().or_else(|| {
        let evicting = |taint: &&Taint| taint.effect == NO_EXECUTE && requirements.toleration_of(taint).is_none();
        node.taints.iter().find(evicting).cloned().map(Mismatch::Taint)
    })
}

/// The new NoExecute taint that evicts a pod first, and after how many seconds.
fn evicting(requirements: &Requirements, before: &NodeState, after: &NodeState) -> Option<(Taint, Option<i64>)> {
    let same =
        |one: &Taint, other: &Taint| (&one.key, &one.value, &one.effect) == (&other.key, &other.value, &other.effect);
    let new = after
        .taints
        .iter()
        .filter(|taint| taint.effect == NO_EXECUTE && !before.taints.iter().any(|old| same(old, taint)));
    let leaving = new.filter_map(|taint| match requirements.toleration_of(taint) {
        None => Some((taint, None)),
        Some(toleration) => Some((taint, Some(toleration.toleration_seconds?))),
    });
    leaving.min_by_key(|(_, seconds)| seconds.unwrap_or_default()).map(|(taint, seconds)| (taint.clone(), seconds))
}

fn owner(pod: &Pod) -> Option<&Owner> {
    pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

fn affected(pod: &Pod, node: Option<String>, effect: Effect, cause: Cause, reason: &dyn fmt::Display) -> AffectedPod {
    AffectedPod {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone(),
        node,
        owner: owner(pod).map(|owner| format!("{}/{}", owner.kind, owner.name)),
        effect,
        cause,
        after_seconds: None,
        nodes_left: None,
        reason: reason.to_string(),
    }
}
