//! Describes a change of a node: what it reverts, its size, and its text.

use std::cell::LazyCell;
use std::fmt;

use serde::Serialize;

use crate::memory::reverts::RevertKey;
use crate::node::NodeObject;
use crate::reconcile::outcome::{Awaited, Done};
use nodegate_base::text::{cut, or_quotes};
use nodegate_policy::api::names::TaintId;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{Claim, Field, NodeChange, NodeFacts, ReconcilePlan, RuleId};

/// An owned key that others have changed or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Revert {
    /// The field of the node, and the key (`key:Effect` for a taint).
    pub(crate) revert_key: RevertKey,
    /// The name of the writer, if known.
    pub(crate) writer: String,
}

/// The keys that nodegate set and others have changed or removed. A key that still has the value that nodegate set is
/// not one of them: its rule sets another value now.
pub(crate) fn reverts(node: &NodeObject, facts: &NodeFacts<'_>, saved: &SavedState) -> Vec<Revert> {
    let Some(owned) = &saved.owned else { return Vec::new() };
    let mut found = Vec::new();
    // Most of the time nothing was changed.
    let claims = LazyCell::new(|| node.claims());
    let mut undone = |field, key: String, claim: Option<&Claim>| {
        let writer = claim.or_else(|| claims.last_writer());
        let writer = writer.map_or_else(|| "unknown".to_owned(), |claim| claim.manager.to_string());
        found.push(Revert { revert_key: (field, key), writer });
    };
    for (key, _) in owned.labels.iter().filter(|(key, value)| facts.label(key) != Some(value)) {
        undone(Field::Label, key.to_owned(), facts.label(key).and_then(|_| claims.label_writer(key)));
    }
    for (key, _) in owned.annotations.iter().filter(|(key, value)| facts.annotation(key) != Some(value)) {
        undone(Field::Annotation, key.to_owned(), facts.annotation(key).and_then(|_| claims.annotation_writer(key)));
    }
    for taint in &owned.taints {
        let Ok(id) = taint.id() else { continue };
        if facts.taint(&taint.key, id.effect) != Some(&taint.value) {
            undone(Field::Taint, id.to_string(), claims.taint_writer());
        }
    }
    found
}

/// Whether a change sets this key.
pub(crate) fn sets(change: &NodeChange, (field, key): &RevertKey) -> bool {
    match field {
        Field::Label => change.labels().get(key).is_some_and(Option::is_some),
        Field::Annotation => change.annotations().get(key).is_some_and(Option::is_some),
        Field::Taint => change.taints().iter().any(|(id, value)| value.is_some() && id.to_string() == *key),
    }
}

/// The size of a change.
pub(crate) fn summary(facts: &NodeFacts<'_>, plan: &ReconcilePlan, change: Option<&NodeChange>) -> Done {
    let mut done = Done { awaited: Awaited::of(plan), ..Done::default() };
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

/// Formats a change on one line, for logs: `+tier=gold (policy fleet, rule gold) -old`.
pub(crate) fn describe(change: &NodeChange, plan: Option<&ReconcilePlan>) -> String {
    let part = |field: Field, key: &str, value: Option<String>| match value {
        None => format!("-{key}"),
        Some(value) => format!("+{}", assignment(&value, plan.and_then(|plan| plan.giver(field, key)))),
    };
    let labels = change
        .labels()
        .iter()
        .map(|(key, value)| part(Field::Label, key, value.as_deref().map(|value| pair(key, value))));
    let annotations = change
        .annotations()
        .iter()
        .map(|(key, value)| part(Field::Annotation, key, value.as_deref().map(|value| pair(key, value))));
    let taints = change
        .taints()
        .iter()
        .map(|(id, value)| part(Field::Taint, &id.to_string(), value.as_deref().map(|value| taint(id, value))));
    let mut text = labels.chain(annotations).chain(taints).collect::<Vec<_>>().join(" ");
    cut(&mut text, DESCRIPTION_MAX);
    text
}

/// Maximum length of a described change, in bytes.
const DESCRIPTION_MAX: usize = 4096;
/// Maximum length of a value in it; an annotation can have 256 KiB.
const VALUE_MAX: usize = 128;

/// A label or an annotation, as people write it.
pub(crate) fn pair(key: &str, value: &str) -> String {
    let mut value = value.to_owned();
    cut(&mut value, VALUE_MAX);
    format!("{key}={}", or_quotes(&value))
}

/// A taint, as people write it.
pub(crate) fn taint(id: &TaintId, value: &str) -> String {
    if value.is_empty() { id.to_string() } else { format!("{}={value}:{}", id.key, id.effect) }
}

/// A value with the rule that assigns it.
pub(crate) fn assignment(value: &str, by: Option<&RuleId>) -> String {
    match by {
        Some(by) => format!("{value} (policy {}, rule {})", by.policy, by.rule),
        None => value.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use nodegate_policy::{PendingTaints, PolicyDocument, PolicySet, StoredNode, plan_reconcile};

    fn policies(spec: serde_json::Value) -> PolicySet {
        PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap()
    }

    fn planned<T>(set: &PolicySet, node: &NodeObject, saved: &SavedState, look: impl FnOnce(&ReconcilePlan) -> T) -> T {
        let text = node.text();
        let stored = StoredNode {
            pools: None,
            node: &text.facts().unwrap(),
            version: None,
            claims: text.claims(),
            saved,
            inventory: None,
            devices: None,
            registered: true,
            identified: true,
            pending: <&PendingTaints>::default(),
            adopt: false,
            patched_taints: &BTreeSet::new(),
            elsewhere: Default::default(),
            evidence: None,
        };
        look(&plan_reconcile(set, &stored))
    }

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
        let text = node.text();
        let facts = text.facts().unwrap();
        let found = reverts(&node, &facts, &owned(&["gone", "same", "tier"]));
        let found: Vec<(&str, &str)> =
            found.iter().map(|revert| (revert.revert_key.1.as_str(), revert.writer.as_str())).collect();
        assert_eq!(found, [("gone", "writer-1"), ("tier", "writer-1")]);
        assert_eq!(reverts(&node, &facts, &owned(&["same"])), [], "its rule may set another value now");
    }

    #[test]
    fn a_change_is_described_with_its_values_and_the_rules_that_assign_them() {
        let set = policies(
            json!({"rules": [{"name": "net", "labels": {"net.class": "x", "none": ""}, "annotations": {"long": "y".repeat(500)},
            "taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]}]}),
        );
        let node =
            NodeObject::read(&json!({"metadata": {"name": "n", "uid": "u", "labels": {"old": "a"}}}).to_string())
                .unwrap();
        let saved: SavedState =
            serde_json::from_value(json!({"nodeName": "n", "nodeUID": "u", "owned": {"labels": {"old": "a"}}}))
                .unwrap();
        let (change, text) = planned(&set, &node, &saved, |plan| {
            let change = plan.change(|_| true, |_, _| false).unwrap();
            let text = describe(&change, Some(plan));
            (change, text)
        });
        let rule = "(policy fleet, rule net)";
        let long = format!("{}…", "y".repeat(VALUE_MAX - 3));
        assert_eq!(
            text,
            format!("+net.class=x {rule} +none=\"\" {rule} -old +long={long} {rule} +dedicated=gpu:NoSchedule {rule}")
        );
        assert!(describe(&change, None).starts_with("+net.class=x +none=\"\" -old "));
    }
}
