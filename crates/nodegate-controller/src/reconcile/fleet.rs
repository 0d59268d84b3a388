//! What one node adds to what is known of all nodes.

use std::sync::Arc;

use jiff::Timestamp;
use kube::runtime::reflector::{ObjectRef, Store};

use super::Reconciler;
use crate::memory::fleet::{Member, patience};
use crate::memory::shares::Share;
use crate::node::NodeObject;
use nodegate_policy::{PolicySet, PoolShare};

impl Reconciler {
    /// Takes up what a node says about its pools, if policies ask for that.
    pub(crate) fn note_share(&self, node: &NodeObject, set: &Arc<PolicySet>, said: Option<PoolShare>) {
        if set.pools_remember()
            && self.with_memory(node, |known| Share::note(&mut known.share, set, said)) == Some(true)
        {
            self.shared.notify_one();
        }
    }

    /// Takes up a version of a node for the metrics.
    pub(crate) fn note_in_fleet(&self, node: &NodeObject, now: Timestamp) {
        let member = node.text().facts().ok().map(|facts| Member {
            created: node.created().map(|created| created.as_second()),
            pending: self.is_pending(&facts),
            completed: false,
            values: self
                .counted_labels()
                .iter()
                .map(|key| facts.label(key.as_str()).unwrap_or_default().to_owned())
                .collect(),
        });
        let mut memory = self.memory();
        let Some(known) = memory.living(node) else { return };
        let waited = match member {
            Some(member) => Member::follow(&mut known.member, member, now),
            None => {
                known.member = None;
                None
            }
        };
        drop(memory);
        if let Some(seconds) = waited {
            self.metrics().fleet.completed(seconds);
        }
    }

    /// Sets the metrics of all nodes, which are in the `store`.
    pub(crate) fn count_fleet(&self, store: &Store<NodeObject>, now: Timestamp) {
        let memory = self.memory();
        let mut count = memory.count(self.counted_labels());
        let overdue = memory.overdue(now, self.pending_timeout());
        let differs: Vec<_> = memory.hardware_differs().collect();
        drop(memory);
        // A gate may give them more time.
        let longest = self.policies().longest_gate().unwrap_or_default();
        let has_time = |name: &String| {
            let node = store.get(&ObjectRef::new(name))?;
            let created = node.created()?.as_second();
            Some(!patience(created, now, longest).is_zero() && self.awaited_by(&node).has_time(created, now))
        };
        count.pending_too_long = overdue.iter().filter(|name| has_time(name) != Some(true)).count();
        self.metrics().fleet.counted(count);
        self.metrics().fleet.hardware_differs(differs);
    }
}
