//! Saved state: what nodegate keeps of a node across its deletion and re-creation.
//!
//! `nodeName`, `labels` and `capturedAt` are those of the reference operator's `state.json`, so its
//! documents are read as they are. Fields unknown here are kept out of the way, not refused: a newer
//! version may have written them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The `state.json` document of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedState {
    /// The node's name.
    pub node_name: String,
    /// Persisted labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// When this was captured (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured_at: Option<String>,
    /// The uid of the node object this was captured from.
    #[serde(rename = "nodeUID", default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// Persisted taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<SavedTaint>,
    /// What nodegate itself put on the node, and therefore does not match on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owned: Option<Owned>,
}

/// A persisted taint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedTaint {
    /// The key.
    pub key: String,
    /// The value, empty when there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// The effect.
    pub effect: String,
}

/// What nodegate put on a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Owned {
    /// Labels with the values nodegate gave them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints nodegate added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<SavedTaint>,
}
