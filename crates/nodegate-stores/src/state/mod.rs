//! Saved state in memory: many readers, one source (a directory of files, or ConfigMaps by watch), and one writer.

mod configmaps;
mod directory;
mod error;
mod identity;
mod index;
mod layout;
mod merge;
mod pools;
mod stored_map;
mod writer;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use arc_swap::ArcSwap;

use crate::by_text::ByText;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{PoolMemory, Publishers};

pub use configmaps::ConfigMaps;
pub use directory::{StateError, StateObserver, read, read_with_history, watch};
pub use error::WriteError;
pub use identity::{Identity, Machine};
pub use index::Precedence;
pub use layout::{NAME_PREFIX, STATE_KEY, Unused, UnusedDocument, is_record};
pub use pools::{POOLS_KEY, POOLS_NAME};
pub use stored_map::{Deletion, StoredMap};
pub use writer::{StateWriter, Written};

/// Shards of the map that are replaced one by one, so that a change copies few entries.
const SHARDS: usize = 128;

/// Documents by their keys ([`Identity::key`]).
type Shard = ByText<SavedState>;

/// The saved state of all nodes. Reading takes no lock.
#[derive(Debug)]
pub struct SavedStates {
    identity: Identity,
    shards: Vec<ArcSwap<Shard>>,
    /// The programs that publish labels on any node ([`Publishers::bits`]). One stays until all documents are replaced.
    publishers: AtomicU16,
    /// What pools remember, as it was last read.
    pools: ArcSwap<PoolMemory>,
    /// Whether that is stored.
    are_pools_stored: AtomicBool,
}

impl Default for SavedStates {
    fn default() -> Self {
        Self::new(Identity::Name)
    }
}

impl SavedStates {
    /// Empty saved state.
    pub fn new(identity: Identity) -> Self {
        let shards = (0..SHARDS).map(|_| ArcSwap::default()).collect();
        Self {
            identity,
            shards,
            publishers: AtomicU16::default(),
            pools: ArcSwap::default(),
            are_pools_stored: AtomicBool::new(false),
        }
    }

    /// How documents are matched to nodes.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    fn shard(&self, key: &str) -> &ArcSwap<Shard> {
        &self.shards[shard_of(key)]
    }

    /// The saved state of this node. `None` also if its identity is not known yet.
    pub fn get(&self, node: Machine<'_>) -> Option<Arc<SavedState>> {
        self.identity.lookup(node).iter().find_map(|key| self.by_key(key))
    }

    /// The saved state of the node with this name, according to the documents' `nodeName`.
    pub fn all(&self) -> Vec<Arc<SavedState>> {
        self.shards.iter().flat_map(|shard| shard.load().iter().cloned().collect::<Vec<_>>()).collect()
    }

    fn by_key(&self, key: &str) -> Option<Arc<SavedState>> {
        with_key(&self.shard(key).load(), key).cloned()
    }

    /// The programs that publish labels on any node.
    pub fn publishers(&self) -> Publishers {
        Publishers::from_bits(self.publishers.load(Ordering::Relaxed))
    }

    /// What pools remember.
    pub fn pools(&self) -> Arc<PoolMemory> {
        self.pools.load_full()
    }

    /// Takes up what pools remember, as the watch shows it. Nobody else knows that it is stored: what the API server has answered may have
    /// been deleted since.
    pub(super) fn remember_pools(&self, pools: Arc<PoolMemory>) {
        self.pools.store(pools);
        self.are_pools_stored.store(true, Ordering::Relaxed);
    }

    /// Notes that what pools remember is stored nowhere now, or cannot be read. What was last read stays in force.
    pub(super) fn pools_are_gone(&self) {
        self.are_pools_stored.store(false, Ordering::Relaxed);
    }

    /// Whether this is what is stored of what pools remember.
    pub fn are_stored(&self, pools: &PoolMemory) -> bool {
        self.are_pools_stored.load(Ordering::Relaxed) && **self.pools.load() == *pools
    }

    /// The number of documents.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.load().len()).sum()
    }

    /// Whether there is no saved state.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces all documents.
    pub fn replace(&self, states: impl IntoIterator<Item = Arc<SavedState>>) {
        let mut shards: Vec<Shard> = vec![Shard::default(); SHARDS];
        let mut publishers = Publishers::default();
        for state in states {
            publishers = publishers.and(Publishers::named(&state.publishers));
            let key = Identity::key(&state);
            put(&mut shards[shard_of(&key)], &key, &state);
        }
        for (place, shard) in self.shards.iter().zip(shards) {
            place.store(Arc::new(shard));
        }
        self.publishers.store(publishers.bits(), Ordering::Relaxed);
    }

    fn put(&self, state: Arc<SavedState>) {
        self.publishers.fetch_or(Publishers::named(&state.publishers).bits(), Ordering::Relaxed);
        let key = Identity::key(&state);
        self.shard(&key).rcu(|shard| {
            let mut shard = Shard::clone(shard);
            put(&mut shard, &key, &state);
            shard
        });
    }

    fn remove(&self, key: &str) {
        self.shard(key).rcu(|shard| {
            let mut shard = Shard::clone(shard);
            remove(&mut shard, key);
            shard
        });
    }
}

/// The number of the shard that a key is in.
fn shard_of(key: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or_default()
}

fn with_key<'s>(shard: &'s Shard, key: &str) -> Option<&'s Arc<SavedState>> {
    shard.like(key).find(|state| Identity::is_key(key, state))
}

fn remove(shard: &mut Shard, key: &str) {
    if let Some(state) = with_key(shard, key).cloned() {
        shard.remove(key, &state);
    }
}

/// Adds a document, in place of one with this key.
fn put(shard: &mut Shard, key: &str, state: &Arc<SavedState>) {
    remove(shard, key);
    shard.insert(key, state);
}
