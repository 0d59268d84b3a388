//! What `nodegate report` prints for other programs. Fields are added, never renamed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::look::report::devices::DeviceDifference;
use crate::cli::look::report::topologies::TopologyNodes;
use crate::cli::policies::plan::document::{Change, Over};
use crate::scheduling::AffectedPod;
use nodegate_controller::tell::published::Published;
use nodegate_policy::explain::FieldName;
use nodegate_policy::{Contradiction, Disagreement};

/// What the nodes of a fleet are, and what differs from the policies in force.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// The policies that were used.
    pub(super) policies: Policies,
    /// The number of nodes.
    pub(super) nodes: usize,
    /// How many nodes have each value of the labels of `--by`, or of all that policies set.
    pub(super) by: BTreeMap<String, BTreeMap<String, usize>>,
    /// How many nodes lack each of these labels.
    pub(super) without: BTreeMap<String, usize>,
    /// The pools of the policies, sorted by name.
    pub(super) pools: Vec<PoolNodes>,
    /// The nodes that may belong to pools of any name, because too little is known of their machines or kubelets.
    pub(super) pools_unknown: Vec<String>,
    /// The required labels and taints that nodes lack.
    pub(super) missing: Vec<Lacking>,
    /// Every violation of governance, those of `missing` included.
    pub(super) violations: Vec<Violation>,
    /// What differs from the policies. The controller changes it, unless it leaves the key alone.
    pub(super) drift: Vec<Drift>,
    /// Why the controller holds removals back, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held_back: Option<String>,
    /// Rules that assign different values to one key of a node.
    pub(super) conflicts: Vec<Conflict>,
    /// Keys that are not repaired anymore, because others keep reverting them.
    pub(super) left_alone: Vec<LeftAlone>,
    /// The nodes to which no rule assigns anything.
    pub(super) unmanaged: Vec<String>,
    /// Nodes known to have been written without nodegate's admission, if that is not recorded yet.
    pub(super) missed: Vec<Missed>,
    /// The rejected claims of joining kubelets.
    pub(super) rejected: Vec<Rejected>,
    /// The gates that pending nodes have not passed.
    pub(super) gates: Vec<AtGate>,
    /// The topologies of the policies, sorted by policy and name.
    pub(super) topologies: Vec<TopologyNodes>,
    /// Labels of GPUs that differ from the ResourceSlices of NVIDIA's driver for the node, sorted by node.
    pub(super) devices: Vec<DeviceDifference>,
    /// What is asserted about nodes and contradicts what is proven of them.
    pub(super) contradictions: Vec<Contradicted>,
    /// nodegate's native admission policies that the API server could not evaluate.
    pub(super) native_failures: Vec<NativeFailure>,
    /// Running pods that their nodes would not accept again (`--stranded-pods`).
    pub(super) stranded: Vec<AffectedPod>,
    /// The resources and the price of the nodes, by the first label of `--by` (`--cost`).
    pub(super) cost: Vec<Cost>,
}

/// Policies.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Policies {
    /// Their names, sorted.
    pub(super) names: Vec<String>,
    /// A hash of their content.
    pub(super) hash: String,
}

impl From<Published> for Policies {
    fn from(Published { names, hash }: Published) -> Self {
        Self { names, hash }
    }
}

/// What is asserted about a node and contradicts what is proven of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(crate) struct Contradicted {
    /// The node.
    pub(super) node: String,
    /// What contradicts.
    #[serde(flatten)]
    pub(super) contradiction: Contradiction,
}

/// A pending node, and a gate that it has not passed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AtGate {
    /// The node.
    pub(super) node: String,
    /// The policy.
    pub(super) policy: String,
    /// The gate in it, as `gate:NAME` or `topology:NAME`.
    pub(super) rule: String,
    /// The labels that the node lacks.
    pub(super) missing: Vec<String>,
    /// How long after its creation a node waits there.
    pub(super) timeout_seconds: u64,
    /// What becomes of it then: `release` or `keep`.
    pub(super) on_timeout: String,
}

/// The nodes of a pool.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct PoolNodes {
    /// The name of the pool.
    pub(super) pool: String,
    /// How many nodes are proven to belong to it.
    pub(super) nodes: usize,
    /// The nodes that may belong to it: too little is recorded of their kubelets. Sorted.
    pub(super) unknown: Vec<String>,
    /// The labels that it remembers: its next node gets them.
    pub(super) remembered: BTreeMap<String, String>,
    /// The labels on which its nodes do not agree, so that no node gets them.
    pub(super) disagreements: Vec<Disagreed>,
}

/// A label on which the nodes of a pool do not agree.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Disagreed {
    /// The label.
    pub(super) label: String,
    /// The values with the number of nodes that have them: the five most frequent ones.
    pub(super) values: BTreeMap<String, usize>,
    /// The number of nodes with other values.
    pub(super) others: usize,
    /// The number of nodes without the label, or on which only the kubelet says so.
    pub(super) without: usize,
    /// All of this in words.
    pub(super) text: String,
}

impl Disagreed {
    /// What the nodes of a pool have of this label.
    pub(super) fn new(label: &str, found: &Disagreement) -> Self {
        let Disagreement { values, others, without } = found;
        let (label, text) = (label.to_owned(), found.to_string());
        Self { label, values: values.clone(), others: *others, without: *without, text }
    }
}

impl PoolNodes {
    /// A pool without nodes.
    pub(super) fn new(pool: &str) -> Self {
        let (remembered, disagreements) = (BTreeMap::new(), Vec::new());
        Self { pool: pool.to_owned(), nodes: 0, unknown: Vec::new(), remembered, disagreements }
    }
}

/// A required label or taint that a node lacks.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Lacking {
    /// The node.
    pub(super) node: String,
    /// The key.
    pub(super) key: String,
    /// The policy that requires it.
    pub(super) policy: String,
    /// The entry in it.
    pub(super) rule: String,
}

/// One violation of one node.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Violation {
    /// The node.
    pub(super) node: String,
    /// The policy; empty if the node cannot be read.
    pub(super) policy: String,
    /// The entry in it; empty if the node cannot be read.
    pub(super) rule: String,
    /// The mode of the entry.
    pub(super) mode: ViolationMode,
    /// The key, if the violation concerns one.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(default)]
    pub(super) key: String,
    /// The violation in words.
    pub(super) message: String,
}

/// The modes of entries, and why a violation is not certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ViolationMode {
    /// Such writes are denied.
    Enforce,
    /// Such writes get a warning.
    Warn,
    /// Such writes are only recorded.
    Audit,
    /// An expression failed, so it is unknown whether the node violates the entry.
    Unknown,
    /// The node cannot be read.
    #[default]
    Unreadable,
}

impl ViolationMode {
    /// Whether the node violates the entry for certain.
    pub(super) fn is_certain(self) -> bool {
        match self {
            Self::Enforce | Self::Warn | Self::Audit => true,
            Self::Unknown | Self::Unreadable => false,
        }
    }

    /// The name as the documents write it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Warn => "warn",
            Self::Audit => "audit",
            Self::Unknown => "unknown",
            Self::Unreadable => "unreadable",
        }
    }
}

/// A key of a node that is not as the policies want it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Drift {
    /// The node.
    pub(super) node: String,
    /// What has to change.
    pub(super) change: Change,
}

/// Two rules that assign different values to one key.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Conflict {
    /// The part of the node.
    pub(super) field: FieldName,
    /// The key; for a taint `key:Effect`.
    pub(super) key: String,
    /// The policy of the rule that takes precedence.
    pub(super) policy: String,
    /// The rule in it.
    pub(super) rule: String,
    /// The other rule.
    pub(super) over: Over,
    /// The nodes, sorted.
    pub(super) nodes: Vec<String>,
}

/// A key that the controller does not repair.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeftAlone {
    /// The node.
    pub(super) node: String,
    /// The part of the node: `label`, `annotation` or `taint`.
    pub(super) field: String,
    /// The key; for a taint `key:Effect`.
    pub(super) key: String,
    /// The policy that sets it.
    pub(super) policy: String,
    /// The field managers that reverted it last, quoted.
    pub(super) writers: String,
    /// The same names, the latest last. Empty if an earlier version of nodegate leads.
    pub(super) writer_names: Vec<String>,
}

/// A node that was written without admission.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Missed {
    /// The node.
    pub(super) node: String,
    /// What was missed.
    pub(super) what: MissedWrite,
    /// The labels that show it.
    pub(super) keys: Vec<String>,
}

/// Writes that admission can miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum MissedWrite {
    /// The CREATE: the node lacks labels that the webhook would have set.
    Joined,
    /// A change of protected labels.
    Changed,
}

/// What a kubelet claimed when its node joined, and what was rejected of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(crate) struct Rejected {
    /// The node.
    pub(super) node: String,
    /// The part of the node. Absent for its owners, and if only the number of keys is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) field: Option<FieldName>,
    /// The key; for a taint `key:Effect`, for owners `metadata.ownerReferences`; or the number of keys, if only that is
    /// known.
    pub(super) key: String,
    /// The value that the kubelet claimed; empty without a field.
    pub(super) asserted: String,
    /// The policy that rejected it.
    pub(super) policy: String,
    /// The rule in it, or its `protect` section.
    pub(super) rule: String,
    /// The claim as people read it.
    #[serde(skip)]
    pub(super) text: String,
}

/// A native admission policy that the API server could not evaluate.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NativeFailure {
    /// Its name.
    pub(super) policy: String,
    /// `compile_error`, `invalid_error` or `out_of_budget`, as in the API server's metrics. What a policy denies, they count as an
    /// `invalid_error` as well; that is left out.
    pub(super) error_type: String,
    /// How often, since the API server that answered was started.
    pub(super) count: usize,
}

/// The resources and the price of some nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cost {
    /// The label.
    pub(super) label: String,
    /// Its value. Absent for the nodes without the label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<String>,
    /// The number of nodes.
    pub(super) nodes: usize,
    /// Their CPU cores.
    pub(super) cpu: f64,
    /// Their memory, in GiB.
    pub(super) memory_gib: f64,
    /// The GPUs of those whose number is known.
    pub(super) gpu: u64,
    /// Their price per hour (`--prices`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) per_hour: Option<f64>,
    /// The currency of the price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) currency: Option<String>,
    /// How many of them have no price: neither their instance type nor resources are priced, or the number of GPUs is
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unpriced: Option<usize>,
}
