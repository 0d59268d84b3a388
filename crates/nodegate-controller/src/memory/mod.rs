//! What a term remembers about nodes. It is only an optimization: losing it costs a check or a write, never a label.

pub(crate) mod departures;
pub(crate) mod fleet;
pub(crate) mod hardware;
pub(crate) mod history;
pub(crate) mod patched_taints;
pub(crate) mod refusals;
pub(crate) mod removals;
pub(crate) mod revert_tracker;
pub(crate) mod unrecorded;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::memory::departures::{Departed, Departures};
use crate::memory::fleet::Fleet;
use crate::memory::hardware::Hardware;
use crate::memory::history::History;
use crate::memory::patched_taints::PatchedTaints;
use crate::memory::refusals::Refusals;
use crate::memory::removals::{MaxRemovals, Removals};
use crate::memory::revert_tracker::RevertTracker;
use crate::memory::unrecorded::Unrecorded;
use crate::node::NodeObject;
use crate::node::limit::NodeBudgets;
use nodegate_base::log_limit::LogLimit;
use nodegate_policy::PolicySet;
use prometheus_client::metrics::gauge::Gauge;

/// The watch reports nodegate's own write within this time, unless the write changed nothing.
const SHOWN: Duration = Duration::from_secs(10);

/// What a term remembers about nodes.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The nodes that exist, as the watch says: their uids by name. What is remembered below is about these only.
    living: HashMap<String, String>,
    pub(crate) departures: Departures,
    /// The policies in force when it was last told what a node got and what it lost, by uid.
    told: HashMap<String, [Weak<PolicySet>; 2]>,
    pub(crate) removals: Removals,
    pub(crate) reverts: RevertTracker,
    pub(crate) history: History,
    pub(crate) failures: HashMap<String, u32>,
    /// Which version of a node nodegate's own write replaced, and when, by uid.
    replaced: HashMap<String, (String, Instant)>,
    pub(crate) patched_taints: PatchedTaints,
    pub(crate) fleet: Fleet,
    /// The uids of nodes that were processed in this term.
    pub(crate) looked_at: HashSet<String>,
    /// The uids of nodes whose join was reported in this term.
    pub(crate) joined: HashSet<String>,
    /// The rejected claims that were logged lately. Any number of nodes can join at once.
    pub(crate) rejections: LogLimit,
    pub(crate) budgets: NodeBudgets,
    pub(crate) unrecorded: Unrecorded,
    pub(crate) refusals: Refusals,
    pub(crate) hardware: Hardware,
}

impl Memory {
    /// An empty memory. `records_last_change`: whether the webhook maintains stamps; `unrecorded_nodes`: the number of nodes whose
    /// record could not be written.
    pub(crate) fn new(max_removals: MaxRemovals, records_last_change: bool, unrecorded_nodes: Gauge) -> Self {
        Self {
            living: HashMap::new(),
            departures: Departures::default(),
            told: HashMap::new(),
            removals: Removals::new(max_removals),
            reverts: RevertTracker::default(),
            history: History::new(records_last_change),
            failures: HashMap::new(),
            replaced: HashMap::new(),
            patched_taints: PatchedTaints::default(),
            fleet: Fleet::default(),
            looked_at: HashSet::new(),
            joined: HashSet::new(),
            rejections: LogLimit::default(),
            budgets: NodeBudgets::default(),
            unrecorded: Unrecorded::new(unrecorded_nodes),
            refusals: Refusals::default(),
            hardware: Hardware::default(),
        }
    }

    /// Whether it was not told yet what a node got, or lost, by these policies; it is now.
    pub(crate) fn is_new_policy(&mut self, uid: &str, policies: &Arc<PolicySet>, lost: bool) -> bool {
        let told = &mut self.told.entry(uid.to_owned()).or_default()[usize::from(lost)];
        let is_new = !std::ptr::eq(told.as_ptr(), Arc::as_ptr(policies));
        *told = Arc::downgrade(policies);
        is_new
    }

    /// Records that the watch has reported a node. Only the watch may call this.
    pub(crate) fn lives(&mut self, node: &NodeObject) {
        let before = self.living.insert(node.name().to_owned(), node.uid().to_owned());
        if let Some(uid) = before.filter(|uid| uid != node.uid()) {
            self.forget(&uid, node.name());
        }
    }

    /// Records that a node was deleted, as the watch says: `last` is what was last seen of it. Only the watch may call this.
    pub(crate) fn left(&mut self, last: NodeObject, at: Timestamp) {
        let (name, uid) = (last.name().to_owned(), last.uid().to_owned());
        let changes = self.history.unrecorded(&name);
        let is_behind = self.is_replaced(&last);
        self.departures.note(Departed { node: last, at, changes, is_behind, failures: 0 });
        if self.living.get(&name) == Some(&uid) {
            self.living.remove(&name);
            self.forget(&uid, &name);
        }
    }

    /// Forgets a node that cannot be read anymore, or that was deleted and is not known otherwise. Only the watch may call
    /// this.
    pub(crate) fn lost(&mut self, name: &str) {
        if let Some(uid) = self.living.remove(name) {
            self.forget(&uid, name);
        }
    }

    /// Whether there is a node of this name.
    pub(crate) fn is_living(&self, name: &str) -> bool {
        self.living.contains_key(name)
    }

    /// Forgets what was noted about a node that has been deleted meanwhile. Call this after everything that waits.
    pub(crate) fn settle(&mut self, node: &NodeObject) {
        match self.living.get(node.name()) {
            Some(uid) if uid == node.uid() => {}
            // What is known by the name is about the node that has it now.
            Some(_) => self.forget_uid(node.uid()),
            None => self.forget(node.uid(), node.name()),
        }
    }

    /// Every field is named, so that the compiler asks what becomes of a new one.
    fn forget(&mut self, uid: &str, name: &str) {
        let Self {
            history,
            failures,
            patched_taints,
            fleet,
            // Only the watch changes these.
            living: _,
            departures: _,
            // Of all nodes together.
            rejections: _,
            // By uid.
            told: _,
            removals: _,
            reverts: _,
            replaced: _,
            looked_at: _,
            joined: _,
            budgets: _,
            unrecorded: _,
            refusals: _,
            hardware: _,
        } = self;
        history.forget(name);
        failures.remove(name);
        patched_taints.forget(name);
        fleet.forget(name);
        self.forget_uid(uid);
    }

    fn forget_uid(&mut self, uid: &str) {
        let Self {
            history,
            told,
            removals,
            reverts,
            replaced,
            looked_at,
            joined,
            budgets,
            unrecorded,
            refusals,
            hardware,
            // Of all nodes together.
            rejections: _,
            // By name.
            living: _,
            departures: _,
            failures: _,
            patched_taints: _,
            fleet: _,
        } = self;
        history.forget_uid(uid);
        told.remove(uid);
        removals.forget(uid);
        reverts.forget(uid);
        replaced.remove(uid);
        looked_at.remove(uid);
        joined.remove(uid);
        budgets.forget(uid);
        unrecorded.forget(uid);
        refusals.forget(uid);
        hardware.forget(uid);
    }

    /// Whether nodegate's last write replaced this version of a node.
    pub(crate) fn is_replaced(&self, node: &NodeObject) -> bool {
        self.replaced.get(node.uid()).is_some_and(|(version, _)| version == node.resource_version())
    }

    /// Records that nodegate has written to this version of a node.
    pub(crate) fn wrote(&mut self, node: &NodeObject, now: Instant) {
        self.replaced.insert(node.uid().to_owned(), (node.resource_version().to_owned(), now));
    }

    /// Whether this is the version of the node before nodegate's last write, so that the work is already done.
    pub(crate) fn is_behind(&mut self, node: &NodeObject, now: Instant) -> bool {
        let Some((version, at)) = self.replaced.get(node.uid()) else { return false };
        if version != node.resource_version() {
            self.replaced.remove(node.uid());
            return false;
        }
        // A write that changed nothing creates no new version.
        now.saturating_duration_since(*at) < SHOWN
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, uid: &str, version: &str) -> NodeObject {
        let text =
            json!({"metadata": {"name": name, "uid": uid, "resourceVersion": version, "labels": {"v": version}}});
        NodeObject::read(&text.to_string()).unwrap()
    }

    /// What a watch and a reconcile note about a node.
    fn note(memory: &mut Memory, node: &NodeObject) {
        let now = Instant::now();
        memory.history.note(node, Timestamp::UNIX_EPOCH, crate::memory::history::Sight::Next);
        memory.patched_taints.note(node);
        note_late(memory, node, now);
    }

    fn note_late(memory: &mut Memory, node: &NodeObject, now: Instant) {
        let removal = nodegate_policy::Removal {
            field: nodegate_policy::Field::Label,
            key: "a".to_owned(),
            after: Duration::from_secs(60),
        };
        memory.removals.due(node.uid(), &[removal], now);
        memory.removals.answered(node.uid(), now);
        memory.reverts.report_uncounted(node.uid());
        *memory.failures.entry(node.name().to_owned()).or_default() += 1;
        memory.wrote(node, now);
        memory.looked_at.insert(node.uid().to_owned());
        memory.joined.insert(node.uid().to_owned());
        memory.is_new_policy(node.uid(), &Arc::default(), false);
        memory.refusals.note(node.uid(), vec!["a".to_owned()], now);
        let stored = nodegate_policy::api::state::SavedState::default();
        memory.unrecorded.failed(node.uid(), &stored, stored.clone(), String::new(), now);
    }

    /// Whether anything of these nodes is still there.
    fn is_known(memory: &Memory, uid: &str, name: &str) -> bool {
        let text = format!("{memory:?}");
        text.contains(&format!("{uid:?}")) || text.contains(&format!("{name:?}"))
    }

    #[test]
    fn a_node_that_went_before_the_watch_showed_nodegates_write_is_known_to_be_behind() {
        let mut memory = Memory::new(MaxRemovals::Tenth, false, Gauge::default());
        let (before, after) = (node("n1", "u1", "1"), node("n1", "u1", "2"));
        let leave = |memory: &mut Memory, last: &NodeObject| {
            memory.left(last.clone(), Timestamp::UNIX_EPOCH);
            memory.departures.take("n1").map(|departed| departed.is_behind)
        };
        let long_ago = Instant::now();
        memory.lives(&before);
        memory.wrote(&before, long_ago);
        assert!(memory.is_behind(&before, long_ago) && !memory.is_behind(&before, long_ago + SHOWN));
        assert_eq!(leave(&mut memory, &before), Some(true), "however long ago the write was");
        memory.lives(&before);
        memory.wrote(&before, long_ago);
        assert_eq!(leave(&mut memory, &after), Some(false), "the deletion shows the write");
    }

    #[test]
    fn nothing_of_a_deleted_node_stays_not_even_what_a_reconcile_notes_afterwards() {
        let unrecorded = Gauge::default();
        let mut memory = Memory::new(MaxRemovals::Tenth, false, unrecorded.clone());
        let (gone, after) = (node("n1", "u1", "1"), node("n1", "u2", "5"));
        memory.lives(&gone);
        note(&mut memory, &gone);
        assert_eq!(unrecorded.get(), 1);
        memory.left(gone.clone(), Timestamp::UNIX_EPOCH);
        assert_eq!(unrecorded.get(), 0);
        assert!(memory.departures.take("n1").is_some_and(|departed| departed.node.uid() == "u1"));
        assert!(!is_known(&memory, "u1", "n1"), "{memory:?}");
        note_late(&mut memory, &gone, Instant::now());
        memory.settle(&gone);
        assert!(!is_known(&memory, "u1", "n1"), "{memory:?}");

        // It is there again before the reconcile ends.
        memory.lives(&after);
        note(&mut memory, &after);
        note_late(&mut memory, &gone, Instant::now());
        memory.settle(&gone);
        memory.settle(&after);
        assert!(!is_known(&memory, "u1", "none") && is_known(&memory, "u2", "n1"), "{memory:?}");

        // Its end was not seen, or it cannot be read anymore.
        let third = node("n1", "u3", "9");
        memory.lives(&third);
        assert!(!is_known(&memory, "u2", "none"), "{memory:?}");
        note(&mut memory, &third);
        memory.lost("n1");
        assert!(!is_known(&memory, "u3", "n1"), "{memory:?}");
    }
}
