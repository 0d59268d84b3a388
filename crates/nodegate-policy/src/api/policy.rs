//! The `NodePolicy` document: what is set on nodes, and what may change.
//!
//! These types define the schema only (fields and types). [`crate::PolicySet::compile`] checks the meaning of the
//! strings in them, and reports every error with its position.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::answers::AnswerSpec;
use super::pools::PoolSpec;

mod conditions;
mod gates;
mod governance;
mod status;
mod topologies;

pub use conditions::{ConditionsSpec, GpuSpec, MatchSpec, Operator, RequirementSpec, SelectorSpec};
pub use gates::{GateSpec, OnTimeout, WaitSpec};
pub use governance::{
    AllowedSpec, ChangeOperation, DependencySpec, EntryMode, EntrySpec, ExpressionSpec, GovernanceSpec, GovernedField,
    ImmutableSpec, NamedPart, NamingSpec, RangeSpec, RequiredSpec, ReservedSpec, SubjectsSpec,
};
pub use status::{NativeRule, NativeStatus, NodePolicyStatus, PolicyCondition};
pub use topologies::TopologySpec;

/// The labels, annotations and taints to set on nodes, and who may change what. Several policies add up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "nodegate.dev",
    version = "v1alpha1",
    kind = "NodePolicy",
    plural = "nodepolicies",
    shortname = "npol",
    doc = "NodePolicy defines the labels, annotations and taints of nodes, and what may change on them.",
    status = "NodePolicyStatus",
    printcolumn = r#"{"name":"Accepted","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].status"}"#,
    printcolumn = r#"{"name":"Nodes","type":"integer","jsonPath":".status.matchedNodes"}"#,
    printcolumn = r#"{"name":"Conflicted","type":"string","jsonPath":".status.conditions[?(@.type==\"Conflicted\")].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].message"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePolicySpec {
    /// Built-in policies to add: `baseline`, `gpu`, `aliases`, `vendor-guard`, and pools of platforms: `eks`, `karpenter`, `aks`,
    /// `cluster-api`, `openshift`, `kubeadm`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub presets: Vec<String>,
    /// Rules. Every rule that matches a node applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleSpec>,
    /// Labels to set if a node has any of several source labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub derived: Vec<DerivedSpec>,
    /// Labels and taints to keep when a node is deleted and created again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persist: Option<PersistSpec>,
    /// HTTP sources of labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inventory: Vec<InventorySpec>,
    /// Label keys that a kubelet may not set on its own node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protect: Option<ProtectSpec>,
    /// What may change, and by whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governance: Option<GovernanceSpec>,
    /// Labels that move from one key to another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub migrations: Vec<MigrationSpec>,
    /// Which nodes belong to a pool, and what proves it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolSpec>,
    /// Labels without which a joining node gets no pods, whoever sets them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateSpec>,
    /// Where nodes are: labels of racks, blocks and the like, without which a joining node gets no pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topologies: Vec<TopologySpec>,
}

/// A rule: which nodes it matches, and what it sets on them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleSpec {
    /// Name of the rule, unique in its policy. Warnings, audit annotations and `explain` show it.
    pub name: String,
    /// Which nodes match. If omitted or empty, every node matches.
    #[serde(rename = "match", default, skip_serializing_if = "Option::is_none")]
    pub match_: Option<MatchSpec>,
    /// Labels with fixed values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Labels whose value is a CEL expression over `node`, `gpu`, `inventory` and `identity` that yields a string.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub label_expressions: BTreeMap<String, String>,
    /// Labels from one CEL expression that yields a map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_map: Option<LabelMapSpec>,
    /// Annotations with fixed values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<TaintSpec>,
    /// `enforce` (the default): the values are kept. `default`: the values are set once per node UID, where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<RuleMode>,
    /// If several rules set a key, the one with the highest priority takes precedence. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Time from when the rule no longer matches until its keys are removed, such as 60s (the default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-nodegate" = "duration"))]
    pub remove_after: Option<String>,
    /// Allow this rule to set restricted or protected keys based on facts that a kubelet can choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_kubelet: Option<bool>,
    /// Whether a NoExecute taint may be added to an existing node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evict: Option<bool>,
}

/// How a rule treats an existing value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RuleMode {
    /// The rule's value is kept: changes are reverted.
    #[default]
    Enforce,
    /// The value is set once per node UID, where absent.
    Default,
}

/// Labels from one expression.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelMapSpec {
    /// Keys that the expression may yield, exact or `prefix/*`. Other keys are dropped, with a warning.
    pub keys: Vec<String>,
    /// CEL expression that yields a map of label keys to strings.
    pub expression: String,
}

/// A taint to set. In files, it may also be written as `key=value:Effect`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-nodegate" = "taint"))]
pub struct TaintSpec {
    /// The key.
    pub key: String,
    /// The value; optional.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// NoSchedule, PreferNoSchedule or NoExecute.
    pub effect: String,
}

/// A label to set if any of several source labels is present.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DerivedSpec {
    /// The label key to set.
    pub label: String,
    /// The value of the label. Defaults to `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Source label keys.
    pub any_of: Vec<String>,
    /// Allow a restricted or protected label to be set based on labels that a kubelet can choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_kubelet: Option<bool>,
}

/// Labels and taints to keep when a node is deleted and created again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistSpec {
    /// Which nodes match. If omitted, every node matches.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub match_: Option<MatchSpec>,
    /// Label keys, exact or `prefix/*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Taint keys, exact or `prefix/*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<String>,
    /// Which node gets what is kept: `node` (the default), the next one of the same name; `pool`, every new node of the same pool, if
    /// all nodes of the pool have the same value. A section with `pool` has labels only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<PersistScope>,
    /// How long to keep the saved state after the node, or the last node of the pool, is deleted, such as 720h. 90 days if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-nodegate" = "duration"))]
    pub retention: Option<String>,
}

/// Which node gets what is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PersistScope {
    /// The next node of the same name, or of the same machine (`--identity`).
    #[default]
    Node,
    /// Every new node of the same pool, whatever its name.
    Pool,
}

/// An HTTP source of labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InventorySpec {
    /// Name of the inventory, unique in its policy.
    pub name: String,
    /// URL of the inventory; `{node}` is replaced with the node's name.
    pub url: String,
    /// How often to refresh the labels, such as 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-nodegate" = "duration"))]
    pub refresh: Option<String>,
    /// Label keys that the inventory may set, exact or `prefix/*`.
    pub allow: Vec<String>,
    /// Whether a node keeps the pending taint until the inventory has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require: Option<bool>,
    /// How to read labels out of its answers, if they are not labels by node already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerSpec>,
    /// Set to true if a node may say which `machine` it is, by its system UUID or provider ID, where nothing proves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_kubelet: Option<bool>,
}

/// Label keys that a kubelet may not set on its own node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProtectSpec {
    /// Label keys, exact or `prefix/*`.
    pub keys: Vec<String>,
}

/// A label that moves from one key to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationSpec {
    /// The old key.
    pub from: String,
    /// The new key.
    pub to: String,
    /// The phase of the migration.
    pub phase: MigrationPhase,
    /// Set to true if one of the keys may not be set by kubelets, and the other one may: then a kubelet chooses the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_kubelet: Option<bool>,
}

/// The phase of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MigrationPhase {
    /// Both keys have the value of the old key. A node that has only the new key gets the old one.
    DualWrite,
    /// Both keys have the value of the new key. Writes that set the old key are refused.
    Cutover,
    /// The old key is removed. Writes that set it are refused.
    Done,
}
