//! One recorded change of a node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One change of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The number of the change, increasing per node; the ID for `history NODE --revert ID`.
    pub id: u64,
    /// When it happened, or when nodegate noticed it (RFC 3339).
    pub time: String,
    /// The field manager that wrote it, or the requester in the last-change annotation; empty if nobody claims it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Whether `by` is the requester, whom the API server has authenticated. Clients choose the names of field managers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_requester: bool,
    /// `admission`, `controller`, `restored`, `kubelet`, `rejected`, `user`, `unknown`, `deleted`, `returned` or `adopted`; `status` and `update` in
    /// records of older versions.
    pub how: String,
    /// The rule of a change that nodegate made, as `policy/rule`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// `label`, `annotation` or `taint`; `node` if the node was deleted or has returned, a claim about it was rejected, or it was
    /// adopted.
    pub field: String,
    /// The key; for a taint `key:Effect`. Empty if the node was deleted or has returned; what was claimed if a claim about
    /// the node was rejected; `pool` if it was adopted.
    pub key: String,
    /// The value before; absent if the key was absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The value after; absent if the key was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

/// How a change came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum How {
    /// nodegate's webhook set it in another's request. Of a taint: it had the rule's value when the node was first
    /// seen.
    Admission,
    /// nodegate's controller set it.
    Controller,
    /// nodegate restored it from saved state.
    Restored,
    /// The kubelet set it, judged by the field manager.
    Kubelet,
    /// The kubelet claimed `value`, which was rejected. The key did not change.
    Rejected,
    /// Another person or program set it.
    User,
    /// It is unknown who removed the key.
    Unknown,
    /// The node was deleted.
    Deleted,
    /// A node with this name was created again.
    Returned,
    /// An administrator said which pools the node belongs to, or took that back.
    Adopted,
}

impl How {
    /// The name in [`Change::how`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Controller => "controller",
            Self::Restored => "restored",
            Self::Kubelet => "kubelet",
            Self::Rejected => "rejected",
            Self::User => "user",
            Self::Unknown => "unknown",
            Self::Deleted => "deleted",
            Self::Returned => "returned",
            Self::Adopted => "adopted",
        }
    }
}

impl Change {
    /// How the change came about. Records of older versions have other names.
    pub fn how(&self) -> How {
        match self.how.as_str() {
            "admission" => How::Admission,
            "controller" => How::Controller,
            "restored" => How::Restored,
            "kubelet" | "status" => How::Kubelet,
            "rejected" => How::Rejected,
            "unknown" => How::Unknown,
            "deleted" => How::Deleted,
            "returned" => How::Returned,
            "adopted" => How::Adopted,
            _ => How::User,
        }
    }
}
