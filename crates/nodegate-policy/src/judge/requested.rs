//! What of a write is the requester's own, and what nodegate takes back of it.

use super::Judge;
use super::changes::{KeyChange, NodeKey};
use super::snapshot::{NodeSnapshot, Override};
use crate::api::policy::ChangeOperation;
use crate::decide::decide;
use crate::decide::decision::Decision;
use crate::keys::Field;
use crate::set::governance::Entry;
use crate::set::rule::Rule;

/// The requester's own part of a write: without the changes that nodegate, a kubelet's reconciling or the control plane makes.
pub(super) struct RequesterChange<'a> {
    pub(super) changes: Vec<KeyChange<'a>>,
    pub(super) snapshot: NodeSnapshot<'a>,
}

/// The node with the values that nodegate restores.
pub(super) struct Restored<'a> {
    whole: NodeSnapshot<'a>,
    /// The same with the requester's own changes only.
    requested: NodeSnapshot<'a>,
}

impl<'a> Judge<'a, '_> {
    /// What nodegate sets on the node. Computed only if needed, because it decides again.
    pub(super) fn decision(&self) -> &Decision {
        self.decision.get_or_init(|| decide(self.set, self.write, self.context))
    }

    /// Whether a change is not the requester's own: nodegate, a kubelet's reconciling or the control plane makes it.
    fn is_exempt(&self, change: &KeyChange<'a>) -> bool {
        if self.is_own_work(change) {
            return true;
        }
        match self.equal_other(change) {
            // Of two keys that get one value in one write, which one was copied is not visible anymore.
            Some(other) if self.is_changed(other) => self.is_given(change.place.key, other, change.new),
            Some(_) => true,
            None => change.is_desired(self.decision()),
        }
    }

    /// The other key of the migration of a label, if that has the value that the label gets, and may be
    /// its source.
    fn equal_other(&self, change: &KeyChange<'a>) -> Option<&'a str> {
        let (migration, other) = self.set.moved(change.place.key).filter(|_| change.place.field == Field::Label)?;
        migration.written().find(|written| written.as_str() == change.place.key)?;
        (change.new.is_some() && self.write.node.label(other.as_str()) == change.new).then_some(other.as_str())
    }

    fn is_changed(&self, label: &str) -> bool {
        self.changes.iter().any(|one| one.place.field == Field::Label && one.place.key == label)
    }

    /// Whether a rule gives the value to one of the two keys, or may give it, or whether it is restored.
    fn is_given(&self, key: &str, other: &str, value: Option<&str>) -> bool {
        let saved = self.context.saved;
        let gives = |rule: &Rule| {
            [key, other].into_iter().any(|key| {
                let fixed = rule.assigns.labels.iter().find(|(given, _)| given.as_str() == key);
                match (fixed, &rule.assigns.saved) {
                    (Some((_, given)), _) => Some(given.as_str()) == value,
                    (None, Some(patterns)) => {
                        let saved = saved.and_then(|saved| saved.labels.get(key));
                        patterns.labels.contains(key) && saved == value
                    }
                    (None, None) => rule.may_write_label(key),
                }
            })
        };
        let mut rules = self.set.rules().iter().filter(|rule| rule.assigns.migration.is_none());
        rules.any(|rule| gives(rule) && self.new.matches(&rule.matcher))
    }

    /// The labels that nodegate will remove because the requester removes the other key of their migration.
    pub(super) fn following_removals(&self) -> Vec<KeyChange<'a>> {
        let Some(old) = &self.write.old else { return Vec::new() };
        let owned = self.context.saved.and_then(|saved| saved.owned.as_ref()).map(|owned| &owned.labels);
        let removed = self
            .changes
            .iter()
            .filter(|change| change.place.field == Field::Label && change.operation == ChangeOperation::Remove);
        let copies = removed.filter_map(|change| {
            let (_, copy) = self.set.moved(change.place.key)?;
            let (key, value) = old.labels().find(|(key, _)| *key == copy.as_str())?;
            let goes = self.write.node.label(key) == Some(value)
                && owned?.get(key).is_some_and(|owned| owned == value)
                && self.decision().label(key).is_none()
                && self.decision().label(change.place.key).is_none();
            let place = NodeKey { field: Field::Label, key, effect: None };
            goes.then_some(KeyChange { place, operation: ChangeOperation::Remove, old: Some(value), new: None })
        });
        copies.collect()
    }

    /// Whether nodegate will restore the key.
    fn is_restored(&self, change: &KeyChange<'a>) -> bool {
        change.operation != ChangeOperation::Add && change.place.desired(self.decision()) == change.old
    }

    /// The node as the requester alone would have changed it.
    pub(super) fn requested(&self) -> &RequesterChange<'a> {
        self.requested.get_or_init(|| {
            let own = |change: &KeyChange<'a>| !self.is_exempt(change);
            let mut changes = Vec::with_capacity(self.changes.len());
            changes.extend(self.changes.iter().copied().filter(own));
            RequesterChange { changes, snapshot: self.with_changes(own) }
        })
    }

    /// The node with only those of the changes that `own` selects.
    fn with_changes(&self, own: impl Fn(&KeyChange<'a>) -> bool) -> NodeSnapshot<'a> {
        let (kept, undone): (Vec<_>, Vec<_>) = self.changes.iter().partition(|change| own(change));
        let snapshot = |facts| NodeSnapshot::new(self.set, facts, self.write.evidence.as_ref(), self.context.budget);
        match &self.write.old {
            // A kubelet must always be able to report its node's status, so only keys of its writes are judged.
            Some(old) if self.kubelet => {
                let as_new = |change: &KeyChange<'a>| Override { place: change.place, value: change.new };
                snapshot(old).with(kept.into_iter().map(as_new).collect())
            }
            _ => {
                let as_old = |change: &KeyChange<'a>| Override { place: change.place, value: change.old };
                snapshot(&self.write.node).with(undone.into_iter().map(as_old).collect())
            }
        }
    }

    fn restored(&self) -> Option<&Restored<'a>> {
        let restored = self.restored.get_or_init(|| {
            let back: Vec<_> = self.changes.iter().filter(|change| self.is_restored(change)).collect();
            if back.is_empty() {
                return None;
            }
            let as_old = |change: &KeyChange<'a>| Override { place: change.place, value: change.old };
            let node = NodeSnapshot::new(self.set, &self.write.node, self.write.evidence.as_ref(), self.context.budget);
            Some(Restored {
                whole: node.with(back.into_iter().map(as_old).collect()),
                requested: self.with_changes(|change| !self.is_exempt(change) && !self.is_restored(change)),
            })
        });
        restored.as_ref()
    }

    /// Whether an entry applies to the node as it will be: as written, or after nodegate has restored its values.
    pub(super) fn will_match(&self, entry: &Entry) -> bool {
        self.new.matches(&entry.matcher)
            || self.restored().is_some_and(|restored| restored.whole.matches(&entry.matcher))
    }

    /// The same for the node with the requester's own changes only.
    pub(super) fn requested_matches(&self, entry: &Entry) -> bool {
        self.requested().snapshot.matches(&entry.matcher)
            || self.restored().is_some_and(|restored| restored.requested.matches(&entry.matcher))
    }
}
