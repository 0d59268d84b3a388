//! What of a write is the requester's own, and what nodegate takes back of it.

use super::Judge;
use super::changes::KeyChange;
use super::snapshot::{NodeSnapshot, Override};
use crate::api::policy::ChangeOperation;
use crate::decide::decide;
use crate::decide::decision::Decision;
use crate::set::governance::Entry;

/// The requester's own part of a write: without the changes that nodegate or a kubelet's reconciling makes.
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

    /// Whether a change is not the requester's own: nodegate or a kubelet's reconciling makes it.
    fn is_exempt(&self, change: &KeyChange<'a>) -> bool {
        change.is_desired(self.decision()) || (self.kubelet && change.is_reconciled())
    }

    /// Whether nodegate will restore the key.
    fn is_restored(&self, change: &KeyChange<'a>) -> bool {
        change.operation != ChangeOperation::Add && change.place.desired(self.decision()) == change.old
    }

    /// The node as the requester alone would have changed it.
    pub(super) fn requested(&self) -> &RequesterChange<'a> {
        self.requested.get_or_init(|| {
            let own = |change: &KeyChange<'a>| !self.is_exempt(change);
            RequesterChange {
                changes: self.changes.iter().copied().filter(own).collect(),
                snapshot: self.with_changes(own),
            }
        })
    }

    /// The node with only those of the changes that `own` selects.
    fn with_changes(&self, own: impl Fn(&KeyChange<'a>) -> bool) -> NodeSnapshot<'a> {
        let (kept, undone): (Vec<_>, Vec<_>) = self.changes.iter().partition(|change| own(change));
        let snapshot = |facts| NodeSnapshot::new(self.set, facts, self.context.budget);
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
            let node = NodeSnapshot::new(self.set, &self.write.node, self.context.budget);
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
