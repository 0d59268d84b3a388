//! The part of a session that asks inventories.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::LeaderSession;
use crate::controller::node::NodeObject;
use crate::controller::queue::Queue;
use crate::inventory::LivingNode;

/// How long changed answers are gathered before all nodes are surveyed. It is shorter than the grace period of removals, so
/// that the limit on removals holds before the first one.
const ANSWERS_GATHER: Duration = Duration::from_secs(10);

impl LeaderSession {
    /// Asks inventories about the nodes that exist.
    pub(super) async fn ask_inventories(&self, store: Store<NodeObject>) {
        if store.wait_until_ready().await.is_err() {
            return;
        }
        let living = || {
            let node = |node: &Arc<NodeObject>| LivingNode { name: node.name().into(), uid: node.uid().into() };
            store.state().iter().map(node).collect()
        };
        self.inventory.run(self.client.clone(), &self.config.namespace, &living).await;
    }

    /// Schedules every node whose answers changed.
    pub(super) async fn follow_answers(&self, store: &Store<NodeObject>, queue: &Queue) {
        let mut touched = self.inventory.cache().touched();
        loop {
            match touched.recv().await {
                Ok(name) => {
                    // A batch may also be about nodes that do not exist.
                    if let Some(node) = store.get(&ObjectRef::new(&name)) {
                        self.reconciler.memory().removals.answered(node.uid(), Instant::now());
                        queue.wake(&name, self.reconciler.urgency(&node));
                    }
                }
                // The next resync finds what was missed.
                Err(RecvError::Lagged(_)) => {
                    let (mut memory, now) = (self.reconciler.memory(), Instant::now());
                    store.state().iter().for_each(|node| memory.removals.answered(node.uid(), now));
                }
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// Waits until answers of inventories have changed, and gathers further changes.
pub(super) async fn answers_change(answers: &mut broadcast::Receiver<Arc<str>>) {
    // The cache lives as long as the process.
    let _ = answers.recv().await;
    tokio::time::sleep(ANSWERS_GATHER).await;
    *answers = answers.resubscribe();
}
