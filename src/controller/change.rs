//! What a change of a node is about: who is undone by it, how much it is, how it reads.

use super::node::NodeObject;
use super::reconcile::Done;
use crate::api::state::SavedState;
use crate::policy::{Claim, Field, Keep, NodeChange, NodeFacts};

/// Owned keys that somebody has changed or removed: what is repaired, with the writer as far as he is known.
pub(super) fn reverts(
    node: &NodeObject,
    facts: &NodeFacts<'_>,
    saved: &SavedState,
    change: &NodeChange,
) -> Vec<(Field, String, String)> {
    let Some(owned) = &saved.owned else { return Vec::new() };
    let manager = |claim: Option<&Claim>| {
        claim
            .or_else(|| node.claims.last_writer())
            .map_or_else(|| "unknown".to_owned(), |claim| claim.manager.to_string())
    };
    let mut found = Vec::new();
    for (key, _) in change.labels().iter().filter(|(key, value)| value.is_some() && owned.labels.contains_key(*key)) {
        let writer = facts.label(key).and_then(|_| node.claims.label_writer(key));
        found.push((Field::Label, key.clone(), manager(writer)));
    }
    let annotations = change.annotations().iter();
    for (key, _) in annotations.filter(|(key, value)| value.is_some() && owned.annotations.contains_key(*key)) {
        let writer = facts.annotation(key).and_then(|_| node.claims.annotation_writer(key));
        found.push((Field::Annotation, key.clone(), manager(writer)));
    }
    for (id, _) in change.taints().iter().filter(|(_, value)| value.is_some()) {
        if owned.taints.iter().any(|taint| taint.id().as_ref() == Ok(id)) {
            found.push((Field::Taint, id.to_string(), manager(node.claims.taint_writer())));
        }
    }
    found
}

/// What a change comes to, in numbers.
pub(super) fn summary(facts: &NodeFacts<'_>, keep: &Keep, change: Option<&NodeChange>) -> Done {
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
    let decision = &keep.decision;
    let desired = decision.labels.len() + decision.annotations.len() + decision.taints.len();
    done.kept = desired.saturating_sub(done.set + done.changed);
    done.lingering = keep.removals.len().saturating_sub(done.removed);
    done
}

/// A change in one line, for logs.
pub(super) fn describe(change: &NodeChange) -> String {
    let sign = |value: bool| if value { "+" } else { "-" };
    let labels = change.labels().iter().map(|(key, value)| format!("{}{key}", sign(value.is_some())));
    let annotations = change.annotations().iter().map(|(key, value)| format!("{}{key}", sign(value.is_some())));
    let taints = change.taints().iter().map(|(id, value)| format!("{}{id}", sign(value.is_some())));
    labels.chain(annotations).chain(taints).collect::<Vec<_>>().join(" ")
}
