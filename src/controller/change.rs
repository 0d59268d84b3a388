//! Describes a change of a node: what it reverts, its size, and its text.

use std::fmt;

use serde::Serialize;

use super::node::NodeObject;
use super::outcome::Done;
use super::revert_tracker::RevertKey;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{Claim, Field, NodeChange, NodeFacts, ReconcilePlan};

/// An owned key that others have changed or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Revert {
    /// The field of the node, and the key (`key:Effect` for a taint).
    pub(super) revert_key: RevertKey,
    /// The name of the writer, if known.
    pub(super) writer: String,
}

/// The keys that nodegate set and others have changed or removed. A key that still has the value that nodegate set is
/// not one of them: its rule sets another value now.
pub(super) fn reverts(node: &NodeObject, facts: &NodeFacts<'_>, saved: &SavedState) -> Vec<Revert> {
    let Some(owned) = &saved.owned else { return Vec::new() };
    let mut found = Vec::new();
    let mut undone = |field, key: String, claim: Option<&Claim>| {
        let writer = claim.or_else(|| node.claims.last_writer());
        let writer = writer.map_or_else(|| "unknown".to_owned(), |claim| claim.manager.to_string());
        found.push(Revert { revert_key: (field, key), writer });
    };
    for (key, _) in owned.labels.iter().filter(|(key, value)| facts.label(key) != Some(value)) {
        undone(Field::Label, key.clone(), facts.label(key).and_then(|_| node.claims.label_writer(key)));
    }
    for (key, _) in owned.annotations.iter().filter(|(key, value)| facts.annotation(key) != Some(value)) {
        undone(Field::Annotation, key.clone(), facts.annotation(key).and_then(|_| node.claims.annotation_writer(key)));
    }
    for taint in &owned.taints {
        let Ok(id) = taint.id() else { continue };
        if facts.taint(&taint.key, id.effect) != Some(&taint.value) {
            undone(Field::Taint, id.to_string(), node.claims.taint_writer());
        }
    }
    found
}

/// Whether a change sets this key.
pub(super) fn sets(change: &NodeChange, (field, key): &RevertKey) -> bool {
    match field {
        Field::Label => change.labels().get(key).is_some_and(Option::is_some),
        Field::Annotation => change.annotations().get(key).is_some_and(Option::is_some),
        Field::Taint => change.taints().iter().any(|(id, value)| value.is_some() && id.to_string() == *key),
    }
}

/// The size of a change.
pub(super) fn summary(facts: &NodeFacts<'_>, plan: &ReconcilePlan, change: Option<&NodeChange>) -> Done {
    let mut done = Done::default();
    let mut count = |there: bool, wanted: bool| match (there, wanted) {
        (false, true) => done.set += 1,
        (true, true) => done.changed += 1,
        (_, false) => done.removed += 1,
    };
    if let Some(change) = change {
        change.labels().iter().for_each(|(key, value)| count(facts.label(key).is_some(), value.is_some()));
        change.annotations().iter().for_each(|(key, value)| count(facts.annotation(key).is_some(), value.is_some()));
        change.taints().iter().for_each(|(id, value)| {
            count(facts.taint(id.key.as_str(), id.effect).is_some(), value.is_some());
        });
    }
    let decision = &plan.decision;
    let desired = decision.labels.len() + decision.annotations.len() + decision.taints.len();
    done.kept = desired.saturating_sub(done.set + done.changed);
    done.lingering = plan.removals.len().saturating_sub(done.removed);
    done
}

/// A part of a change whose stored value differs from the written one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotTaken {
    /// `label`, `annotation` or `taint`.
    pub field: String,
    /// The key; for a taint `key:Effect`.
    pub key: String,
    /// The written value; `None` if the key was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// The stored value; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<String>| value.as_ref().map_or("absent".to_owned(), |value| format!("{value:?}"));
        write!(f, "{} {} is {}, not {}", self.field, self.key, value(&self.stored), value(&self.written))
    }
}

/// The parts of a change that the node, as returned by the API server, does not have.
pub fn not_taken(stored: &NodeFacts<'_>, change: &NodeChange) -> Vec<NotTaken> {
    let mut found = Vec::new();
    let mut compare = |field: Field, key: String, written: Option<&str>, stored: Option<&str>| {
        if written != stored {
            let (written, stored) = (written.map(str::to_owned), stored.map(str::to_owned));
            found.push(NotTaken { field: field.to_string(), key, written, stored });
        }
    };
    for (key, written) in change.labels() {
        compare(Field::Label, key.clone(), written.as_deref(), stored.label(key));
    }
    for (key, written) in change.annotations() {
        compare(Field::Annotation, key.clone(), written.as_deref(), stored.annotation(key));
    }
    for (id, written) in change.taints() {
        compare(Field::Taint, id.to_string(), written.as_deref(), stored.taint(id.key.as_str(), id.effect));
    }
    found
}

/// Formats a change on one line, for logs.
pub(super) fn describe(change: &NodeChange) -> String {
    let sign = |value: bool| if value { "+" } else { "-" };
    let labels = change.labels().iter().map(|(key, value)| format!("{}{key}", sign(value.is_some())));
    let annotations = change.annotations().iter().map(|(key, value)| format!("{}{key}", sign(value.is_some())));
    let taints = change.taints().iter().map(|(id, value)| format!("{}{id}", sign(value.is_some())));
    labels.chain(annotations).chain(taints).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_whose_value_differs_from_the_owned_one_is_reverted_whoever_wrote_it() {
        let text = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"tier": "forged", "same": "given"},
                "managedFields": [
                    {"manager": "nodegate", "operation": "Update", "apiVersion": "v1", "time": "2026-11-21T10:00:00Z",
                     "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:same": {}}}}},
                    {"manager": "writer-1", "operation": "Update", "apiVersion": "v1", "time": "2026-11-21T10:00:01Z",
                     "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:tier": {}}}}, "subresource": "status"}]}})
        .to_string();
        let node = NodeObject::read(&text).unwrap();
        let owned = |keys: &[&str]| {
            let labels = keys.iter().map(|key| ((*key).to_owned(), "given".to_owned())).collect();
            let owned = nodegate_policy::api::state::Owned { labels, ..Default::default() };
            SavedState { owned: Some(owned), ..SavedState::default() }
        };
        let facts = node.facts().unwrap();
        let found = reverts(&node, &facts, &owned(&["gone", "same", "tier"]));
        let found: Vec<(&str, &str)> =
            found.iter().map(|revert| (revert.revert_key.1.as_str(), revert.writer.as_str())).collect();
        assert_eq!(found, [("gone", "writer-1"), ("tier", "writer-1")]);
        assert_eq!(reverts(&node, &facts, &owned(&["same"])), [], "its rule may set another value now");
    }
}
