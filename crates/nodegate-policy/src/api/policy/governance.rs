//! `governance` of a [`NodePolicySpec`](super::NodePolicySpec): what may change, and by whom.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MatchSpec;

/// What may change, and by whom.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GovernanceSpec {
    /// Who may write a namespace or a key.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<ReservedSpec>,
    /// Labels that every node must have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<RequiredSpec>,
    /// Allowed values of a label.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<AllowedSpec>,
    /// Labels that cannot be changed once they are set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub immutable: Vec<ImmutableSpec>,
    /// Labels that require or forbid other labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<DependencySpec>,
    /// Naming conventions for keys and values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub naming: Vec<NamingSpec>,
    /// CEL expressions over `object`, `oldObject` and `request` that must be true.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expressions: Vec<ExpressionSpec>,
    /// Who may override the governance of this policy in an emergency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub break_glass: Option<SubjectsSpec>,
}

/// Fields that every governance entry may have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EntrySpec {
    /// Name of the entry. Denials, warnings and metrics show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `enforce` (the default) denies violations; `warn` and `audit` only report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<EntryMode>,
    /// Which nodes match. If omitted, every node matches.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub match_: Option<MatchSpec>,
    /// Changes to judge: `add`, `change`, `remove`. Defaults to all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<Vec<ChangeOperation>>,
    /// Who is exempt from this entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub except: Option<SubjectsSpec>,
}

/// The effect of a violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EntryMode {
    /// The violation is recorded in audit annotations and metrics.
    Audit,
    /// The requester also gets a warning.
    Warn,
    /// The write is denied.
    #[default]
    Enforce,
}

/// How a write changes a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ChangeOperation {
    /// The key is added.
    Add,
    /// The key gets another value.
    Change,
    /// The key is removed.
    Remove,
}

/// Users, groups and service accounts, exact or as globs. A glob for users or groups matches names that begin with `system:`,
/// such as `system:masters` or those of service accounts, only if the glob itself begins with `system:`.
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

/// The part of a node that an entry applies to.
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
    /// Fields that every entry may have.
    #[serde(flatten)]
    pub entry: EntrySpec,
    /// Prefixes: `kubernetes.io` means only that prefix, `*.kubernetes.io` its subdomains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Single keys; they take precedence over namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// `labels`, `taints`, `annotations`. Defaults to labels and taints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<Vec<GovernedField>>,
    /// Who may write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<SubjectsSpec>,
}

/// Labels (or taints, or annotations) that every node must have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequiredSpec {
    /// Fields that every entry may have.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// Keys; a taint may have any effect.
    pub keys: Vec<String>,
    /// `labels`, `taints`, `annotations`. Defaults to labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Vec<GovernedField>>,
}

/// Allowed values of a label: `values`, `pattern` or `range`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedSpec {
    /// Fields that every entry may have.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// The key. Nodes without it are not judged.
    pub key: String,
    /// `labels`, `taints`, `annotations`. Defaults to labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Vec<GovernedField>>,
    /// The allowed values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<String>>,
    /// A regular expression that the whole value must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Integers from `min` to `max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<RangeSpec>,
}

/// A range of integers; an omitted limit is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RangeSpec {
    /// The smallest allowed value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    /// The largest allowed value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
}

/// Labels (or taints, or annotations) that cannot be changed once they are set. Anyone may set them first; only subjects in
/// `except` may change them later.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImmutableSpec {
    /// Fields that every entry may have.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// Keys, exact or `prefix/*`.
    pub keys: Vec<String>,
    /// `labels`, `taints`, `annotations`. Defaults to labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Vec<GovernedField>>,
}

/// Labels that require or forbid other labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DependencySpec {
    /// Fields that every entry may have.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// Labels with values, `*` for any value.
    pub when: BTreeMap<String, String>,
    /// Labels that must then be present, `*` for any value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub require: BTreeMap<String, String>,
    /// Taints that must then be present, as `key`, `key:Effect` or `key=value:Effect`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-nodegate" = "taint-text"))]
    pub require_taints: Vec<String>,
    /// Label keys that must then be absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forbid: Vec<String>,
}

/// Naming conventions for keys and values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamingSpec {
    /// Fields that every entry may have.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// Keys: exact, `prefix/*`, or `*` for all keys outside the namespaces of Kubernetes (`kubernetes.io`, `k8s.io` and their
    /// subdomains).
    pub keys: Vec<String>,
    /// `labels`, `taints`, `annotations`. Defaults to labels.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<GovernedField>>,
    /// A named pattern: `kebab-case`, `lower-case`, `namespaced`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// A regular expression that the whole text must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// The maximum length, in characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u16>,
    /// `key`, `value` or `both`. Defaults to `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<NamedPart>,
}

/// The part of a label that a naming entry applies to.
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

/// A CEL expression that must be true for a write.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpressionSpec {
    /// Fields that every entry may have.
    #[serde(flatten, default)]
    pub entry: EntrySpec,
    /// CEL expression over `object`, `oldObject` and `request` that must be true.
    pub expression: String,
    /// The message of the denial or warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// CEL expression that yields the message of the denial or warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_expression: Option<String>,
}
