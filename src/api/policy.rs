//! The `NodePolicy` document: what nodes get and what may change.
//!
//! These types carry the schema only (shape and types). What the texts in them mean is decided by
//! [`crate::policy::PolicySet::compile`], which reports every fault with its place.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What nodes get (labels, annotations, taints) and who may change what. Several documents add up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "nodegate.dev",
    version = "v1alpha1",
    kind = "NodePolicy",
    plural = "nodepolicies",
    shortname = "npol",
    doc = "NodePolicy says what nodes get and what may change on them.",
    status = "NodePolicyStatus",
    printcolumn = r#"{"name":"Accepted","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].status"}"#,
    printcolumn = r#"{"name":"Nodes","type":"integer","jsonPath":".status.matchedNodes"}"#,
    printcolumn = r#"{"name":"Conflicted","type":"string","jsonPath":".status.conditions[?(@.type==\"Conflicted\")].status"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Accepted\")].message"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePolicySpec {
    /// Built-in packs to add: `baseline`, `gpu`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub presets: Vec<String>,
    /// Rules; every matching rule applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleSpec>,
    /// Labels given when a node has any of several source labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub derived: Vec<DerivedSpec>,
    /// What is kept across the deletion and re-creation of a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persist: Option<PersistSpec>,
    /// HTTP sources of labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inventory: Vec<InventorySpec>,
    /// Label keys that a kubelet may not assert about its own node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protect: Option<ProtectSpec>,
    /// What may change, and by whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governance: Option<GovernanceSpec>,
    /// Labels on their way from one key to another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub migrations: Vec<MigrationSpec>,
}

/// What became of a `NodePolicy` object; written by the leader.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePolicyStatus {
    /// The generation of the object that this is about.
    pub observed_generation: i64,
    /// The generation that is in force: the present one, or the last good one before it. Null when none is.
    pub generation_in_force: Option<i64>,
    /// How many nodes get something from this policy.
    pub matched_nodes: i64,
    /// `Accepted`: the present generation is in force. `Conflicted`: another policy's value is taken for some key.
    /// `Contested`: keys are left alone because somebody kept undoing them. `Braked`: removals are held back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PolicyCondition>,
    /// Which rules the API server also holds by itself, where native policies are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native: Option<NativeStatus>,
}

/// Which rules of a policy hold natively: while no nodegate answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NativeStatus {
    /// How many do.
    pub holding: i64,
    /// How many do not, or not whole.
    pub not_holding: i64,
    /// Which, those that do not hold first; at most 200.
    pub rules: Vec<NativeRule>,
}

/// Whether one rule holds natively.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NativeRule {
    /// The rule, entry or section, and the key if it is only about one.
    pub rule: String,
    /// Whether it does.
    pub holds: bool,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One condition of a `NodePolicy` (the shape of `meta/v1 Condition`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyCondition {
    /// Which condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word in CamelCase.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When `status` changed last (RFC 3339).
    pub last_transition_time: String,
    /// The generation of the object that this is about.
    pub observed_generation: i64,
}

/// One rule: which nodes, and what they get.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleSpec {
    /// Unique in its document; shown in warnings, audit annotations and `explain`.
    pub name: String,
    /// Which nodes; left out or empty means every node.
    #[serde(rename = "match", default, skip_serializing_if = "Option::is_none")]
    pub match_: Option<MatchSpec>,
    /// Labels with fixed values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Labels whose value is a CEL expression over `node`, `gpu` and `inventory` that yields a string.
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
    /// `enforce` (kept so, the default) or `default` (given once per node uid, where absent).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<RuleMode>,
    /// Between rules that give one key, the higher priority wins; 0 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Grace between "no longer matches" and removal, such as 60s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_after: Option<String>,
    /// Accept that this rule gives a restricted or protected key on the kubelet's own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_kubelet: Option<bool>,
    /// Whether a NoExecute taint may be added to a living node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evict: Option<bool>,
}

/// How a rule treats the value that is there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RuleMode {
    /// The rule's value is kept.
    #[default]
    Enforce,
    /// Given once per node uid, where absent.
    Default,
}

/// Which nodes: every given field must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MatchSpec {
    /// The conditions.
    #[serde(flatten)]
    pub conditions: ConditionsSpec,
    /// At least one of these must hold as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub any_of: Option<Vec<ConditionsSpec>>,
}

/// Conditions on a node: every given field must hold; a list is alternatives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConditionsSpec {
    /// Node names, exact or with `*`, `?`, `[…]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// A Kubernetes label selector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<SelectorSpec>,
    /// Taints as `key`, `key:Effect` or `key=value:Effect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taints: Option<Vec<String>>,
    /// Resource quantities of `status.capacity` with `>=`, `>`, `<=`, `<` or `==`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, String>,
    /// What is inferred of the node's GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuSpec>,
    /// `status.nodeInfo.osImage`: globs such as `Ubuntu 22.04*`, or a name and version ranges such as `Ubuntu >=22.04 <25`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os_image: Option<Vec<String>>,
    /// `status.nodeInfo.kernelVersion`: version ranges such as `>=5.15 <6.2`, or globs such as `*-aws`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Vec<String>>,
    /// A CEL expression over `node`, `gpu` and `inventory` that yields a boolean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
}

/// A Kubernetes label selector (`meta/v1 LabelSelector`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SelectorSpec {
    /// Labels that must have exactly these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements that must all hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<RequirementSpec>,
}

/// One requirement of a label selector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequirementSpec {
    /// The label key.
    pub key: String,
    /// How the label relates to the values.
    pub operator: Operator,
    /// Needed for `In` and `NotIn`, forbidden otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// The operators of a label selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// The label is there and has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// Conditions on the inferred GPU facts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuSpec {
    /// `nvidia`, `amd` or `intel`; a glob is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Model in lower case without the vendor, such as `rtx-3050`; a glob is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Number of GPUs, compared as in `capacity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<String>,
}

/// Labels from one expression.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelMapSpec {
    /// The keys the expression may yield, exact or `prefix/*`; others are dropped, warned of and counted.
    pub keys: Vec<String>,
    /// CEL that yields a map of label keys to strings.
    pub expression: String,
}

/// A taint to give.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaintSpec {
    /// The key.
    pub key: String,
    /// The value; may be left out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// NoSchedule, PreferNoSchedule or NoExecute.
    pub effect: String,
}

/// A label given when any of several source labels is there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DerivedSpec {
    /// The label key to give.
    pub label: String,
    /// Its value; `true` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Source label keys.
    pub any_of: Vec<String>,
    /// Accept that a restricted or protected label is given on the kubelet's own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_kubelet: Option<bool>,
}

/// What is kept across the deletion and re-creation of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistSpec {
    /// Which nodes; left out means every node.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub match_: Option<MatchSpec>,
    /// Label keys, exact or `prefix/*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Taint keys, exact or `prefix/*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<String>,
    /// How long saved state outlives its node, such as 720h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
}

/// An HTTP source of labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InventorySpec {
    /// Unique in its document.
    pub name: String,
    /// The address; `{node}` stands for the node's name.
    pub url: String,
    /// How often the answer is renewed, such as 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<String>,
    /// The label keys it may give, exact or `prefix/*`.
    pub allow: Vec<String>,
    /// Whether a node waits (pending taint) until the inventory has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require: Option<bool>,
}

/// Label keys that a kubelet may not assert about its own node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProtectSpec {
    /// Label keys, exact or `prefix/*`.
    pub keys: Vec<String>,
}

/// What may change, and by whom.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GovernanceSpec {
    /// Who may write a namespace or a key.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<ReservedSpec>,
    /// Labels every node must have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<RequiredSpec>,
    /// Values a label may have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<AllowedSpec>,
    /// Labels that do not change once set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub immutable: Vec<ImmutableSpec>,
    /// Labels that need others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<DependencySpec>,
    /// How keys and values are written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub naming: Vec<NamingSpec>,
    /// CEL over `object`, `oldObject` and `request`; true means fine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expressions: Vec<ExpressionSpec>,
    /// Who may override this document in an emergency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub break_glass: Option<SubjectsSpec>,
}

/// What every governance entry may carry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EntrySpec {
    /// Shown in denials, warnings and metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `enforce` (deny, the default), `warn` or `audit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<EntryMode>,
    /// Which nodes; left out means every node.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub match_: Option<MatchSpec>,
    /// Which changes: `add`, `change`, `remove`; left out means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<Vec<ChangeOperation>>,
    /// Who is not judged by this entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub except: Option<SubjectsSpec>,
}

/// What happens on a violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EntryMode {
    /// Recorded in audit annotations and metrics.
    Audit,
    /// Also shown to the requester as a warning.
    Warn,
    /// The write is denied.
    #[default]
    Enforce,
}

/// What happens to one key in a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ChangeOperation {
    /// The key was absent and is now there.
    Add,
    /// The key was there and has another value.
    Change,
    /// The key was there and is now absent.
    Remove,
}

/// Users, groups and service accounts; each may be a glob. A glob of users or groups matches a name that begins with `system:`,
/// such as a service account's or `system:masters`, only if it begins with `system:` itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubjectsSpec {
    /// User names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Group names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Service accounts as `namespace:name`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_accounts: Vec<String>,
}

/// Which part of a node an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum GovernedField {
    /// `metadata.labels`.
    Labels,
    /// `spec.taints`.
    Taints,
    /// `metadata.annotations`.
    Annotations,
}

/// Who may write a namespace or a key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReservedSpec {
    /// What every entry may carry.
    #[serde(flatten)]
    pub entry: EntrySpec,
    /// Prefixes: `kubernetes.io` is that prefix only, `*.kubernetes.io` its subdomains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Single keys; they come before namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// `labels`, `taints`, `annotations`; labels and taints when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<Vec<GovernedField>>,
    /// Who may write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<SubjectsSpec>,
}

/// Labels (or taints, or annotations) every node must have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequiredSpec {
    /// What every entry may carry.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// Keys; a taint may have any effect.
    pub keys: Vec<String>,
    /// `labels`, `taints`, `annotations`; labels when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Vec<GovernedField>>,
}

/// Values a label may have: `values`, `pattern` or `range`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedSpec {
    /// What every entry may carry.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// The key; a node without it is not judged.
    pub key: String,
    /// `labels`, `taints`, `annotations`; labels when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Vec<GovernedField>>,
    /// The values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<String>>,
    /// A regular expression that the whole value must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Whole numbers from `min` to `max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<RangeSpec>,
}

/// Whole numbers; an end that is left out is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RangeSpec {
    /// The smallest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    /// The largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
}

/// Labels (or taints, or annotations) that do not change once set; the first setting is free. Who is named in `except` may
/// still change them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImmutableSpec {
    /// What every entry may carry.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// Keys, exact or `prefix/*`.
    pub keys: Vec<String>,
    /// `labels`, `taints`, `annotations`; labels when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Vec<GovernedField>>,
}

/// Labels that need others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DependencySpec {
    /// What every entry may carry.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// Labels with values, `*` for any value.
    pub when: BTreeMap<String, String>,
    /// Labels that must then be there, `*` for any value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub require: BTreeMap<String, String>,
    /// Taints that must then be there, as `key`, `key:Effect` or `key=value:Effect`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub require_taints: Vec<String>,
    /// Label keys that must then be absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forbid: Vec<String>,
}

/// How keys and values are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamingSpec {
    /// What every entry may carry.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// Which keys: exact, `prefix/*`, or `*` for all that are not in a namespace of Kubernetes (`kubernetes.io`, `k8s.io` and
    /// below).
    pub keys: Vec<String>,
    /// `labels`, `taints`, `annotations`; labels when left out.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<GovernedField>>,
    /// A named pattern: `kebab-case`, `lower-case`, `namespaced`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// A regular expression that the whole text must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// The longest text allowed, in characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u16>,
    /// `key`, `value` or `both`; `key` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<NamedPart>,
}

/// Which part of a label a naming entry is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum NamedPart {
    /// The key.
    #[default]
    Key,
    /// The value.
    Value,
    /// Both.
    Both,
}

/// A CEL rule over a write.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpressionSpec {
    /// What every entry may carry.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// CEL over `object`, `oldObject` and `request`; true means fine.
    pub expression: String,
    /// What the requester is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// CEL that yields what the requester is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_expression: Option<String>,
}

/// A label on its way from one key to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationSpec {
    /// The old key.
    pub from: String,
    /// The new key.
    pub to: String,
    /// How far the migration is.
    pub phase: MigrationPhase,
}

/// How far a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MigrationPhase {
    /// Both keys are written.
    DualWrite,
    /// The new key leads.
    Cutover,
    /// The old key is gone.
    Done,
}
