//! Nodes that were deleted, until that is recorded: their last labels and taints, and when they were deleted.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::node::NodeObject;
use nodegate_policy::api::state::Change;

/// Maximum number of nodes. Of further ones the next collection notes that they are gone.
const WAITING_MAX: usize = 4096;
/// A node that was deleted.
#[derive(Debug)]
pub(crate) struct Departed {
    /// What was last seen of it.
    pub(crate) node: NodeObject,
    /// When it was deleted.
    pub(crate) at: Timestamp,
    /// Its changes that are not recorded yet.
    pub(crate) changes: Vec<Change>,
    /// Whether `node` is the version before nodegate's last write, because the watch was interrupted.
    pub(crate) is_behind: bool,
    /// How often it could not be recorded.
    pub(crate) failures: usize,
}

/// Nodes that were deleted, by name.
#[derive(Debug, Default)]
pub(crate) struct Departures(HashMap<String, Departed>);

impl Departures {
    /// Adds a node.
    pub(crate) fn note(&mut self, departed: Departed) {
        if self.0.len() < WAITING_MAX {
            self.0.insert(departed.node.name().to_owned(), departed);
        }
    }

    /// Adds a node again, unless another one of its name was deleted since.
    pub(crate) fn note_again(&mut self, departed: Departed) {
        self.0.entry(departed.node.name().to_owned()).or_insert(departed);
    }

    /// Takes out the node with this name.
    pub(crate) fn take(&mut self, name: &str) -> Option<Departed> {
        self.0.remove(name)
    }

    /// A name, if there is a node.
    pub(crate) fn next(&self) -> Option<String> {
        self.0.keys().next().cloned()
    }
}
