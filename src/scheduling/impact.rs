//! What a change of labels and taints does to pods and DaemonSets.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::api::core::v1::{Taint, Toleration};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::document::{AffectedDaemonSet, AffectedPod, Cause, Effect};
use super::{Mismatch, NO_EXECUTE, NodeState, PodSpec, Requirements, taint_text};

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

/// The annotation of a pod that stands for a static one (`k8s.io/kubernetes/pkg/kubelet/types`).
const MIRROR: &str = "kubernetes.io/config.mirror";

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

    /// The DaemonSet that owns it.
    fn daemon_set(&self) -> Option<&Owner> {
        owner(self).filter(|owner| owner.kind == "DaemonSet" && owner.api_version == "apps/v1")
    }

    /// The labels of nodes that the scheduler looks for to start it, each once. Pods of DaemonSets are for nodes that are there.
    pub fn selected_labels(&self) -> BTreeSet<String> {
        if self.is_over() || self.daemon_set().is_some() || self.is_static() {
            return BTreeSet::new();
        }
        Requirements::of(&self.spec).needed_labels().map(str::to_owned).collect()
    }

    /// Whether it stands for a static pod, which the node's kubelet runs whatever the labels and taints are.
    fn is_static(&self) -> bool {
        let mirrors = self.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR));
        mirrors && owner(self).is_some_and(|owner| owner.kind == "Node" && owner.api_version == "v1")
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: Option<String>,
    owner_references: Option<Vec<Owner>>,
    annotations: Option<HashMap<String, IgnoredAny>>,
    deletion_timestamp: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Owner {
    api_version: String,
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

impl DaemonSet {
    /// Its namespace and name.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace.as_deref().unwrap_or_default(), self.metadata.name)
    }

    /// Its name, and the names, images and commands of its containers.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        let containers = self.spec.template.spec.containers.iter().flatten();
        let of_container =
            containers.flat_map(|one| [&one.name, &one.image].into_iter().chain(one.command.iter().flatten()));
        std::iter::once(&self.metadata.name).chain(of_container).map(String::as_str)
    }

    /// Whether its pods start on a node with this taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        of_daemon_set(&self.spec.template.spec).toleration_of(taint).is_some()
    }
}

/// What a change of nodes does to pods. DaemonSets are added first, then pods.
#[derive(Debug)]
pub struct Impact {
    nodes: Vec<Arc<Transition>>,
    /// Where each node is in `nodes`.
    places: HashMap<String, usize>,
    daemon_sets: HashMap<(String, String), Requirements>,
    affected_sets: Vec<AffectedDaemonSet>,
    pods: Vec<AffectedPod>,
    /// How many nodes accept pods with the same requirements, before and after.
    accepting: HashMap<[u8; 32], Accepting>,
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
            nodes: nodes.into_iter().map(Arc::new).collect(),
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
        // The controller also starts pods of a template with `nodeName`, and only on that node (`pkg/controller/daemon`,
        // `predicates`).
        let only = set.spec.template.spec.node_name.as_deref().filter(|name| !name.is_empty());
        let meant = |node: &NodeState| only.is_none_or(|only| node.name == only);
        let changed = || {
            let changed = self.nodes.iter().filter_map(|node| Some((&node.before, node.after.as_ref()?)));
            changed.filter(|(before, _)| meant(before))
        };
        let runs = |node: &NodeState| requirements.fits(node).is_ok();
        let named = |chosen: &dyn Fn(&NodeState, &NodeState) -> bool| {
            let mut names: Vec<String> =
                changed().filter(|(before, after)| chosen(before, after)).map(|(node, _)| node.name.clone()).collect();
            names.sort_unstable();
            names
        };
        let starts = named(&|before, after| !runs(before) && runs(after));
        let stops =
            named(&|before, after| stops(&requirements, before).is_none() && stops(&requirements, after).is_some());
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
        if pod.is_over() || pod.daemon_set().is_some() || pod.is_static() {
            return None;
        }
        let requirements = Requirements::of(&pod.spec);
        let mismatch = requirements.fits(self.nodes[at].after()).err()?;
        let node = Some(self.nodes[at].before.name.clone());
        let found = affected(pod, node, Effect::Unschedulable, Cause::from(&mismatch), &mismatch);
        Some(AffectedPod { nodes_left: Some(self.accepting(&requirements).after), ..found })
    }

    /// The affected pods and the affected DaemonSets, both sorted by namespace and name.
    pub fn finish(mut self) -> (Vec<AffectedPod>, Vec<AffectedDaemonSet>) {
        self.pods.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
        self.affected_sets.sort_unstable();
        (self.pods, self.affected_sets)
    }

    /// The effect on a pod that runs on the node at `at`.
    fn running(&mut self, pod: &Pod, at: usize) -> Option<AffectedPod> {
        let transition = self.nodes[at].clone();
        let Transition { before, after } = &*transition;
        let after = after.as_ref()?;
        let node = Some(before.name.clone());
        if pod.is_static() {
            return None;
        }
        let requirements = Requirements::of(&pod.spec);
        if let Some(owner) = pod.daemon_set() {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let set = self.daemon_sets.get(&(namespace, owner.name.clone()));
            let requirements = set.unwrap_or(&requirements);
            if stops(requirements, before).is_none()
                && let Some(mismatch) = stops(requirements, after)
            {
                return Some(affected(pod, node, Effect::Evicted, Cause::from(&mismatch), &mismatch));
            }
            return evicting(requirements, before, after).map(|leaving| leaving.evicts(pod, node));
        }
        if let Some(leaving) = evicting(&requirements, before, after) {
            let nodes_left = Some(self.accepting(&requirements).after);
            return Some(AffectedPod { nodes_left, ..leaving.evicts(pod, node) });
        }
        if requirements.fits(before).is_ok()
            && let Err(mismatch) = requirements.fits(after)
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
        if gated || pod.daemon_set().is_some() {
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
        // Values of these types always serialize. A digest, because a pod can have megabytes of tolerations.
        let text = serde_json::to_vec(requirements).unwrap_or_default();
        let key: [u8; 32] = digest(&SHA256, &text).as_ref().try_into().unwrap_or_default();
        let nodes = &self.nodes;
        self.accepting.entry(key).or_insert_with(|| {
            let mut accepting = Accepting::default();
            for node in nodes {
                let before = requirements.is_accepted_by(&node.before);
                let after = node.after.as_ref().map_or(before, |after| requirements.is_accepted_by(after));
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

/// A taint that evicts a pod, and after how many seconds if the pod tolerates it for a while.
struct Leaving<'a> {
    taint: &'a Taint,
    after_seconds: Option<i64>,
}

impl Leaving<'_> {
    fn evicts(&self, pod: &Pod, node: Option<String>) -> AffectedPod {
        let reason = match self.after_seconds {
            None => Mismatch::Taint(self.taint.clone()).to_string(),
            Some(seconds) => format!("taint {} is tolerated for {seconds} s only", taint_text(self.taint)),
        };
        let evicted = affected(pod, node, Effect::Evicted, Cause::from(self.taint), &reason);
        AffectedPod { after_seconds: self.after_seconds, ..evicted }
    }
}

/// The new NoExecute taint that evicts a pod first.
fn evicting<'a>(requirements: &Requirements, before: &NodeState, after: &'a NodeState) -> Option<Leaving<'a>> {
    let same =
        |one: &Taint, other: &Taint| (&one.key, &one.value, &one.effect) == (&other.key, &other.value, &other.effect);
    let is_new = |taint: &&Taint| taint.effect == NO_EXECUTE && !before.taints.iter().any(|old| same(old, taint));
    let leaving = after.taints.iter().filter(is_new).filter_map(|taint| match requirements.toleration_of(taint) {
        None => Some(Leaving { taint, after_seconds: None }),
        // Negative values count as zero.
        Some(toleration) => Some(Leaving { taint, after_seconds: Some(toleration.toleration_seconds?.max(0)) }),
    });
    leaving.min_by_key(|leaving| leaving.after_seconds.unwrap_or_default())
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
