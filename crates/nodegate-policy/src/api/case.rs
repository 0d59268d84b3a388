//! Policy tests: files with the expected effects of policies on nodes.

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
    /// Inline policies.
    #[serde(default)]
    pub policy: Option<Json>,
    /// A directory of flat label files, relative to this file.
    #[serde(default)]
    pub labels_dir: Option<String>,
    /// The policies must be refused, with errors that contain all of these texts. Such a file has no cases.
    #[serde(default)]
    pub expect_errors: Vec<String>,
    /// The cases.
    #[serde(default)]
    pub cases: Vec<Case>,
}

/// One write to one node, and the expected result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    /// The title, a sentence that says what is expected.
    pub name: String,
    /// The node: a whole Node, or the short form `{name, labels, annotations, taints, capacity, providerID}`.
    #[serde(default)]
    pub node: Option<Json>,
    /// A file with the node, relative to the test file.
    #[serde(default)]
    pub node_file: Option<String>,
    /// The changes of an UPDATE; `node` is then the stored node. Without this field, the write is a CREATE.
    #[serde(default)]
    pub change: Option<ChangeCase>,
    /// `kubelet` (the node's own), `admin`, or a user name. Defaults to `kubelet`.
    #[serde(rename = "as", default)]
    pub requester: Option<String>,
    /// Additional groups of the requester.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Whether the write goes to `nodes/status`.
    #[serde(default)]
    pub status: Option<bool>,
    /// The saved state of the node.
    #[serde(default)]
    pub saved: Option<SavedCase>,
    /// Whether a controller is running, so that the pending taint may be set.
    #[serde(default)]
    pub controller: Option<bool>,
    /// The expected result.
    pub expect: Expectation,
}

/// The changes of a write.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeCase {
    /// Labels to set.
    pub labels: BTreeMap<String, String>,
    /// Labels to remove.
    pub remove_labels: Vec<String>,
    /// Annotations to set.
    pub annotations: BTreeMap<String, String>,
    /// All taints after the write, as `key=value:Effect`.
    #[schemars(extend("x-nodegate" = "taint-text"))]
    pub taints: Option<Vec<String>>,
    /// Provider ID to set.
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
}

/// Saved state in short form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SavedCase {
    /// Persisted labels.
    pub labels: BTreeMap<String, String>,
    /// Persisted taints, as `key=value:Effect`.
    #[schemars(extend("x-nodegate" = "taint-text"))]
    pub taints: Vec<String>,
    /// Labels that nodegate owns.
    pub owned_labels: BTreeMap<String, String>,
}

/// The expected result of a write. Omitted fields are not checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Expectation {
    /// Labels of the node after the write.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the node after the write.
    pub annotations: BTreeMap<String, String>,
    /// Taints of the node after the write, as `key=value:Effect`.
    #[schemars(extend("x-nodegate" = "taint-text"))]
    pub taints: Vec<String>,
    /// Labels, annotations or taint keys that the node does not have after the write.
    pub absent: Vec<String>,
    /// Exactly these keys are deferred.
    pub deferred: Option<Vec<String>>,
    /// Whether the pending taint is set.
    pub pending: Option<bool>,
    /// Whether there is a patch.
    pub patch: Option<bool>,
    /// The verdict of governance.
    pub verdict: Option<VerdictCase>,
    /// A text that the denial or a warning must contain.
    pub message: Option<String>,
    /// Texts that the notes of the decision must contain.
    pub notes: Vec<String>,
}

/// The verdict of governance on a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum VerdictCase {
    /// No violation.
    Allow,
    /// Allowed with a violation: in mode warn, or overridden by a break-glass subject.
    Warn,
    /// Allowed with a violation in mode audit.
    Audit,
    /// Denied.
    Deny,
}
