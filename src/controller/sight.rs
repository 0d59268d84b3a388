//! What the leader sees of nodes: those it can read, those it cannot, and whether it sees them at all.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use super::node::{NodeObject, Read, Seen, Unreadable};
use super::reconcile::Reconciler;

/// The least time between two events about one node: its kubelet decides how often it changes.
const TOLD_AGAIN: Duration = Duration::from_secs(600);

/// What the leader sees of nodes, for all parts of a term.
#[derive(Debug, Default)]
pub(super) struct Sight {
    /// Nodes that are there and cannot be read.
    unreadable: Mutex<HashSet<String>>,
    /// Since when the watch has failed.
    failing: watch::Sender<Option<Instant>>,
}

impl Sight {
    /// Since when the watch has failed; `None` while it does not.
    pub(super) fn failing(&self) -> watch::Receiver<Option<Instant>> {
        self.failing.subscribe()
    }

    /// Returns when the watch has failed for so long.
    pub(super) async fn lost_for(&self, limit: Duration) {
        let mut failing = self.failing();
        loop {
            let left = failing.borrow_and_update().map(|since| limit.saturating_sub(since.elapsed()));
            tokio::select! {
                _ = failing.changed() => {}
                () = tokio::time::sleep(left.unwrap_or(limit)), if left.is_some() => return,
            }
        }
    }

    /// Whether a node of this name is there although it cannot be read.
    pub(super) fn is_unreadable(&self, name: &str) -> bool {
        self.names().contains(name)
    }

    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes in what the watch sees, and tells of what is wrong with it.
pub(super) struct Eyes<'a, Wake> {
    sight: &'a Sight,
    reconciler: &'a Reconciler,
    store: Writer<NodeObject>,
    wake: Wake,
    /// Nodes that are being read anew and cannot be read.
    listed: HashSet<String>,
    /// Nodes of which something is left out.
    partial: HashSet<String>,
    told: HashMap<String, Instant>,
    said: Option<String>,
}

impl<'a, Wake: FnMut(&NodeObject)> Eyes<'a, Wake> {
    /// Keeps `store`, and calls `wake` with every node that is there anew or has changed.
    pub(super) fn new(sight: &'a Sight, reconciler: &'a Reconciler, store: Writer<NodeObject>, wake: Wake) -> Self {
        let (listed, partial, told) = (HashSet::new(), HashSet::new(), HashMap::new());
        Self { sight, reconciler, store, wake, listed, partial, told, said: None }
    }

    /// Takes in one thing that was seen.
    pub(super) fn take(&mut self, seen: Seen) {
        match seen {
            Seen::Begin => {
                self.listed.clear();
                self.store.apply_watcher_event(&Event::Init);
            }
            Seen::There(read) => {
                if let Some(node) = self.readable(read) {
                    self.store.apply_watcher_event(&Event::InitApply(node));
                }
            }
            Seen::All => {
                let listed = std::mem::take(&mut self.listed);
                self.sight.names().retain(|name| listed.contains(name));
                self.store.apply_watcher_event(&Event::InitDone);
                let store = self.store.as_reader();
                // While nodes are listed, the store shows none of them: work on them begins now.
                store.state().iter().for_each(|node| (self.wake)(node));
                self.partial.retain(|name| store.get(&ObjectRef::new(name)).is_some());
            }
            Seen::Watching => self.works(),
            Seen::Changed(read) => {
                if let Some(node) = self.readable(read) {
                    (self.wake)(&node);
                    self.store.apply_watcher_event(&Event::Apply(node));
                }
            }
            Seen::Gone(read) => {
                let name =
                    read.as_ref().map_or_else(|unreadable| unreadable.name.as_str(), NodeObject::name).to_owned();
                self.sight.names().remove(&name);
                self.partial.remove(&name);
                self.told.remove(&name);
                if let Some(known) = self.drop_from_store(&name) {
                    self.reconciler.memory().forget(&known);
                }
            }
            Seen::Failed(error) => self.fails(error.to_string()),
        }
        self.count();
    }

    /// A node, unless it cannot be read: that costs this node and no other.
    fn readable(&mut self, read: Read) -> Option<NodeObject> {
        match read {
            Ok(node) => {
                self.sight.names().remove(node.name());
                self.note_left_out(&node);
                Some(node)
            }
            Err(unreadable) => {
                self.cannot_read(unreadable);
                None
            }
        }
    }

    fn cannot_read(&mut self, Unreadable { name, why }: Unreadable) {
        self.listed.insert(name.clone());
        self.sight.names().insert(name.clone());
        self.partial.remove(&name);
        // What it was before is not acted on.
        self.drop_from_store(&name);
        if self.may_tell(&name) {
            tracing::warn!(node = name, error = why, "this node cannot be read; it is left as it is, all others go on");
            let note = format!("nodegate cannot read this node and leaves it as it is: {why}");
            if !name.is_empty() {
                self.reconciler.events().later_about(&name, "Unreadable", note);
            }
        }
    }

    fn note_left_out(&mut self, node: &NodeObject) {
        let left_out: Vec<&str> = node.left_out().collect();
        if left_out.is_empty() {
            self.partial.remove(node.name());
            return;
        }
        self.partial.insert(node.name().to_owned());
        if self.may_tell(node.name()) {
            let fields = left_out.join(", ");
            tracing::warn!(
                node = node.name(),
                fields,
                "too large to be kept; expressions that read them have no answer"
            );
            let note = format!("{fields}: too large; the controller has no answer to expressions that read it");
            self.reconciler.events().later(node, "ReadInPart", note);
        }
    }

    fn may_tell(&mut self, name: &str) -> bool {
        if self.told.get(name).is_some_and(|at| at.elapsed() < TOLD_AGAIN) {
            return false;
        }
        self.told.insert(name.to_owned(), Instant::now());
        true
    }

    fn drop_from_store(&mut self, name: &str) -> Option<NodeObject> {
        let known = NodeObject::clone(&*self.store.as_reader().get(&ObjectRef::new(name))?);
        self.store.apply_watcher_event(&Event::Delete(known.clone()));
        Some(known)
    }

    fn works(&mut self) {
        if self.said.take().is_some() {
            tracing::info!("nodes are watched again");
        }
        self.sight.failing.send_if_modified(|failing| failing.take().is_some());
    }

    fn fails(&mut self, error: String) {
        if self.said.as_ref() != Some(&error) {
            tracing::warn!(%error, "the watch of nodes failed; trying again");
            self.said = Some(error);
        }
        self.sight.failing.send_if_modified(|failing| {
            let first = failing.is_none();
            failing.get_or_insert_with(Instant::now);
            first
        });
    }

    fn count(&self) {
        let metrics = &self.reconciler.metrics().controller;
        let count = |nodes: usize| i64::try_from(nodes).unwrap_or(i64::MAX);
        metrics.unreadable_nodes.set(count(self.sight.names().len()));
        metrics.nodes_read_in_part.set(count(self.partial.len()));
        metrics.node_watch_failing.set(i64::from(self.sight.failing.borrow().is_some()));
    }
}
