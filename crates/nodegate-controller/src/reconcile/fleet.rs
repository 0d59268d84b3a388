//! What one node adds to the metrics of all nodes.

use jiff::Timestamp;

use super::Reconciler;
use crate::memory::fleet::Member;
use crate::node::NodeObject;

impl Reconciler {
    /// Takes up a version of a node for the metrics.
    pub(crate) fn note_in_fleet(&self, node: &NodeObject, now: Timestamp) {
        let Ok(facts) = node.facts() else {
            self.memory().fleet.forget(node.name());
            return;
        };
        let member = Member {
            uid: node.uid().to_owned(),
            created: node.created().map(|created| created.as_second()),
            pending: self.is_pending(&facts),
            completed: false,
            values: self
                .counted_labels()
                .iter()
                .map(|key| facts.label(key.as_str()).unwrap_or_default().to_owned())
                .collect(),
        };
        let waited = self.memory().fleet.note(node.name(), member, now);
        if let Some(seconds) = waited {
            self.metrics().fleet.completed(seconds);
        }
    }

    /// Sets the metrics of all nodes.
    pub(crate) fn count_fleet(&self, now: Timestamp) {
        let count = self.memory().fleet.count(self.counted_labels(), now, self.pending_timeout());
        self.metrics().fleet.counted(count);
    }
}
