//! Which pods a node accepts, as far as labels and taints decide it, and what a change of them does to pods.
//!
//! The rules are those of the scheduler (`k8s.io/component-helpers/scheduling/corev1`), of the DaemonSet controller
//! (`k8s.io/kubernetes/pkg/controller/daemon`) and of taint-based eviction. Resources, volumes, ports and pod priorities
//! are not considered.

mod document;
mod impact;
mod label_use;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinity, PodAntiAffinity, Taint, Toleration,
    TopologySpreadConstraint,
};
use serde::{Deserialize, Serialize};

pub use document::{AffectedDaemonSet, AffectedPod, Cause, CauseKind, Effect};
pub use impact::{DaemonSet, Impact, Pod, Transition};
pub use label_use::{ConsumerKind, LabelUse, listed_owner};
use nodegate_base::text::or_quotes;

/// The parts of a node that decide which pods it accepts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    /// The name.
    pub name: String,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// All taints.
    pub taints: Vec<Taint>,
}

/// The parts of a pod's `spec` that decide which nodes accept it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    node_name: Option<String>,
    node_selector: Option<BTreeMap<String, String>>,
    affinity: Option<Affinity>,
    tolerations: Option<Vec<Toleration>>,
    topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    scheduling_gates: Option<Vec<serde::de::IgnoredAny>>,
    containers: Option<Vec<Container>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    image: String,
    command: Option<Vec<String>>,
}

/// What a pod requires of the labels and taints of its node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Requirements {
    node_selector: BTreeMap<String, String>,
    /// The alternatives of the required node affinity; `None` without one.
    terms: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
    /// Topology keys without which a node does not accept the pod.
    needed_topology: Vec<String>,
    /// Topology keys of required anti-affinity.
    other_topology: Vec<String>,
}

/// Why a node does not accept a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Mismatch {
    /// The node lacks a label of `nodeSelector`.
    NodeSelector {
        /// The key.
        key: String,
        /// The value that the pod selects.
        value: String,
    },
    /// No term of the required node affinity matches.
    NodeAffinity,
    /// The node has a taint that the pod does not tolerate.
    Taint(Taint),
    /// The node lacks the label that a spread constraint or required pod affinity of the pod names.
    TopologyKey(String),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeSelector { key, value } => write!(f, "nodeSelector {key}={} does not match", or_quotes(value)),
            Self::NodeAffinity => f.write_str("the required node affinity does not match"),
            Self::Taint(taint) => write!(f, "taint {} is not tolerated", taint_text(taint)),
            Self::TopologyKey(key) => write!(f, "the node lacks the topology key {key}"),
        }
    }
}

/// A taint as `key=value:Effect`.
fn taint_text(taint: &Taint) -> String {
    let value = taint.value.as_deref().unwrap_or_default();
    let equals = if value.is_empty() { "" } else { "=" };
    format!("{}{equals}{value}:{}", taint.key, taint.effect)
}

/// The prefix of the taints for conditions of a node (`not-ready`, `memory-pressure`, …) and for cordoned nodes. They come
/// and go, so they do not decide whether a node accepts a pod.
const CONDITIONS: &str = "node.kubernetes.io/";
const NO_EXECUTE: &str = "NoExecute";
const NO_SCHEDULE: &str = "NoSchedule";

impl Requirements {
    /// The requirements of a pod.
    pub fn of(spec: &PodSpec) -> Self {
        let affinity = spec.affinity.clone().unwrap_or_default();
        let required = affinity.node_affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution);
        let together = |affinity: PodAffinity| affinity.required_during_scheduling_ignored_during_execution;
        let apart = |affinity: PodAntiAffinity| affinity.required_during_scheduling_ignored_during_execution;
        let spread = spec.topology_spread_constraints.iter().flatten();
        let strict = spread.filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule");
        let together = affinity.pod_affinity.and_then(together).unwrap_or_default();
        let apart = affinity.pod_anti_affinity.and_then(apart).unwrap_or_default();
        Self {
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            terms: required.map(|selector| selector.node_selector_terms),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            needed_topology: strict
                .map(|constraint| constraint.topology_key.clone())
                .chain(together.into_iter().map(|term| term.topology_key))
                .collect(),
            other_topology: apart.into_iter().map(|term| term.topology_key).collect(),
        }
    }

    /// Whether the node accepts the pod, taints for node conditions aside.
    ///
    /// # Errors
    /// Returns the first reason why not.
    pub fn fits(&self, node: &NodeState) -> Result<(), Mismatch> {
        self.selects(node)?;
        if let Some(taint) = self.untolerated(node) {
            return Err(Mismatch::Taint(taint.clone()));
        }
        match self.needed_topology.iter().find(|key| !node.labels.contains_key(*key)) {
            Some(key) => Err(Mismatch::TopologyKey(key.clone())),
            None => Ok(()),
        }
    }

    /// Whether [`Self::fits`] succeeds, for when many nodes are asked: most nodes have few taints and many labels, so that
    /// a taint is what refuses a pod soonest.
    fn is_accepted_by(&self, node: &NodeState) -> bool {
        self.untolerated(node).is_none() && self.fits(node).is_ok()
    }

    /// The first taint that keeps the pod from starting on the node, taints for node conditions aside.
    fn untolerated<'a>(&self, node: &'a NodeState) -> Option<&'a Taint> {
        let refuses = |taint: &&Taint| {
            (taint.effect == NO_SCHEDULE || taint.effect == NO_EXECUTE) && !taint.key.starts_with(CONDITIONS)
        };
        node.taints.iter().filter(refuses).find(|taint| self.toleration_of(taint).is_none())
    }

    /// Whether `nodeSelector` and the required node affinity match.
    fn selects(&self, node: &NodeState) -> Result<(), Mismatch> {
        let absent = self.node_selector.iter().find(|(key, value)| node.labels.get(*key) != Some(value));
        if let Some((key, value)) = absent {
            return Err(Mismatch::NodeSelector { key: key.clone(), value: value.clone() });
        }
        match &self.terms {
            Some(terms) if !terms.iter().any(|term| matches(term, node)) => Err(Mismatch::NodeAffinity),
            _ => Ok(()),
        }
    }

    /// The toleration of a taint: the first one, as for `GetMatchingTolerations`
    /// (`k8s.io/kubernetes/pkg/apis/core/v1/helper`).
    fn toleration_of(&self, taint: &Taint) -> Option<&Toleration> {
        self.tolerations.iter().find(|toleration| tolerates(toleration, taint))
    }

    /// The labels that a node needs to accept the pod, some of which may be alternatives.
    pub(crate) fn needed_labels(&self) -> impl Iterator<Item = &str> {
        let terms = self.terms.iter().flatten().flat_map(|term| term.match_expressions.iter().flatten());
        let of_terms = terms.filter(|wanted| matches!(&*wanted.operator, "In" | "Exists" | "Gt" | "Lt"));
        let selected = self.node_selector.keys().chain(of_terms.map(|wanted| &wanted.key));
        selected.chain(&self.needed_topology).map(String::as_str)
    }

    /// The topology keys that the pod refers to, needed or not.
    fn topology(&self) -> impl Iterator<Item = &str> {
        self.needed_topology.iter().chain(&self.other_topology).map(String::as_str)
    }
}

/// A term without requirements matches nothing.
fn matches(term: &NodeSelectorTerm, node: &NodeState) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let of_label = |wanted: &NodeSelectorRequirement| holds(wanted, node.labels.get(&wanted.key).map(String::as_str));
    let of_field = |wanted: &NodeSelectorRequirement| wanted.key == "metadata.name" && holds(wanted, Some(&node.name));
    (!expressions.is_empty() || !fields.is_empty()) && expressions.iter().all(of_label) && fields.iter().all(of_field)
}

fn holds(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let numbers = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match wanted.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// `ToleratesTaint` (`k8s.io/api/core/v1/toleration.go`).
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_or_any = |wanted: &Option<String>, value: &str| {
        wanted.as_deref().is_none_or(|wanted| wanted.is_empty() || wanted == value)
    };
    let (ours, theirs) = (toleration.value.as_deref().unwrap_or(""), taint.value.as_deref().unwrap_or(""));
    let numbers = || Some((theirs.parse::<i64>().ok()?, ours.parse::<i64>().ok()?));
    is_or_any(&toleration.effect, &taint.effect)
        && is_or_any(&toleration.key, &taint.key)
        && match toleration.operator.as_deref() {
            None | Some("" | "Equal") => ours == theirs,
            Some("Exists") => true,
            Some("Lt") => numbers().is_some_and(|(taint, bound)| taint < bound),
            Some("Gt") => numbers().is_some_and(|(taint, bound)| taint > bound),
            Some(_) => false,
        }
}
