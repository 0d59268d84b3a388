//! What a term remembers about nodes. It is only an optimization: losing it costs a check or a write, never a label.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::arrivals::Arrivals;
use super::fleet::Fleet;
use super::hardware::Hardware;
use super::history::History;
use super::limit::NodeBudgets;
use super::node::NodeObject;
use super::refusals::Refusals;
use super::removals::{MaxRemovals, Removals};
use super::revert_tracker::RevertTracker;
use super::unrecorded::Unrecorded;

/// The watch reports nodegate's own write within this time, unless the write changed nothing.
const SHOWN: Duration = Duration::from_secs(10);

/// What a term remembers about nodes.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) removals: Removals,
    pub(super) reverts: RevertTracker,
    pub(super) history: History,
    pub(super) failures: HashMap<String, u32>,
    /// Which version of a node nodegate's own write replaced, and when, by uid.
    replaced: HashMap<String, (String, Instant)>,
    pub(super) arrivals: Arrivals,
    pub(super) fleet: Fleet,
    /// The uids of nodes that were processed in this term.
    pub(super) looked_at: HashSet<String>,
    /// The uids of nodes whose join was reported in this term.
    pub(super) joined: HashSet<String>,
    pub(super) budgets: NodeBudgets,
    pub(super) unrecorded: Unrecorded,
    pub(super) refusals: Refusals,
    pub(super) hardware: Hardware,
}

impl Memory {
    /// An empty memory. `stamps`: whether the webhook maintains stamps.
    pub(super) fn new(max_removals: MaxRemovals, records_last_change: bool) -> Self {
        Self {
            removals: Removals::new(max_removals),
            reverts: RevertTracker::default(),
            history: History::new(records_last_change),
            failures: HashMap::new(),
            replaced: HashMap::new(),
            arrivals: Arrivals::default(),
            fleet: Fleet::default(),
            looked_at: HashSet::new(),
            joined: HashSet::new(),
            budgets: NodeBudgets::default(),
            unrecorded: Unrecorded::default(),
            refusals: Refusals::default(),
            hardware: Hardware::default(),
        }
    }

    /// Forgets a node that was deleted.
    pub(super) fn forget(&mut self, node: &NodeObject) {
        self.history.forget(node);
        self.removals.forget(node.uid());
        self.reverts.forget(node.uid());
        self.failures.remove(node.name());
        self.replaced.remove(node.uid());
        self.arrivals.forget(node.name());
        self.fleet.forget(node.name());
        self.looked_at.remove(node.uid());
        self.joined.remove(node.uid());
        self.budgets.forget(node.uid());
        self.unrecorded.forget(node.uid());
        self.refusals.forget(node.uid());
        self.hardware.forget(node.uid());
    }

    /// Records that nodegate has written to this version of a node.
    pub(super) fn wrote(&mut self, node: &NodeObject, now: Instant) {
        self.replaced.insert(node.uid().to_owned(), (node.resource_version().to_owned(), now));
    }

    /// Whether this is the version of the node before nodegate's last write, so that the work is already done.
    pub(super) fn is_behind(&mut self, node: &NodeObject, now: Instant) -> bool {
        let Some((version, at)) = self.replaced.get(node.uid()) else { return false };
        // A write that changed nothing creates no new version.
        let behind = version == node.resource_version() && now.saturating_duration_since(*at) < SHOWN;
        if !behind {
            self.replaced.remove(node.uid());
        }
        behind
    }
}
