//! What a write changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::side::keys_of;
use crate::api::names::TaintEffect;
use crate::api::policy::ChangeOperation;
use crate::policy::decision::Field;
use crate::policy::facts::NodeFacts;
use crate::policy::request::Write;

/// One key of one part of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place<'a> {
    pub(super) field: Field,
    pub(super) key: &'a str,
    /// Of a taint.
    pub(super) effect: Option<TaintEffect>,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.effect {
            Some(effect) => write!(f, "{}:{effect}", self.key),
            None => f.write_str(self.key),
        }
    }
}

/// One key that a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyChange<'a> {
    pub(super) place: Place<'a>,
    pub(super) operation: ChangeOperation,
    pub(super) old: Option<&'a str>,
    pub(super) new: Option<&'a str>,
}

impl<'a> KeyChange<'a> {
    fn new(place: Place<'a>, old: Option<&'a str>, new: Option<&'a str>) -> Option<Self> {
        let operation = match (old, new) {
            (None, Some(_)) => ChangeOperation::Add,
            (Some(_), None) => ChangeOperation::Remove,
            (Some(old), Some(new)) if old != new => ChangeOperation::Change,
            _ => return None,
        };
        Some(Self { place, operation, old, new })
    }
}

/// Every label, annotation and taint that differs, sorted.
pub(super) fn changes<'a>(write: &'a Write<'a>) -> Vec<KeyChange<'a>> {
    let (new, old) = (&write.node, write.old.as_ref());
    let mut found = Vec::new();
    let place = |field, key, effect| Place { field, key, effect };
    for key in keys_of(new.labels().chain(old.into_iter().flat_map(NodeFacts::labels))) {
        let old = old.and_then(|old| old.label(key));
        found.extend(KeyChange::new(place(Field::Label, key, None), old, new.label(key)));
    }
    for key in keys_of(new.annotations().chain(old.into_iter().flat_map(NodeFacts::annotations))) {
        let old = old.and_then(|old| old.annotation(key));
        found.extend(KeyChange::new(place(Field::Annotation, key, None), old, new.annotation(key)));
    }
    let (now, before) = (taints_of(new), old.map(taints_of).unwrap_or_default());
    let taints: BTreeSet<&(&str, TaintEffect)> = now.keys().chain(before.keys()).collect();
    for id in taints {
        let place = place(Field::Taint, id.0, Some(id.1));
        found.extend(KeyChange::new(place, before.get(id).copied(), now.get(id).copied()));
    }
    found
}

fn taints_of<'a>(node: &'a NodeFacts<'a>) -> BTreeMap<(&'a str, TaintEffect), &'a str> {
    // The API server takes no two of one key and effect.
    node.taints().iter().filter_map(|taint| Some(((&*taint.key, taint.effect()?), taint.value()))).collect()
}

/// The change of one key among `changes`, which are sorted.
pub(super) fn at<'c, 'a>(changes: &'c [KeyChange<'a>], place: Place<'_>) -> Option<&'c KeyChange<'a>> {
    changes.binary_search_by(|change| change.place.cmp(&place)).ok().map(|at| &changes[at])
}

/// What happened to a key, in a word.
pub(super) fn past(operation: ChangeOperation) -> &'static str {
    match operation {
        ChangeOperation::Add => "added",
        ChangeOperation::Change => "changed",
        ChangeOperation::Remove => "removed",
    }
}
