//! What a kubelet may not change on its own node: keys that policies protect, keys that come back on the next machine of
//! this name, and nodegate's own.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::facts::NodeFacts;
use super::never_persisted;
use super::request::{Circumstances, Operation, Write};
use super::restriction::{is_own, is_reconciled_by_kubelet};
use super::rule::Saved;
use super::set::PolicySet;
use super::tri::Tri;
use super::view::View;

/// Why a kubelet may not change a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// It is nodegate's own.
    Own,
    /// It is saved of the living node, or would be.
    Persisted,
    /// A policy protects it.
    Protected,
}

/// What the kubelet that sends a write may not change.
pub(super) struct Guard<'a> {
    set: &'a PolicySet,
    write: &'a Write<'a>,
    circumstances: Circumstances<'a>,
    persisting: OnceCell<Vec<&'a Saved>>,
}

impl<'a> Guard<'a> {
    /// The guard against the requester of `write`; `None` when that is no kubelet.
    pub(super) fn of(set: &'a PolicySet, write: &'a Write<'a>, circumstances: &Circumstances<'a>) -> Option<Self> {
        let (circumstances, persisting) = (*circumstances, OnceCell::new());
        write.requester.is_kubelet().then_some(Self { set, write, circumstances, persisting })
    }

    fn is_living(&self) -> bool {
        self.write.operation == Operation::Update
    }

    /// Why the kubelet may not change this label, if so. What it reconciles is never held.
    pub(super) fn label(&self, key: &str) -> Option<Hold> {
        if is_own(key) {
            Some(Hold::Own)
        } else if is_reconciled_by_kubelet(key) {
            None
        } else if self.is_persisted(key) {
            Some(Hold::Persisted)
        } else {
            self.set.is_protected(key).then_some(Hold::Protected)
        }
    }

    /// Labels that the kubelet changes and may not, with the value that is stored.
    pub(super) fn asserted(&self) -> BTreeMap<&'a str, Option<&'a str>> {
        let (node, old) = (&self.write.node, self.write.old.as_ref());
        let stored = |key: &str| old.and_then(|old| old.label(key));
        let sent = node.labels().map(|(key, value)| (key, stored(key), Some(value)));
        let removed = old.into_iter().flat_map(NodeFacts::labels).filter(|(key, _)| node.label(key).is_none());
        let removed = removed.map(|(key, value)| (key, Some(value), None));
        let changed = sent.chain(removed).filter(|(_, stored, sent)| stored != sent);
        changed.filter(|(key, ..)| self.label(key).is_some()).map(|(key, stored, _)| (key, stored)).collect()
    }

    /// Whether a kubelet's UPDATE has to leave this label as it is stored, whoever gives it another value: a native policy
    /// that guards it sees the write with our patch, and cannot tell the two apart. Wider than [`Self::label`], since such
    /// a policy need not know which nodes a `persist` section is about.
    pub(super) fn keeps_as_stored(&self, key: &str) -> bool {
        self.is_living()
            && !is_reconciled_by_kubelet(key)
            && (self.label(key).is_some() || self.set.names_persisted(key))
    }

    /// Whether this label is saved of the living node, or a `persist` section that is about it names the key: a kubelet
    /// that changed it would change what comes back on another machine.
    fn is_persisted(&self, key: &str) -> bool {
        if !self.is_living() || never_persisted::label(key).is_some() {
            return false;
        }
        let uid = self.write.old.as_ref().and_then(|old| old.uid.as_deref());
        let saved = self.circumstances.saved.filter(|saved| uid.is_some() && saved.node_uid.as_deref() == uid);
        saved.is_some_and(|saved| saved.labels.contains_key(key))
            || self.persisting().iter().any(|saved| saved.labels.contains(key))
    }

    /// What is persisted of this node, as it is stored or as it would be: no write gets out of the guard by the labels that
    /// it changes. A section that cannot be told to be about the node counts.
    fn persisting(&self) -> &[&'a Saved] {
        self.persisting.get_or_init(|| {
            let view = |facts: &'a NodeFacts<'a>| View::new(self.set, facts, None).within(self.circumstances.budget);
            let sides: Vec<View<'a>> =
                [Some(&self.write.node), self.write.old.as_ref()].into_iter().flatten().map(view).collect();
            let is_about = |view: &View<'a>, rule: &'a super::rule::Rule| rule.matcher.evaluate(view) != Tri::False;
            let about = self.set.persisting_rules().filter(|rule| sides.iter().any(|side| is_about(side, rule)));
            about.filter_map(|rule| rule.gives.saved.as_ref()).collect()
        })
    }
}
