//! What a write changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::api::names::TaintEffect;
use crate::api::policy::ChangeOperation;
use crate::decide::decision::Decision;
use crate::facts::NodeFacts;
use crate::facts::json::borrow::both;
use crate::facts::request::Write;
use crate::keys::Field;
use crate::keys::restriction::{KUBELET_ANNOTATIONS, is_reconciled_by_kubelet};

/// One key of one part of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeKey<'a> {
    pub(super) field: Field,
    pub(super) key: &'a str,
    /// The effect, for a taint.
    pub(super) effect: Option<TaintEffect>,
}

impl NodeKey<'_> {
    /// The value that nodegate assigns to the key.
    pub(super) fn desired<'d>(&self, decision: &'d Decision) -> Option<&'d str> {
        match (self.field, self.effect) {
            (Field::Taint, Some(effect)) => decision.taint(self.key, effect),
            (Field::Annotation, _) => decision.annotations.get(self.key).map(|desired| desired.value.as_str()),
            _ => decision.label(self.key),
        }
    }
}

impl fmt::Display for NodeKey<'_> {
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
    pub(super) place: NodeKey<'a>,
    pub(super) operation: ChangeOperation,
    pub(super) old: Option<&'a str>,
    pub(super) new: Option<&'a str>,
}

impl<'a> KeyChange<'a> {
    fn new(place: NodeKey<'a>, old: Option<&'a str>, new: Option<&'a str>) -> Option<Self> {
        let operation = match (old, new) {
            (None, Some(_)) => ChangeOperation::Add,
            (Some(_), None) => ChangeOperation::Remove,
            (Some(old), Some(new)) if old != new => ChangeOperation::Change,
            _ => return None,
        };
        Some(Self { place, operation, old, new })
    }

    /// Whether kubelets reconcile this key.
    pub(super) fn is_reconciled(&self) -> bool {
        match self.place.field {
            Field::Label => is_reconciled_by_kubelet(self.place.key),
            Field::Annotation => KUBELET_ANNOTATIONS.contains(&self.place.key),
            Field::Taint => false,
        }
    }

    /// Whether the key now has the value that nodegate assigns.
    pub(super) fn is_desired(&self, decision: &Decision) -> bool {
        self.new.is_some() && self.place.desired(decision) == self.new
    }
}

/// Every label, annotation and taint that differs, sorted.
pub(super) fn changes<'a>(write: &'a Write<'a>) -> Vec<KeyChange<'a>> {
    let (new, old) = (&write.node, write.old.as_ref());
    let place = |field, key, effect| NodeKey { field, key, effect };
    let labels = || {
        let both = both(old.and_then(|old| old.labels.as_ref()), new.labels.as_ref());
        both.filter_map(|(key, old, new)| KeyChange::new(place(Field::Label, key, None), old, new))
    };
    let annotations = || {
        let both = both(old.and_then(|old| old.annotations.as_ref()), new.annotations.as_ref());
        both.filter_map(|(key, old, new)| KeyChange::new(place(Field::Annotation, key, None), old, new))
    };
    // Counted before, because a list that grows takes up to three times the memory, and a writer may change very many keys.
    let mut found = Vec::with_capacity(labels().count() + annotations().count());
    found.extend(labels());
    found.extend(annotations());
    let (now, before) = (taints_of(new), old.map(taints_of).unwrap_or_default());
    let taints: BTreeSet<&(&str, TaintEffect)> = now.keys().chain(before.keys()).collect();
    for id in taints {
        let place = place(Field::Taint, id.0, Some(id.1));
        found.extend(KeyChange::new(place, before.get(id).copied(), now.get(id).copied()));
    }
    found
}

fn taints_of<'a>(node: &'a NodeFacts<'a>) -> BTreeMap<(&'a str, TaintEffect), &'a str> {
    // The API server refuses two taints with one key and effect.
    node.taints().iter().filter_map(|taint| Some(((&*taint.key, taint.effect()?), taint.value()))).collect()
}

/// The change of one key in `changes`, which are sorted.
pub(super) fn at<'c, 'a>(changes: &'c [KeyChange<'a>], place: NodeKey<'_>) -> Option<&'c KeyChange<'a>> {
    changes.binary_search_by(|change| change.place.cmp(&place)).ok().map(|at| &changes[at])
}

/// The operation as a past participle, for messages.
pub(super) fn past(operation: ChangeOperation) -> &'static str {
    match operation {
        ChangeOperation::Add => "added",
        ChangeOperation::Change => "changed",
        ChangeOperation::Remove => "removed",
    }
}
