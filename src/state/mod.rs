//! Saved state in memory: many readers, one source that replaces it.

mod directory;

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::api::state::SavedState;

pub use directory::{StateError, StateObserver, read, watch};

/// What is saved of all nodes, by node name. Reading takes no lock.
#[derive(Debug, Default)]
pub struct SavedStates(ArcSwap<HashMap<String, Arc<SavedState>>>);

impl SavedStates {
    /// What is saved of a node.
    pub fn get(&self, node: &str) -> Option<Arc<SavedState>> {
        self.0.load().get(node).cloned()
    }

    /// How many nodes have saved state.
    pub fn len(&self) -> usize {
        self.0.load().len()
    }

    /// Whether no node has saved state.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces everything.
    pub fn replace(&self, states: HashMap<String, Arc<SavedState>>) {
        self.0.store(Arc::new(states));
    }
}
