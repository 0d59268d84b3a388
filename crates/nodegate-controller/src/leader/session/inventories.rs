//! The part of a session that asks inventories.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::runtime::reflector::{ObjectRef, Store};

use super::LeaderSession;
use crate::node::NodeObject;
use crate::node::queue::Queue;
use nodegate_policy::is_machine;
use nodegate_stores::inventory::LivingNode;
use nodegate_stores::touched::Following;

/// How long changed answers are gathered before all nodes are surveyed. It is shorter than the grace period of removals, so
/// that the limit on removals holds before the first one.
const ANSWERS_GATHER: Duration = Duration::from_secs(10);

impl LeaderSession {
    /// Asks inventories about the nodes that exist.
    pub(crate) async fn ask_inventories(&self, store: Store<NodeObject>) {
        if store.wait_until_ready().await.is_err() {
            return;
        }
        let living = || {
            let now = Timestamp::now();
            // A node without a creation time counts as old.
            let age = |node: &NodeObject| match node.created() {
                Some(created) => Duration::try_from(now.duration_since(created)).unwrap_or_default(),
                None => Duration::MAX,
            };
            let node = |node: &Arc<NodeObject>| LivingNode {
                name: node.name().into(),
                uid: node.uid().into(),
                age: age(node),
            };
            store.state().iter().map(node).collect()
        };
        self.inventory.run(self.client.clone(), &self.config.namespace, &living).await;
    }

    /// Schedules every node whose answers changed.
    pub(crate) async fn follow_answers(&self, store: &Store<NodeObject>, queue: &Queue) {
        let mut touched = self.inventory.cache().touched().follow();
        loop {
            let (machines, names): (HashSet<_>, HashSet<_>) =
                touched.next().await.into_iter().partition(|name| is_machine(name));
            // A batch may also be about nodes that do not exist.
            let mut nodes: Vec<Arc<NodeObject>> =
                names.iter().filter_map(|name| store.get(&ObjectRef::new(name))).collect();
            if !machines.is_empty() {
                nodes.extend(self.nodes_of(store, &machines).await);
            }
            for node in nodes {
                if let Some(known) = self.reconciler.memory().living(&node) {
                    known.grace_periods.answered(Instant::now());
                }
                queue.wake(node.name(), self.reconciler.urgency(&node));
            }
        }
    }

    /// The nodes that are one of these machines.
    async fn nodes_of(&self, store: &Store<NodeObject>, machines: &HashSet<Arc<str>>) -> Vec<Arc<NodeObject>> {
        let (set, mut found) = (self.reconciler.policies(), Vec::new());
        for (count, node) in store.state().into_iter().enumerate() {
            let text = node.text();
            if let Ok(facts) = text.facts() {
                let (_, saved) = self.reconciler.stored_and_saved(&node, &facts);
                let evidence = self.reconciler.evidence(&node, &facts, &set, &saved).0;
                if set.machines_of(&facts, evidence.as_ref()).iter().any(|name| machines.contains(&**name)) {
                    found.push(node.clone());
                }
            }
            if count % 64 == 63 {
                tokio::task::yield_now().await;
            }
        }
        found
    }
}

/// Waits until answers of inventories have changed, and gathers further changes.
pub(crate) async fn answers_change(answers: &mut Following) {
    answers.next().await;
    tokio::time::sleep(ANSWERS_GATHER).await;
    answers.take();
}
