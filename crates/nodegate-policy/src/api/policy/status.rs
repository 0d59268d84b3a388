//! The status of a `NodePolicy` object.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of a `NodePolicy` object, written by the leader.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePolicyStatus {
    /// The generation of the object that this status describes.
    pub observed_generation: i64,
    /// The generation in force: the current one, or the last valid one before it. Null if there is none.
    pub generation_in_force: Option<i64>,
    /// Number of nodes on which this policy sets something.
    pub matched_nodes: i64,
    /// `Accepted`: the current generation is in force. `Conflicted`: for some key, another policy's value takes precedence.
    /// `Contested`: some keys are no longer repaired, because another writer kept reverting them. `Braked`: removals are on
    /// hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PolicyCondition>,
    /// Rules that the API server also enforces natively, if native policies are enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native: Option<NativeStatus>,
}

/// Rules of a policy that the API server enforces natively, even while nodegate is down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NativeStatus {
    /// Number of rules that are enforced natively.
    pub holding: i64,
    /// Number of rules that are not, or only in part.
    pub not_holding: i64,
    /// The rules, those that are not enforced natively first; at most 200.
    pub rules: Vec<NativeRule>,
}

/// Whether one rule is enforced natively.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NativeRule {
    /// The rule, entry or section, and the key if only one key is concerned.
    pub rule: String,
    /// Whether it is enforced natively.
    pub holds: bool,
    /// The reason why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One condition of a `NodePolicy` (the shape of `meta/v1 Condition`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyCondition {
    /// The type of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason for the status, as one word in CamelCase.
    pub reason: String,
    /// The reason for the status, as a sentence.
    pub message: String,
    /// Last time that `status` changed (RFC 3339).
    pub last_transition_time: String,
    /// The generation of the object that this condition describes.
    pub observed_generation: i64,
}
