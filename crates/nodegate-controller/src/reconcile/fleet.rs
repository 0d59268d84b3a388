//! What one node adds to the metrics of all nodes.

use jiff::Timestamp;

use super::Reconciler;
use crate::memory::fleet::Member;
use crate::node::NodeObject;

impl Reconciler {
    /// Takes up a version of a node for the metrics.
    pub(crate) fn note_in_fleet(&self, node: &NodeObject, now: Timestamp) {
        let member = node.facts().ok().map(|facts| Member {
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

    /// Sets the metrics of all nodes.
    pub(crate) fn count_fleet(&self, now: Timestamp) {
        let memory = self.memory();
        let count = memory.count(self.counted_labels(), now, self.pending_timeout());
        let differs: Vec<_> = memory.hardware_differs().collect();
        drop(memory);
        self.metrics().fleet.counted(count);
        self.metrics().fleet.hardware_differs(differs);
    }
}
