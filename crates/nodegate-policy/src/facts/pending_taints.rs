//! Pending taints: which one a joining node gets while it waits, and all that the controller removes.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use crate::api::names::{LabelKey, TaintEffect, TaintId};
use crate::api::problem::Problem;
use crate::facts::NodeFacts;

/// Karpenter plans with a node whose taints have this prefix (`StatelessStartupTaintPrefix`, `pkg/scheduling/taints.go`).
const KARPENTER_PREFIX: &str = "readiness.k8s.io/";
/// Cluster Autoscaler counts a node whose taints have one of these prefixes as one that is starting
/// (`cluster-autoscaler/utils/taints/taints.go`).
const AUTOSCALER_PREFIXES: [&str; 2] =
    ["startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/"];
/// Cluster Autoscaler ignores a taint with this prefix where it counts what is ready, so it orders node after node.
const STATUS_PREFIX: &str = "status-taint.";

/// On nodes of Karpenter.
const FOR_KARPENTER: &str = "readiness.k8s.io/nodegate";
/// On all others. Without Cluster Autoscaler it means nothing to anyone.
const FOR_OTHERS: &str = "startup-taint.cluster-autoscaler.kubernetes.io/nodegate";
/// Not set by default: no autoscaler knows it.
const PLAIN: &str = "nodegate.dev/pending";

/// The label of Karpenter's nodes. Their kubelets register with it, or with [`KARPENTER_TAINT`].
const KARPENTER_LABEL: &str = "karpenter.sh/nodepool";
/// The taint that Karpenter removes when it has registered a node.
const KARPENTER_TAINT: &str = "karpenter.sh/unregistered";

/// The setting `--pending-taint-key`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PendingKey {
    /// A key that the autoscaler of the node knows.
    #[default]
    Auto,
    /// This key, on every node.
    Key(LabelKey),
}

impl FromStr for PendingKey {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let key: LabelKey = text.parse()?;
        if text.starts_with(STATUS_PREFIX) {
            return Err(Problem::new(
                format!("Cluster Autoscaler creates more and more nodes while a node waits with the taint {text:?}"),
                format!("write auto, or a key that begins with {}", AUTOSCALER_PREFIXES[0]),
            ));
        }
        Ok(Self::Key(key))
    }
}

impl fmt::Display for PendingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Key(key) => key.fmt(f),
        }
    }
}

impl PendingKey {
    /// The key, if it is one that no autoscaler takes for a startup taint unless it is configured: while a node waits, they
    /// create others.
    pub fn unknown_to_autoscalers(&self) -> Option<&LabelKey> {
        let Self::Key(key) = self else { return None };
        let mut known = AUTOSCALER_PREFIXES.into_iter().chain([KARPENTER_PREFIX]);
        (!known.any(|prefix| key.as_str().starts_with(prefix))).then_some(key)
    }
}

/// The taints of nodes that wait for something deferred or for an inventory, effect NoSchedule.
#[derive(Clone, Debug)]
pub struct PendingTaints {
    choice: Choice,
    all: Vec<TaintId>,
}

/// Which taint a node gets.
#[derive(Clone, Debug)]
enum Choice {
    ByNode { karpenter: TaintId, others: TaintId },
    Always(TaintId),
}

impl PendingTaints {
    /// The taints with this setting.
    pub fn new(key: PendingKey) -> Self {
        let known = [FOR_OTHERS, FOR_KARPENTER, PLAIN].map(|key| taint(LabelKey::known(key)));
        let [others, karpenter, _] = &known;
        let choice = match key {
            PendingKey::Auto => Choice::ByNode { karpenter: karpenter.clone(), others: others.clone() },
            PendingKey::Key(key) => Choice::Always(taint(key)),
        };
        let all = match &choice {
            Choice::Always(chosen) if !known.contains(chosen) => [chosen.clone()].into_iter().chain(known).collect(),
            Choice::Always(_) | Choice::ByNode { .. } => known.to_vec(),
        };
        Self { choice, all }
    }

    /// The taint for a node that joins.
    pub fn for_node(&self, node: &NodeFacts<'_>) -> &TaintId {
        match &self.choice {
            Choice::Always(taint) => taint,
            Choice::ByNode { karpenter, .. } if is_of_karpenter(node) => karpenter,
            Choice::ByNode { others, .. } => others,
        }
    }

    /// The taint that a joining node lacks, if it has to wait. A second look at the patched node finds nothing: if the node
    /// chooses the taint, any of them is enough, because a rule may give the label of Karpenter's nodes.
    pub(crate) fn missing_on(&self, node: &NodeFacts<'_>) -> Option<&TaintId> {
        let wanted = self.for_node(node);
        let is_there = match self.choice {
            Choice::ByNode { .. } => self.on(node).next().is_some(),
            Choice::Always(_) => node.taint(wanted.key.as_str(), wanted.effect).is_some(),
        };
        (!is_there).then_some(wanted)
    }

    /// All pending taints, which the controller removes. A changed setting strands no node: those of other settings are
    /// among them, except for keys that an earlier setting named.
    pub fn all(&self) -> &[TaintId] {
        &self.all
    }

    /// Those that a node has.
    pub fn on<'s>(&'s self, node: &'s NodeFacts<'_>) -> impl Iterator<Item = &'s TaintId> {
        self.all.iter().filter(|id| node.taint(id.key.as_str(), id.effect).is_some())
    }

    /// Whether it is the key of a pending taint.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        self.all.iter().any(|id| id.key.as_str() == key)
    }
}

/// The taints with the default setting.
static AUTO: LazyLock<PendingTaints> = LazyLock::new(|| PendingTaints::new(PendingKey::Auto));

impl Default for PendingTaints {
    fn default() -> Self {
        AUTO.clone()
    }
}

impl Default for &PendingTaints {
    fn default() -> Self {
        &AUTO
    }
}

fn taint(key: LabelKey) -> TaintId {
    TaintId { key, effect: TaintEffect::NoSchedule }
}

/// Whether Karpenter launched the node, as far as its kubelet says. That proves nothing, and need not: whichever taint it gets,
/// only the leader removes it.
fn is_of_karpenter(node: &NodeFacts<'_>) -> bool {
    node.label(KARPENTER_LABEL).is_some() || node.taints().iter().any(|taint| &*taint.key == KARPENTER_TAINT)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn chosen(key: &str, node: &Json) -> String {
        let text = node.to_string();
        PendingTaints::new(key.parse().unwrap()).for_node(&NodeFacts::parse(&text).unwrap()).to_string()
    }

    #[test]
    fn a_node_of_karpenter_gets_the_key_that_karpenter_waits_for_and_others_that_of_cluster_autoscaler() {
        let pool = json!({"metadata": {"name": "n", "labels": {"karpenter.sh/nodepool": "default"}}});
        let taints = json!([{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]);
        let unregistered = json!({"metadata": {"name": "n"}, "spec": {"taints": taints}});
        let other = json!({"metadata": {"name": "n", "labels": {"karpenter.sh/other": "x"}}});
        assert_eq!(chosen("auto", &pool), "readiness.k8s.io/nodegate:NoSchedule");
        assert_eq!(chosen("auto", &unregistered), "readiness.k8s.io/nodegate:NoSchedule");
        assert_eq!(chosen("auto", &other), "startup-taint.cluster-autoscaler.kubernetes.io/nodegate:NoSchedule");
        assert_eq!(
            chosen("example.com/wait", &pool),
            "example.com/wait:NoSchedule",
            "an explicit key stays what it is"
        );
    }

    #[test]
    fn whatever_the_setting_all_known_taints_are_removed() {
        let all = |key: &str| -> Vec<String> {
            let taints = PendingTaints::new(key.parse().unwrap());
            taints.all().iter().map(ToString::to_string).collect()
        };
        let known = [
            "startup-taint.cluster-autoscaler.kubernetes.io/nodegate:NoSchedule",
            "readiness.k8s.io/nodegate:NoSchedule",
            "nodegate.dev/pending:NoSchedule",
        ];
        assert_eq!(all("auto"), known);
        assert_eq!(all("nodegate.dev/pending"), known, "each once");
        assert_eq!(all("example.com/wait"), [&["example.com/wait:NoSchedule"], &known as &[&str]].concat());
    }

    #[test]
    fn a_status_taint_is_refused_with_what_to_write_instead() {
        let refused = "status-taint.cluster-autoscaler.kubernetes.io/nodegate".parse::<PendingKey>().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "Cluster Autoscaler creates more and more nodes while a node waits with the taint \
             \"status-taint.cluster-autoscaler.kubernetes.io/nodegate\"; write auto, or a key that begins with \
             startup-taint.cluster-autoscaler.kubernetes.io/"
        );
        assert!("a b".parse::<PendingKey>().is_err());
        for text in ["auto", "example.com/wait"] {
            assert_eq!(text.parse::<PendingKey>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn keys_without_the_prefix_of_an_autoscaler_are_unknown_to_them() {
        let unknown = |key: &str| key.parse::<PendingKey>().unwrap().unknown_to_autoscalers().is_some();
        assert!(unknown("nodegate.dev/pending") && unknown("example.com/wait"));
        let known = ["auto", "readiness.k8s.io/x", "ignore-taint.cluster-autoscaler.kubernetes.io/x", FOR_OTHERS];
        assert!(known.iter().all(|key| !unknown(key)));
    }

    #[test]
    fn the_known_keys_are_valid() {
        assert!([FOR_OTHERS, FOR_KARPENTER, PLAIN].iter().all(|key| key.parse::<LabelKey>().is_ok()));
    }
}
