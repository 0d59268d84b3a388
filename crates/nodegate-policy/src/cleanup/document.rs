//! What `nodegate cleanup` prints, as other programs read it.
//!
//! Fields are added, never renamed.

use schemars::JsonSchema;
use serde::Serialize;

use crate::explain::FieldName;

/// What nodegate leaves in a cluster, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cleanup {
    /// The namespace of nodegate's objects. Absent for nodes in files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Whether this run had `--confirm`. Otherwise nothing was changed.
    pub confirmed: bool,
    /// The nodes with keys to remove or to keep, sorted by name.
    pub nodes: Vec<NodeCleanup>,
    /// nodegate's own objects, sorted by kind and name.
    pub objects: Vec<ObjectCleanup>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCleanup {
    /// Its name.
    pub node: String,
    /// The keys that nodegate owns or has set, sorted by field and key.
    pub keys: Vec<KeyCleanup>,
    /// Why the node could not be cleaned up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One label, annotation or taint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyCleanup {
    /// The part of the node.
    pub field: FieldName,
    /// The key.
    pub key: String,
    /// The effect of a taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// The value that nodegate set; empty for a taint without a value.
    pub value: String,
    /// What became of it.
    pub result: CleanupResult,
    /// Why it stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<KeptBecause>,
    /// The value that it has now, if that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// The policy of the rule that still assigns it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The rule that still assigns it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// An object that nodegate created.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectCleanup {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its namespace, if its kind has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What became of it.
    pub result: CleanupResult,
    /// Why it stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<KeptBecause>,
    /// Why it could not be deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What became of a key or an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CleanupResult {
    /// `--confirm` removes it.
    WouldRemove,
    /// It was removed.
    Removed,
    /// It stays.
    Kept,
    /// It could not be removed. Run the command again.
    Failed,
}

/// Why it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum KeptBecause {
    /// Others have changed the value since nodegate set it.
    Changed,
    /// The record is about an earlier Node object with this name.
    EarlierNode,
    /// A rule still assigns it, and nodegate is running.
    Assigned,
    /// It is unknown whether a rule still assigns it.
    Unknown,
    /// A program sets it for each machine, and does not set it again while the node exists.
    OfProgram,
    /// nodegate is running, and removes it when it is no longer needed.
    Running,
    /// Another admission webhook or policy, or a running nodegate, set it again.
    SetAgain,
    /// The record is of another machine of this name, or `--identity` differs from that of `serve`.
    OtherMachine,
    /// The record cannot be read.
    Unreadable,
    /// Its node could not be cleaned up.
    NodeFailed,
}
