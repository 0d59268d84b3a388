//! Policy tests: what a policy is expected to do to a node, as a file.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// A `PolicyTest` file: policies and cases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyTest {
    /// `nodegate.dev/v1alpha1`.
    pub api_version: String,
    /// `PolicyTest`.
    pub kind: String,
    /// Policy files or directories, relative to this file.
    #[serde(default)]
    pub policies: Vec<String>,
    /// Policies written here.
    #[serde(default)]
    pub policy: Option<Json>,
    /// A directory of flat label files, relative to this file.
    #[serde(default)]
    pub labels_dir: Option<String>,
    /// The policies must be refused, with errors that contain each of these texts. There are no cases then.
    #[serde(default)]
    pub expect_errors: Vec<String>,
    /// The cases.
    #[serde(default)]
    pub cases: Vec<Case>,
}

/// One write to one node, and what must come of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    /// A sentence that says what holds.
    pub name: String,
    /// The node: a whole Node, or the short form `{name, labels, annotations, taints, capacity, providerID}`.
    #[serde(default)]
    pub node: Option<Json>,
    /// A file with the node, relative to the test file.
    #[serde(default)]
    pub node_file: Option<String>,
    /// The write changes this in the node; the node is then what is stored now. Without it the node is created.
    #[serde(default)]
    pub change: Option<ChangeCase>,
    /// `kubelet` (the node's own), `admin`, or a user name; `kubelet` when left out.
    #[serde(rename = "as", default)]
    pub requester: Option<String>,
    /// Further groups of the requester.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The write goes to `nodes/status`.
    #[serde(default)]
    pub status: Option<bool>,
    /// What is saved of the node.
    #[serde(default)]
    pub saved: Option<SavedCase>,
    /// A controller is there, so the pending taint may be set.
    #[serde(default)]
    pub controller: Option<bool>,
    /// What must come of it.
    pub expect: Expectation,
}

/// What a write changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeCase {
    /// Labels set.
    pub labels: BTreeMap<String, String>,
    /// Labels removed.
    pub remove_labels: Vec<String>,
    /// Annotations set.
    pub annotations: BTreeMap<String, String>,
    /// All taints after the write, as `key=value:Effect`.
    pub taints: Option<Vec<String>>,
    /// Provider ID set.
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
}

/// Saved state in short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SavedCase {
    /// Persisted labels.
    pub labels: BTreeMap<String, String>,
    /// Persisted taints, as `key=value:Effect`.
    pub taints: Vec<String>,
    /// Labels that nodegate put on the node.
    pub owned_labels: BTreeMap<String, String>,
}

/// What must come of a write. What is left out is not looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Expectation {
    /// Labels of the node after the write.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the node after the write.
    pub annotations: BTreeMap<String, String>,
    /// Taints of the node after the write, as `key=value:Effect`.
    pub taints: Vec<String>,
    /// Labels, annotations or taint keys that the node does not have after the write.
    pub absent: Vec<String>,
    /// Exactly these keys are deferred.
    pub deferred: Option<Vec<String>>,
    /// Whether the pending taint is set.
    pub pending: Option<bool>,
    /// Whether there is a patch.
    pub patch: Option<bool>,
    /// What governance says.
    pub verdict: Option<VerdictCase>,
    /// A text that the denial or a warning contains.
    pub message: Option<String>,
    /// Texts that the notes of the decision contain.
    pub notes: Vec<String>,
}

/// What governance says of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum VerdictCase {
    /// No violation.
    Allow,
    /// Allowed with a violation: in mode warn, or with broken glass.
    Warn,
    /// Allowed with a violation in mode audit.
    Audit,
    /// Denied.
    Deny,
}
