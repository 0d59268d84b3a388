//! Nodes that were deleted, until that is recorded: their last labels and taints, and when they were deleted.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::node::NodeMemory;
use crate::node::NodeObject;
use nodegate_policy::api::state::Change;

/// Maximum number of nodes. Of further ones the next collection notes that they are gone.
const WAITING_MAX: usize = 4096;

#[derive(Debug)]
struct Departed {
    last: Arc<NodeObject>,
    at: Timestamp,
    /// What is known of it, to which a write that is under way may add.
    memory: NodeMemory,
    /// Whether its deletion is being recorded.
    is_begun: bool,
    /// How often it could not be recorded.
    failures: usize,
}

/// A node whose deletion is to be recorded.
#[derive(Debug)]
pub(crate) struct Departure {
    /// What was last seen of it.
    pub(crate) last: Arc<NodeObject>,
    /// When it was deleted.
    pub(crate) at: Timestamp,
    /// Its changes that are not recorded yet.
    pub(crate) changes: Vec<Change>,
}

/// Nodes that were deleted, by name.
#[derive(Debug, Default)]
pub(crate) struct Departures(HashMap<String, Departed>);

impl Departures {
    /// Adds a node, in place of an earlier one of its name.
    pub(super) fn note(&mut self, last: NodeObject, at: Timestamp, mut memory: NodeMemory) {
        if self.0.len() >= WAITING_MAX {
            return;
        }
        // The stored record is smaller, so that it can be written where this one could not.
        memory.unrecorded.forget();
        let name = last.name().to_owned();
        self.0.insert(name, Departed { last: Arc::new(last), at, memory, is_begun: false, failures: 0 });
    }

    /// What is known of a node that was deleted.
    pub(super) fn of(&mut self, node: &NodeObject) -> Option<&mut NodeMemory> {
        let departed = self.0.get_mut(node.name())?;
        Some(&mut departed.memory).filter(|memory| memory.is_of(node))
    }

    /// The name of a node whose deletion nobody records yet.
    pub(crate) fn next(&self) -> Option<String> {
        self.0.iter().find(|(_, departed)| !departed.is_begun).map(|(name, _)| name.clone())
    }

    /// Begins to record the deletion of the node of this name, unless somebody has begun.
    pub(crate) fn begin(&mut self, name: &str) -> Option<Departure> {
        let departed = self.0.get_mut(name).filter(|departed| !departed.is_begun)?;
        departed.is_begun = true;
        let changes = departed.memory.history.unrecorded();
        Some(Departure { last: departed.last.clone(), at: departed.at, changes })
    }

    /// Notes that the deletion could not be recorded. Returns how often that was so.
    pub(crate) fn failed(&mut self, node: &NodeObject) -> usize {
        let Some(departed) = self.0.get_mut(node.name()).filter(|departed| departed.memory.is_of(node)) else {
            return 0;
        };
        departed.is_begun = false;
        departed.failures += 1;
        departed.failures
    }

    /// Forgets a node: its deletion is recorded, or will not be.
    pub(crate) fn end(&mut self, node: &NodeObject) {
        if self.of(node).is_some() {
            self.0.remove(node.name());
        }
    }
}
