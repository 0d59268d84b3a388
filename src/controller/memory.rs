//! What a term remembers of nodes. All of it is advice: what is forgotten costs a look or a write, no label.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::arrivals::Arrivals;
use super::fights::Fights;
use super::history::History;
use super::limit::NodeBudgets;
use super::node::NodeObject;
use super::patching::Refusals;
use super::records::Unrecorded;
use super::removals::{MaxRemovals, Removals};

/// The watch shows our own write within this time, or it changed nothing.
const SHOWN: Duration = Duration::from_secs(10);

/// What a term remembers of nodes.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) removals: Removals,
    pub(super) fights: Fights,
    pub(super) history: History,
    pub(super) failures: HashMap<String, u32>,
    /// Which version of a node was replaced by our own write, and when, by uid.
    replaced: HashMap<String, (String, Instant)>,
    pub(super) arrivals: Arrivals,
    /// The uids of nodes that were looked at in this term.
    pub(super) looked_at: HashSet<String>,
    pub(super) budgets: NodeBudgets,
    pub(super) unrecorded: Unrecorded,
    pub(super) refusals: Refusals,
}

impl Memory {
    /// Nothing is remembered yet. `stamps`: whether the webhook keeps stamps.
    pub(super) fn new(max_removals: MaxRemovals, stamps: bool) -> Self {
        Self {
            removals: Removals::new(max_removals),
            fights: Fights::default(),
            history: History::new(stamps),
            failures: HashMap::new(),
            replaced: HashMap::new(),
            arrivals: Arrivals::default(),
            looked_at: HashSet::new(),
            budgets: NodeBudgets::default(),
            unrecorded: Unrecorded::default(),
            refusals: Refusals::default(),
        }
    }

    /// A node is gone.
    pub(super) fn forget(&mut self, node: &NodeObject) {
        self.history.forget(node.name());
        self.removals.forget(node.uid());
        self.fights.forget(node.uid());
        self.failures.remove(node.name());
        self.replaced.remove(node.uid());
        self.arrivals.forget(node.name());
        self.looked_at.remove(node.uid());
        self.budgets.forget(node.uid());
        self.unrecorded.forget(node.uid());
        self.refusals.forget(node.uid());
    }

    /// A node was written to: this version of it is the past.
    pub(super) fn wrote(&mut self, node: &NodeObject, now: Instant) {
        self.replaced.insert(node.uid().to_owned(), (node.resource_version().to_owned(), now));
    }

    /// Whether this is the node as it was before we last wrote to it: what has to be done was done.
    pub(super) fn is_behind(&mut self, node: &NodeObject, now: Instant) -> bool {
        let Some((version, at)) = self.replaced.get(node.uid()) else { return false };
        // A write that changed nothing makes no new version.
        let behind = version == node.resource_version() && now.saturating_duration_since(*at) < SHOWN;
        if !behind {
            self.replaced.remove(node.uid());
        }
        behind
    }
}
