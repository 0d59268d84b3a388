//! What `nodegate plan` prints for other programs. Fields are added, never renamed.

use schemars::JsonSchema;
use serde::Serialize;

use super::gates::ShutOut;
use super::kueue::KueueDifference;
use super::readiness::LateTaint;
use crate::cli::shared::autoscalers::document::Difference;
use crate::scheduling::{AffectedDaemonSet, AffectedPod};
use nodegate_policy::explain::FieldName;
use nodegate_policy::{Field, LeftOut, LintName, Note, PolicyError, PolicySet, RuleId};

/// What policies would change on nodes.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
    /// The policies that were planned.
    pub(in crate::cli) policies: Policies,
    /// Every node, sorted by name.
    pub(in crate::cli) nodes: Vec<NodePlan>,
    /// The pods that the changes affect, sorted by namespace and name.
    pub(in crate::cli) pods: Vec<AffectedPod>,
    /// The DaemonSets that start or stop pods.
    pub(in crate::cli) daemon_sets: Vec<AffectedDaemonSet>,
    /// Why the effect on pods is unknown. Then `pods` and `daemonSets` are empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) pods_unknown: Option<String>,
    /// Rules with `trustKubelet`, as `policy/rule`.
    pub(in crate::cli) trusting: Vec<String>,
    /// Keys in these policies that programs set (the warning `set-by-program`).
    pub(in crate::cli) keys_of_programs: Vec<KeyOfProgram>,
    /// What NodePools and MachineDeployments of the cluster do not tell autoscalers: of labels that pods select, and of taints.
    pub(in crate::cli) autoscalers: Vec<Difference>,
    /// DaemonSets that publish what gates wait for, and cannot start on nodes that wait.
    pub(in crate::cli) shut_out: Vec<ShutOut>,
    /// What the Topology objects of Kueue in the cluster, the nodes and the topologies of the policies do not agree on.
    pub(in crate::cli) kueue: Vec<KueueDifference>,
    /// Taints of NodeReadinessRules in the cluster that nodes do not have when they join.
    pub(in crate::cli) late_taints: Vec<LateTaint>,
    /// Totals.
    pub(in crate::cli) summary: Summary,
}

/// A key of a policy that a program sets.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KeyOfProgram {
    /// The policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) policy: Option<String>,
    /// The path of the field, such as `spec.rules[0].labels.tier`.
    pub(in crate::cli) field: String,
    /// Which program sets the key.
    pub(in crate::cli) message: String,
    /// What to write instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) help: Option<String>,
}

impl KeyOfProgram {
    /// All keys of programs in these policies.
    pub(super) fn all(set: &PolicySet) -> Vec<Self> {
        let lints = set.lints().into_iter().filter(|lint| lint.name == LintName::SetByProgram);
        let of = |PolicyError { policy, path, problem, .. }| Self {
            policy,
            field: path.to_string(),
            message: problem.what,
            help: problem.remedy,
        };
        lints.map(|lint| of(lint.fault)).collect()
    }
}

/// The planned policies, and how they differ from the ones in force.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Policies {
    /// The names of all policies, sorted.
    pub(in crate::cli) names: Vec<String>,
    /// A hash of their content.
    pub(in crate::cli) hash: String,
    /// The hash of the policies in force. Absent for nodes from files, and if none are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) in_force: Option<String>,
    /// The given policies that are not in force yet.
    pub(in crate::cli) added: Vec<String>,
    /// The given policies that differ from the one of the same name in force.
    pub(in crate::cli) replaced: Vec<String>,
    /// The policies in force that are removed (`--only`).
    pub(in crate::cli) removed: Vec<String>,
}

/// The plan of one node.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodePlan {
    /// The name of the node.
    pub(in crate::cli) node: String,
    /// The file that it was read from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) file: Option<String>,
    /// What changes with the planned write, or with the controller's next one.
    pub(in crate::cli) changes: Vec<Change>,
    /// What the controller changes later.
    pub(in crate::cli) deferred: Vec<Change>,
    /// The rules for which it is unknown whether they match, or what they assign.
    pub(in crate::cli) unknown: Vec<Unknown>,
    /// Conflicts and other remarks.
    pub(in crate::cli) notes: Vec<Remark>,
    /// Governance violations of the planned write. Always empty for nodes of a cluster.
    pub(in crate::cli) violations: Vec<Violated>,
    /// Why the node cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) unreadable: Option<String>,
}

/// One change of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Change {
    /// What happens to the key.
    pub(in crate::cli) op: Op,
    /// The part of the node.
    pub(in crate::cli) field: FieldName,
    /// The key.
    pub(in crate::cli) key: String,
    /// The new value; empty for a taint without a value. Absent if the key is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) value: Option<String>,
    /// The effect of a taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) effect: Option<String>,
    /// The present value. Absent if the key is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) was: Option<String>,
    /// The policy that assigns the value; for a removal, the one that assigns it now. Absent if none does, or if that
    /// is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) policy: Option<String>,
    /// The rule in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) rule: Option<String>,
    /// Seconds from when the controller notices that no rule assigns the key until it removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) after_seconds: Option<u64>,
}

/// What happens to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Op {
    /// It is added.
    Add,
    /// It gets another value.
    Change,
    /// It is removed.
    Remove,
}

/// A rule that could not be evaluated on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(crate) struct Unknown {
    /// The policy.
    pub(in crate::cli) policy: String,
    /// The rule in it.
    pub(in crate::cli) rule: String,
    /// The reason.
    pub(in crate::cli) reason: String,
}

/// A remark on a decision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(crate) struct Remark {
    /// What it is about.
    pub(in crate::cli) kind: RemarkKind,
    /// The part of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) field: Option<FieldName>,
    /// The key; for a taint `key:Effect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) key: Option<String>,
    /// The policy of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) policy: Option<String>,
    /// The rule in it; in a conflict the one that takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) rule: Option<String>,
    /// The other rule of a conflict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) over: Option<Over>,
    /// The remark in words.
    pub(in crate::cli) message: String,
}

/// A rule that another one takes precedence over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(crate) struct Over {
    /// The policy.
    pub(in crate::cli) policy: String,
    /// The rule in it.
    pub(in crate::cli) rule: String,
}

/// The kinds of remarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RemarkKind {
    /// Two rules assign different values to one key.
    Conflict,
    /// A rule is ignored, because its evaluation does not converge.
    Unsettled,
    /// A label map yields a key outside its `keys`, or an invalid key or value.
    Dropped,
    /// A key that the kubelet may not set is removed.
    Stripped,
    /// A key that the kubelet may not change gets its stored value.
    PutBack,
    /// The old key of a finished migration is removed when a node joins.
    Retired,
    /// The requester's change of a key is reverted.
    Reverted,
    /// A NoExecute taint is not added to an existing node without `evict: true`.
    Withheld,
    /// An entry of saved state is invalid or never restored.
    NotRestored,
    /// A key is omitted that the API server would refuse.
    LeftOut,
}

/// A violation of governance by the planned write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(crate) struct Violated {
    /// The policy.
    pub(in crate::cli) policy: String,
    /// The entry in it.
    pub(in crate::cli) rule: String,
    /// The part of the node.
    pub(in crate::cli) field: FieldName,
    /// The key; empty if it concerns the whole node.
    pub(in crate::cli) key: String,
    /// The violation in words.
    pub(in crate::cli) message: String,
}

/// Numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    /// All nodes.
    pub(in crate::cli) nodes: usize,
    /// The nodes that change at once.
    pub(in crate::cli) changed: usize,
    /// The nodes with deferred changes.
    pub(in crate::cli) deferred: usize,
    /// The nodes that lose keys that nodegate owns.
    pub(in crate::cli) removals: usize,
    /// Whether these removals exceed `--max-removals`, so that they wait for `nodegate apply --confirm`.
    pub(in crate::cli) held_back: bool,
    /// The nodes that cannot be read.
    pub(in crate::cli) unreadable: usize,
    /// The affected pods.
    pub(in crate::cli) pods: usize,
    /// The pods that are evicted.
    pub(in crate::cli) evicted: usize,
}

/// A note of a decision as an unknown rule or as a remark; neither if `deferred` says the same.
pub(in crate::cli) enum Noted {
    Unknown(Unknown),
    Remark(Remark),
    SaidElsewhere,
}

impl From<&Note> for Noted {
    fn from(note: &Note) -> Self {
        let remark = |kind, of: (Option<FieldName>, Option<&str>), by: Option<&RuleId>| {
            Self::Remark(Remark {
                kind,
                field: of.0,
                key: of.1.map(str::to_owned),
                policy: by.map(|by| by.policy.to_string()),
                rule: by.map(|by| by.rule.to_string()),
                over: None,
                message: note.to_string(),
            })
        };
        fn of<'k>(field: &Field, key: &'k str) -> (Option<FieldName>, Option<&'k str>) {
            (Some(FieldName::from(*field)), Some(key))
        }
        match note {
            Note::Conflict { field, key, winner, loser } => {
                let over = Over { policy: loser.policy.to_string(), rule: loser.rule.to_string() };
                match remark(RemarkKind::Conflict, of(field, key), Some(winner)) {
                    Self::Remark(remark) => Self::Remark(Remark { over: Some(over), ..remark }),
                    other => other,
                }
            }
            Note::Unknown { rule, reason } => Self::Unknown(Unknown {
                policy: rule.policy.to_string(),
                rule: rule.rule.to_string(),
                reason: reason.clone(),
            }),
            Note::Unsettled { rule } => remark(RemarkKind::Unsettled, (None, None), Some(rule)),
            Note::Dropped { rule, key, reason: _ } => {
                remark(RemarkKind::Dropped, (Some(FieldName::Label), Some(key)), Some(rule))
            }
            Note::Stripped { field, key, by } => remark(RemarkKind::Stripped, of(field, key), Some(by)),
            Note::StrippedUnnamed { count: _, by } => remark(RemarkKind::Stripped, (None, None), Some(by)),
            Note::PutBack { field, key, by } => remark(RemarkKind::PutBack, of(field, key), Some(by)),
            Note::Retired { key, new: _, by } => {
                remark(RemarkKind::Retired, (Some(FieldName::Label), Some(key)), Some(by))
            }
            Note::Reverted { field, key, value: _, by } => remark(RemarkKind::Reverted, of(field, key), Some(by)),
            Note::Withheld { taint, by } => {
                let taint = taint.to_string();
                remark(RemarkKind::Withheld, (Some(FieldName::Taint), Some(&taint)), Some(by))
            }
            Note::NotRestored { field, key, reason: _ } => remark(RemarkKind::NotRestored, of(field, key), None),
            Note::LeftOut(LeftOut { field, key, reason: _ }) => remark(RemarkKind::LeftOut, of(field, key), None),
            Note::DeferredUnmarked { keys: _ }
            | Note::AwaitedUnmarked { inventories: _ }
            | Note::GatesUnmarked { gates: _ } => Self::SaidElsewhere,
        }
    }
}
