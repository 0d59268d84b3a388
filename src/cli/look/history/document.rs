//! What `nodegate history` prints for other programs. Fields are added, never renamed.

use schemars::JsonSchema;
use serde::Serialize;

use nodegate_policy::api::state::{Change, How};

/// A recorded change of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    /// When it happened, or when nodegate noticed it (RFC 3339).
    pub(in crate::cli) time: String,
    /// The name of the node.
    pub(in crate::cli) node: String,
    /// What happened to the key. Absent if the node itself was deleted or has returned, and if
    /// nothing happened because the value that the kubelet claimed was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) op: Option<Op>,
    /// The part of the node.
    pub(in crate::cli) field: FieldName,
    /// The key. Absent if the node was deleted or has returned. Of a rejected claim about the node:
    /// `metadata.ownerReferences`, or the number of keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) key: Option<String>,
    /// The effect of a taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) effect: Option<String>,
    /// The value after the change, or the rejected claim. Absent if the key was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) value: Option<String>,
    /// The value before the change. Absent if the key was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) was: Option<String>,
    /// Who made the change, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) by: Option<String>,
    /// What `by` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) by_kind: Option<ByKind>,
    /// How the change came about.
    pub(in crate::cli) how: How,
    /// The rule of a change that nodegate made, as `policy/rule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) rule: Option<String>,
    /// The number of the change, increasing per node; for `nodegate history NODE --revert ID`.
    pub(in crate::cli) id: u64,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Op {
    /// It was added.
    Add,
    /// It got another value.
    Change,
    /// It was removed.
    Remove,
}

/// A part of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum FieldName {
    /// `metadata.labels`.
    Label,
    /// `metadata.annotations`.
    Annotation,
    /// `spec.taints`.
    Taint,
    /// The whole node: it was deleted or has returned, a claim about it was rejected, or an administrator said which pools it belongs to.
    Node,
}

impl FieldName {
    /// The name as the documents write it.
    pub(in crate::cli) fn as_str(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Annotation => "annotation",
            Self::Taint => "taint",
            Self::Node => "node",
        }
    }
}

/// What `by` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ByKind {
    /// The authenticated requester (`serve --stamp-changes`).
    Requester,
    /// A field manager, whose name the client chose.
    FieldManager,
}

impl Entry {
    /// A recorded change of `node`.
    pub(in crate::cli) fn new(node: &str, change: &Change) -> Self {
        let Change { id, time, by, by_requester, how: _, rule, field, key, old, new } = change;
        let (field, key, effect) = match field.as_str() {
            "node" => (FieldName::Node, Some(key.as_str()).filter(|key| !key.is_empty()), None),
            "annotation" => (FieldName::Annotation, Some(key.as_str()), None),
            "taint" => match key.rsplit_once(':') {
                Some((key, effect)) => (FieldName::Taint, Some(key), Some(effect)),
                None => (FieldName::Taint, Some(key.as_str()), None),
            },
            _ => (FieldName::Label, Some(key.as_str()), None),
        };
        let op = match (old, new) {
            _ if field == FieldName::Node || change.how() == How::Rejected => None,
            (None, _) => Some(Op::Add),
            (Some(_), Some(_)) => Some(Op::Change),
            (Some(_), None) => Some(Op::Remove),
        };
        let by = Some(by.clone()).filter(|by| !by.is_empty());
        let by_kind = if *by_requester { ByKind::Requester } else { ByKind::FieldManager };
        Self {
            time: time.clone(),
            node: node.to_owned(),
            op,
            field,
            key: key.map(str::to_owned),
            effect: effect.map(str::to_owned),
            value: new.clone(),
            was: old.clone(),
            by_kind: by.is_some().then_some(by_kind),
            by,
            how: change.how(),
            rule: Some(rule.clone()).filter(|rule| !rule.is_empty()),
            id: *id,
        }
    }
}
