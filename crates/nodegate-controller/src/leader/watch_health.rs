//! What the leader knows about nodes: which are readable, which are not, and whether the watch works.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::memory::history::Sight;
use crate::node::{NodeObject, NodesError, Read, Unreadable, WatchEvent};
use crate::reconcile::Reconciler;
use nodegate_base::api_server;

/// Minimum time between two events about one node, because its kubelet decides how often it changes.
const REPORT_INTERVAL: Duration = Duration::from_secs(600);

/// What the leader knows about nodes, shared by all parts of a term.
#[derive(Debug, Default)]
pub(crate) struct WatchHealth {
    /// Nodes that exist and cannot be read.
    unreadable: Mutex<HashSet<String>>,
    /// Since when the watch has failed.
    failing: watch::Sender<Option<Instant>>,
}

impl WatchHealth {
    /// Since when the watch has failed; `None` if it works.
    pub(crate) fn failing(&self) -> watch::Receiver<Option<Instant>> {
        self.failing.subscribe()
    }

    /// Returns when the watch has failed for this long.
    pub(crate) async fn failing_for(&self, limit: Duration) {
        let mut failing = self.failing();
        loop {
            let left = failing.borrow_and_update().map(|since| limit.saturating_sub(since.elapsed()));
            tokio::select! {
                _ = failing.changed() => {}
                () = tokio::time::sleep(left.unwrap_or(limit)), if left.is_some() => return,
            }
        }
    }

    /// Whether a node with this name exists although it cannot be read.
    pub(crate) fn is_unreadable(&self, name: &str) -> bool {
        self.unreadable.lock().contains(name)
    }
}

/// Processes the events of the watch, and reports errors.
pub(crate) struct WatchHandler<'a, Wake> {
    watch_health: &'a WatchHealth,
    reconciler: &'a Reconciler,
    store: Writer<NodeObject>,
    wake: Wake,
    /// Nodes of the current listing that cannot be read.
    listed: HashSet<String>,
    /// Nodes with fields that were left out.
    partial: HashSet<String>,
    last_reported: HashMap<String, Instant>,
    last_error: Option<String>,
}

impl<'a, Wake: FnMut(&NodeObject, Sight)> WatchHandler<'a, Wake> {
    /// Updates `store`, and calls `wake` with every node that is new or has changed.
    pub(crate) fn new(
        watch_health: &'a WatchHealth,
        reconciler: &'a Reconciler,
        store: Writer<NodeObject>,
        wake: Wake,
    ) -> Self {
        let (listed, partial, last_reported) = (HashSet::new(), HashSet::new(), HashMap::new());
        Self { watch_health, reconciler, store, wake, listed, partial, last_reported, last_error: None }
    }

    /// Processes one event.
    pub(crate) fn handle(&mut self, seen: WatchEvent) {
        match seen {
            WatchEvent::Begin => {
                self.listed.clear();
                self.store.apply_watcher_event(&Event::Init);
            }
            WatchEvent::There(read) => {
                if let Some(node) = self.readable(read) {
                    self.store.apply_watcher_event(&Event::InitApply(node));
                }
            }
            WatchEvent::All(_) => {
                let listed = std::mem::take(&mut self.listed);
                self.watch_health.unreadable.lock().retain(|name| listed.contains(name));
                let before = self.store.as_reader().state();
                self.store.apply_watcher_event(&Event::InitDone);
                let store = self.store.as_reader();
                let now = |name: &str| store.get(&ObjectRef::new(name));
                // Their end was not seen: a node of the same name was created after it.
                for gone in before {
                    match now(gone.name()) {
                        Some(node) if node.uid() == gone.uid() => {}
                        Some(node) => self.departs(NodeObject::clone(&gone), node.created()),
                        None if listed.contains(gone.name()) => self.reconciler.memory().lost(gone.name()),
                        None => self.departs(NodeObject::clone(&gone), None),
                    }
                }
                self.partial.retain(|name| now(name).is_some());
                self.last_reported.retain(|name, _| now(name).is_some() || listed.contains(name));
                // During a listing the store does not contain the listed nodes yet, but work on them begins now.
                store.state().iter().for_each(|node| (self.wake)(node, Sight::Listed));
            }
            WatchEvent::Watching => self.watch_works(),
            WatchEvent::Changed(read) => {
                if let Some(node) = self.readable(read) {
                    (self.wake)(&node, Sight::Next);
                    self.store.apply_watcher_event(&Event::Apply(node));
                }
            }
            WatchEvent::Gone(read) => {
                let name =
                    read.as_ref().map_or_else(|unreadable| unreadable.name.as_str(), NodeObject::name).to_owned();
                self.watch_health.unreadable.lock().remove(&name);
                self.partial.remove(&name);
                self.last_reported.remove(&name);
                match (read, self.drop_from_store(&name)) {
                    // The event has the last state, and who asked for the deletion when.
                    (Ok(last), _) => self.departs(last, None),
                    (Err(_), Some(known)) => self.departs(known, None),
                    (Err(_), None) => self.reconciler.memory().lost(&name),
                }
            }
            WatchEvent::Failed(error) => self.watch_fails(&error),
        }
        self.count();
    }

    /// Forgets a node that was deleted, and has that recorded. `before`: it was gone by then.
    fn departs(&self, last: NodeObject, before: Option<Timestamp>) {
        let now = api_server::time_at_least(Timestamp::now());
        let at = last.deleted().unwrap_or(now).min(before.unwrap_or(now)).min(now);
        self.reconciler.memory().left(last, at);
        self.reconciler.departed().notify_one();
        self.reconciler.shared().notify_one();
    }

    /// A node; `None` if it cannot be read, which affects only this node.
    fn readable(&mut self, read: Read) -> Option<NodeObject> {
        match read {
            Ok(node) => {
                self.watch_health.unreadable.lock().remove(node.name());
                self.note_left_out(&node);
                Some(node)
            }
            Err(unreadable) => {
                self.note_unreadable(unreadable);
                None
            }
        }
    }

    fn note_unreadable(&mut self, Unreadable { name, why }: Unreadable) {
        self.listed.insert(name.clone());
        self.watch_health.unreadable.lock().insert(name.clone());
        self.partial.remove(&name);
        // The former version is not used anymore.
        self.drop_from_store(&name);
        self.reconciler.memory().lost(&name);
        if self.may_report(&name) {
            tracing::warn!(
                node = name,
                error = why,
                "cannot read this node; not changing it; other nodes are not affected"
            );
            let note = format!("nodegate cannot read this node and does not change it: {why}");
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
        if self.may_report(node.name()) {
            let fields = left_out.join(", ");
            tracing::warn!(
                node = node.name(),
                fields,
                "these fields are too large; expressions that read them cannot be evaluated"
            );
            let note = format!("{fields}: too large; the controller cannot evaluate expressions that read it");
            self.reconciler.events().later(node, "ReadInPart", note);
        }
    }

    fn may_report(&mut self, name: &str) -> bool {
        if self.last_reported.get(name).is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
            return false;
        }
        self.last_reported.insert(name.to_owned(), Instant::now());
        true
    }

    fn drop_from_store(&mut self, name: &str) -> Option<NodeObject> {
        let known = NodeObject::clone(&*self.store.as_reader().get(&ObjectRef::new(name))?);
        self.store.apply_watcher_event(&Event::Delete(known.clone()));
        Some(known)
    }

    fn watch_works(&mut self) {
        if self.last_error.take().is_some() {
            tracing::info!("the watch of nodes works again");
        }
        self.watch_health.failing.send_if_modified(|failing| failing.take().is_some());
    }

    fn watch_fails(&mut self, error: &NodesError) {
        // A connection that breaks for the first time is no news: what follows shows whether the API server is there. If
        // the version has expired, all nodes are listed again.
        let is_first = matches!(error, NodesError::Broken(_)) && self.watch_health.failing.borrow().is_none();
        let is_news = !is_first && !error.is_expired() && !api_server::is_failing();
        let error = error.to_string();
        if !is_news {
            tracing::debug!(%error, "the watch of nodes failed; retrying");
        } else if self.last_error.as_ref() != Some(&error) {
            tracing::warn!(%error, "the watch of nodes failed; retrying");
            self.last_error = Some(error);
        }
        self.watch_health.failing.send_if_modified(|failing| {
            let first = failing.is_none();
            failing.get_or_insert_with(Instant::now);
            first
        });
    }

    fn count(&self) {
        let metrics = &self.reconciler.metrics().controller;
        let count = |nodes: usize| i64::try_from(nodes).unwrap_or(i64::MAX);
        metrics.unreadable_nodes.set(count(self.watch_health.unreadable.lock().len()));
        metrics.nodes_read_in_part.set(count(self.partial.len()));
        metrics.node_watch_failing.set(i64::from(self.watch_health.failing.borrow().is_some()));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
