//! One term of the leader: everything here runs until the Lease is lost, and then not one step further.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::Client;
use kube::runtime::reflector::{self, ObjectRef, Store};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use super::node::{self, NodeObject, machine};
use super::policies::Reports;
use super::queue::{self, Again, Queue, Urgency, Wakes};
use super::reconcile::{Done, Failure, Reconciler};
use super::registration;
use super::reports;
use super::sight::{Eyes, Sight};
use super::status::{self, Findings};
use crate::api::state::SavedState;
use crate::policy::violations;
use crate::state::Identity;

/// How a term goes.
#[derive(Clone, Debug)]
pub struct TermConfig {
    /// Every node is looked at again after so long.
    pub resync: Duration,
    /// The name of the webhook configurations.
    pub configuration: String,
    /// Whether `ClusterReport` objects are kept.
    pub reports: bool,
    /// A term ends when the watch of nodes has failed for so long.
    pub blind_after: Duration,
}

/// Why a term ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Something came to its end that should not; begin anew.
    Anew,
    /// Nodes could not be seen for too long; another replica should try.
    Blind,
}

/// How often the fleet is looked at as a whole while removals are held back.
const BRAKED_SURVEY: Duration = Duration::from_secs(10);
/// How often saved state without a node is looked for.
const COLLECT: Duration = Duration::from_secs(60);
/// Longest wait before a failed node is tried again.
const BACKOFF_MAX: Duration = Duration::from_secs(15);

/// So many conflicts in a row are how things go: somebody else writes too, or this replica has not seen its own write yet.
const CONFLICTS: u32 = 8;

/// One term of the leader.
pub struct Term {
    client: Client,
    reconciler: Arc<Reconciler>,
    config: TermConfig,
    /// Counts up with every set of policies put in force.
    policies: watch::Receiver<u64>,
    /// What became of `NodePolicy` objects.
    reports: watch::Receiver<Reports>,
    sight: Sight,
}

impl Term {
    /// A term that has not begun.
    pub fn new(
        client: Client,
        reconciler: Arc<Reconciler>,
        config: TermConfig,
        policies: watch::Receiver<u64>,
        reports: watch::Receiver<Reports>,
    ) -> Self {
        Self { client, reconciler, config, policies, reports, sight: Sight::default() }
    }

    /// Since when the watch of nodes has failed; `None` while it does not.
    pub fn failing(&self) -> watch::Receiver<Option<Instant>> {
        self.sight.failing()
    }

    /// Leads until dropped, or until it has not seen nodes for too long.
    pub async fn run(self) -> Ended {
        let (store, writer) = reflector::store::<NodeObject>();
        let (queue, wakes) = Queue::new();
        let (configuration, reconciler) = (&*self.config.configuration, &self.reconciler);
        reconciler.registered(registration::created(&self.client, configuration).await);
        tokio::select! {
            () = self.watch_nodes(writer, &queue) => Ended::Anew,
            () = self.work(store.clone(), wakes) => Ended::Anew,
            () = self.survey(store.clone(), &queue) => Ended::Anew,
            () = self.collect(store.clone()) => Ended::Anew,
            () = self.follow_touched(&queue) => Ended::Anew,
            () = registration::follow_created(&self.client, configuration, |since| reconciler.registered(since)) => Ended::Anew,
            () = self.sight.lost_for(self.config.blind_after) => {
                tracing::error!("nodes could not be watched for {:?}: another replica should lead", self.config.blind_after);
                Ended::Blind
            }
        }
    }

    /// Keeps the store, notes history, and wakes the work on every node that changed.
    async fn watch_nodes(&self, writer: reflector::store::Writer<NodeObject>, queue: &Queue) {
        let wake = |node: &NodeObject| {
            {
                let mut memory = self.reconciler.memory();
                memory.history.note(node, Timestamp::now());
                memory.arrivals.note(node);
            }
            queue.wake(node.name(), self.reconciler.urgency(node));
        };
        let mut eyes = Eyes::new(&self.sight, &self.reconciler, writer, wake);
        node::follow(self.reconciler.nodes(), |seen| eyes.take(seen)).await;
    }

    async fn work(&self, store: Store<NodeObject>, wakes: Wakes) {
        if store.wait_until_ready().await.is_err() {
            return;
        }
        let run = |name: Arc<str>, urgency: Urgency| {
            let node = store.get(&ObjectRef::new(&name));
            async move { bring(&*node?, &self.reconciler, urgency, self.config.resync).await }
        };
        queue::work(wakes, run).await;
    }

    /// Looks at the whole fleet whenever policies have changed, and from time to time.
    async fn survey(&self, store: Store<NodeObject>, queue: &Queue) {
        if store.wait_until_ready().await.is_err() {
            return;
        }
        let (mut policies, mut reports) = (self.policies.clone(), self.reports.clone());
        policies.mark_changed();
        loop {
            let braked = self.reconciler.memory().removals.brake().is_some();
            let next = if braked { BRAKED_SURVEY.min(self.config.resync) } else { self.config.resync };
            let changed = tokio::select! {
                changed = policies.changed() => changed.is_ok(),
                // A faulty update changes only the reports about it.
                Ok(()) = reports.changed() => false,
                () = tokio::time::sleep(next) => false,
            };
            if changed {
                policies.borrow_and_update();
                let mut memory = self.reconciler.memory();
                memory.removals.policies_changed();
                memory.fights.policies_changed();
            }
            let findings = self.look_at_fleet(&store).await;
            let told = reports.borrow_and_update().clone();
            status::write(&self.client, &told, &findings, &self.reconciler).await;
            if self.config.reports
                && let Err(error) = reports::keep(&self.client, findings.violations, &self.reconciler).await
            {
                tracing::warn!(%error, "ClusterReports were not kept; is the definition of openreports.io there?");
            }
            if changed || braked {
                for node in store.state() {
                    queue.wake(node.name(), self.reconciler.urgency(&node));
                }
            }
        }
    }

    async fn look_at_fleet(&self, store: &Store<NodeObject>) -> Findings {
        let set = self.reconciler.policies();
        let nodes = store.state();
        let mut findings = Findings::default();
        let mut losing = 0;
        let mut pending = 0;
        let now = Timestamp::now();
        for (count, node) in nodes.iter().enumerate() {
            if let Ok(facts) = node.facts() {
                let verdict = violations(&set, &facts);
                findings.note_violations(&verdict);
                if self.config.reports {
                    findings.violations.extend(reports::of_node(node, &verdict));
                }
            }
            if let Some(keep) = self.reconciler.inspect(node, &set) {
                losing += usize::from(!keep.removals.is_empty());
                findings.note(node.name(), &keep);
            }
            pending += usize::from(self.reconciler.is_stuck(node, now));
            if count % 64 == 63 {
                tokio::task::yield_now().await;
            }
        }
        let metrics = &self.reconciler.metrics().controller;
        let violating = findings.violating.iter();
        metrics.violating(violating.map(|((policy, rule, mode), nodes)| ((&**policy, &**rule, *mode), *nodes)));
        metrics.pending_too_long.set(i64::try_from(pending).unwrap_or(i64::MAX));
        let mut memory = self.reconciler.memory();
        let before = memory.removals.brake().cloned();
        let brake = memory.removals.surveyed(nodes.len(), losing, set.rule_count() > 0).cloned();
        metrics.removals_held_back.set(if brake.is_some() { i64::try_from(losing).unwrap_or(i64::MAX) } else { 0 });
        findings.brake = brake.as_ref().map(ToString::to_string);
        if let Some(brake) = brake.filter(|brake| before.as_ref() != Some(brake)) {
            tracing::error!(nodes = losing, "{brake}");
        }
        for ((field, key), writers, policy) in memory.fights.given_up() {
            let text = format!("{field} {key} is left to {writers}");
            findings.contested.entry(policy.to_owned()).or_default().insert(text);
        }
        findings
    }

    /// Saved state of nodes that are gone: their end is noted, and after the retention they are forgotten.
    async fn collect(&self, store: Store<NodeObject>) {
        if store.wait_until_ready().await.is_err() {
            return;
        }
        loop {
            tokio::time::sleep(COLLECT.min(self.config.resync)).await;
            let retention = self.reconciler.policies().retention();
            let states = self.reconciler.maps().states();
            let living: std::collections::HashSet<String> = store
                .state()
                .iter()
                .filter_map(|node| {
                    let facts = node.facts().ok()?;
                    states.get(machine(&facts)).map(|state| Identity::key(&state))
                })
                .collect();
            let now = Timestamp::now();
            let gone = |state: &SavedState| {
                !living.contains(&Identity::key(state)) && !self.sight.is_unreadable(&state.node_name)
            };
            for state in states.all().iter().filter(|state| gone(state)) {
                if let Err(error) = self.end_of(state, now, retention).await {
                    tracing::warn!(%error, "saved state of a node that is gone was not updated");
                }
            }
        }
    }

    async fn end_of(
        &self,
        state: &SavedState,
        now: Timestamp,
        retention: Option<Duration>,
    ) -> Result<(), crate::state::WriteError> {
        let Some(deleted) = state.deleted_at.as_deref().and_then(|at| at.parse::<Timestamp>().ok()) else {
            self.reconciler.turn(Urgency::Routine).await;
            let ended = SavedState { deleted_at: Some(now.to_string()), ..state.clone() };
            return self.reconciler.writer().write(state, &ended, &[]).await.map(drop);
        };
        let gone_for = u64::try_from(now.as_second() - deleted.as_second()).unwrap_or_default();
        let keeps_nothing = state.labels.is_empty() && state.taints.is_empty();
        let retention = if keeps_nothing { Some(retention.unwrap_or(EMPTY_RETENTION)) } else { retention };
        if retention.is_some_and(|retention| gone_for >= retention.as_secs()) {
            self.reconciler.turn(Urgency::Routine).await;
            tracing::info!(node = state.node_name, "saved state collected: its node has been gone for the retention");
            self.reconciler.writer().delete(state).await?;
        }
        Ok(())
    }

    async fn follow_touched(&self, queue: &Queue) {
        let mut touched = self.reconciler.maps().touched();
        loop {
            match touched.recv().await {
                Ok(node) => queue.wake(&node, Urgency::Routine),
                // What was lost is found by the next resync.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// How long state that keeps no label and no taint outlives its node where policies say nothing.
const EMPTY_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// Brings a node to what it should have; answers when it is to be looked at again.
async fn bring(node: &NodeObject, reconciler: &Reconciler, urgency: Urgency, resync: Duration) -> Option<Again> {
    if node.is_leaving() {
        return None;
    }
    let started = Instant::now();
    let outcome = reconciler.reconcile(node, urgency).await;
    reconciler.metrics().controller.reconciled(outcome.is_ok(), started.elapsed().as_secs_f64());
    match outcome {
        Ok(Done { again, .. }) => {
            reconciler.memory().failures.remove(node.name());
            let after = again.map_or(resync, |again| again.min(resync));
            Some(Again { after, urgency: Urgency::Routine })
        }
        Err(failure) => {
            if reconciler.is_stuck(node, Timestamp::now()) {
                stuck(node, reconciler).await;
            }
            Some(Again { after: failed(node, &failure, reconciler), urgency })
        }
    }
}

/// A node waits for what cannot be done: people hear of it, and where that is wanted it is released.
async fn stuck(node: &NodeObject, reconciler: &Reconciler) {
    let released = reconciler.releases_stuck();
    let end = if released { "released without them" } else { "it stays unschedulable" };
    let note = format!("pending for too long: labels or taints that rules give could not be written; {end}");
    reconciler.events().later(node, "PendingTooLong", note);
    if released && let Err(error) = reconciler.release(node).await {
        tracing::warn!(node = node.name(), %error, "could not be released");
    }
}

/// What to do after a failure: tell once it lasts, and try again, later each time.
fn failed(node: &NodeObject, failure: &Failure, reconciler: &Reconciler) -> Duration {
    let failures = {
        let mut memory = reconciler.memory();
        let failures = memory.failures.entry(node.name().to_owned()).or_default();
        *failures = failures.saturating_add(1);
        *failures
    };
    if matches!(failure, Failure::Conflict(_)) && failures <= CONFLICTS {
        return Duration::from_millis(250);
    }
    tracing::warn!(node = node.name(), error = %failure, failures, "not as it should be; trying again");
    if failures == 3 || (failures == CONFLICTS + 1 && matches!(failure, Failure::Conflict(_))) {
        reconciler.events().later(node, "NotReconciled", failure.to_string());
    }
    Duration::from_millis(500).saturating_mul(1 << failures.min(7)).min(BACKOFF_MAX)
}
