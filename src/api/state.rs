//! Saved state: what nodegate keeps of a node across its deletion and re-creation.
//!
//! `nodeName`, `labels` and `capturedAt` are those of the reference operator's `state.json`, so its
//! documents are read as they are. Fields unknown here are kept, not refused: a newer version may have written them.

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
    /// What machine this is, by the setting `--identity`; absent where that is the name alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// What nodegate itself put on the node, and therefore does not match on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owned: Option<Owned>,
    /// Prefixes of the discovery daemons that the node has had labels of, so that their restart is told from their
    /// absence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub publishers: Vec<String>,
    /// When the node was found deleted (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<String>,
    /// The last changes of the node, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Change>,
    /// What a newer version has written; kept as it is.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

impl SavedState {
    /// Whether there is nothing in it worth keeping: no node object, no key.
    pub fn says_nothing(&self) -> bool {
        self.node_uid.is_none() && self.labels.is_empty() && self.taints.is_empty() && self.owned.is_none()
    }
}

/// One change that a node saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Counts up per node; what `history NODE --revert ID` takes.
    pub id: u64,
    /// When it was seen (RFC 3339).
    pub time: String,
    /// The field manager that wrote it, or the stamped requester; empty when nobody claims it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// `admission`, `controller`, `status` or `update`.
    pub how: String,
    /// `label`, `annotation` or `taint`.
    pub field: String,
    /// The key; for a taint `key:Effect`.
    pub key: String,
    /// The value before; absent when the key was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The value after; absent when the key is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

/// A persisted taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
#[serde(rename_all = "camelCase")]
pub struct Owned {
    /// Labels with the values nodegate gave them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations with the values nodegate gave them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Taints nodegate added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<SavedTaint>,
    /// Grace before removal in seconds, by key (`key:Effect` for a taint), where it is not 60: it outlives its rule.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub remove_after: BTreeMap<String, u64>,
}
