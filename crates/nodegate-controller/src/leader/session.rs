//! One session of the leader: everything here stops as soon as the Lease is lost.

mod collection;
mod inventories;
mod survey;
mod waiting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::OptionFuture;
use jiff::Timestamp;
use kube::Client;
use kube::runtime::reflector::{self, ObjectRef, Store};
use tokio::sync::watch;

use crate::cluster::{evidence_guard, registration};
use crate::leader::watch_health::{WatchHandler, WatchHealth};
use crate::leader::{blind_after, longest_delay};
use crate::memory::fleet;
use crate::memory::history::Sight;
use crate::memory::node::NodeMemory;
use crate::node::queue::{self, Again, Queue, Urgency, Wakes};
use crate::node::{self, NodeObject, WatchEvent};
use crate::policies::Reports;
use crate::reconcile::outcome::{Done, Failure};
use crate::reconcile::{Reconciler, SEEN};
use crate::tell::observed;
use crate::tell::remembered;
use crate::tell::reports;
use crate::tell::status;
use nodegate_base::api_server;
use nodegate_policy::cel::Paths;
use nodegate_stores::inventory::Refresher;
use nodegate_stores::touched::Following;

/// The configuration of a session.
#[derive(Clone, Debug)]
pub struct LeaderSessionConfig {
    /// How often every node is processed even without a change.
    pub resync: Duration,
    /// The name of the webhook configurations.
    pub configuration: String,
    /// The namespace of saved state.
    pub namespace: String,
    /// Whether `ClusterReport` objects are written.
    pub reports: bool,
    /// How long the Lease is valid without being renewed. A session ends if the watch of nodes has failed for twice as long.
    pub lease: Duration,
    /// Whether the API server leaves out writes that change only annotations.
    pub annotations_left_out: watch::Receiver<bool>,
    /// Why the guard lacks keys of the policies in force.
    pub guard_fault: watch::Receiver<Option<String>>,
}

/// Why a session ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A task ended unexpectedly; start the session again.
    Anew,
    /// Nodes could not be watched for too long; another replica should lead.
    Blind,
}

/// How often all nodes are surveyed while removals are held back.
const BRAKED_SURVEY: Duration = Duration::from_secs(10);
/// Maximum delay before a failed node is retried.
const BACKOFF_MAX: Duration = Duration::from_secs(15);

/// This many consecutive conflicts are normal: others write as well, or this replica has not observed its own write
/// yet.
const CONFLICTS: u32 = 8;

/// One session of the leader.
pub struct LeaderSession {
    client: Client,
    reconciler: Arc<Reconciler>,
    config: LeaderSessionConfig,
    /// Counts the sets of policies that were put in force.
    policies: watch::Receiver<u64>,
    /// The status of `NodePolicy` objects.
    reports: watch::Receiver<Reports>,
    inventory: Arc<Refresher>,
    watch_health: WatchHealth,
    /// What was read of all nodes when they were listed last.
    listed: watch::Sender<Arc<Paths>>,
}

impl LeaderSession {
    /// A session that has not begun.
    pub fn new(
        client: Client,
        reconciler: Arc<Reconciler>,
        config: LeaderSessionConfig,
        policies: watch::Receiver<u64>,
        reports: watch::Receiver<Reports>,
        inventory: Arc<Refresher>,
    ) -> Self {
        Self {
            client,
            reconciler,
            config,
            policies,
            reports,
            inventory,
            watch_health: WatchHealth::default(),
            listed: watch::Sender::default(),
        }
    }

    /// Since when the watch of nodes has failed; `None` if it works.
    pub fn failing(&self) -> watch::Receiver<Option<Instant>> {
        self.watch_health.failing()
    }

    /// Leads until dropped, or until nodes could not be watched for too long.
    pub async fn run(self) -> Ended {
        let (store, writer) = reflector::store::<NodeObject>();
        let (queue, wakes) = Queue::new();
        let (configuration, reconciler) = (&*self.config.configuration, &self.reconciler);
        reconciler.registered(registration::created(&self.client, configuration).await);
        if reconciler.policies().asks_for_evidence() {
            reconciler.evidence_guarded(evidence_guard::in_force_since(&self.client, configuration).await);
        }
        tokio::select! {
            () = self.watch_nodes(writer, &queue) => Ended::Anew,
            () = self.work(store.clone(), wakes) => Ended::Anew,
            () = self.survey(store.clone(), &queue) => Ended::Anew,
            () = self.count(store.clone()) => Ended::Anew,
            () = self.collect(store.clone()) => Ended::Anew,
            () = self.record_departures() => Ended::Anew,
            () = self.publish(store.clone()) => Ended::Anew,
            () = remembered::keep(self.client.clone(), &self.config.namespace, reconciler) => Ended::Anew,
            () = self.follow_touched(&store, &queue) => Ended::Anew,
            () = Box::pin(self.ask_inventories(store.clone())) => Ended::Anew,
            () = self.follow_answers(&store, &queue) => Ended::Anew,
            () = Box::pin(self.follow_devices()) => Ended::Anew,
            () = registration::follow_created(&self.client, configuration, |since| reconciler.registered(since)) => Ended::Anew,
            () = Box::pin(self.follow_evidence_guard(&queue, &store)) => Ended::Anew,
            () = self.watch_health.failing_for(blind_after(self.config.lease)) => {
                tracing::error!("could not watch nodes for {:?}; releasing the Lease so that another replica can lead", blind_after(self.config.lease));
                Ended::Blind
            }
        }
    }

    /// Updates the store, records history, and schedules every node that changed.
    async fn watch_nodes(&self, writer: reflector::store::Writer<NodeObject>, queue: &Queue) {
        let wake = |node: &NodeObject, sight: Sight| {
            let is_new = {
                let mut memory = self.reconciler.memory();
                !memory.sees(node, Timestamp::now(), sight).is_known()
            };
            self.reconciler.note_in_fleet(node, Timestamp::now());
            self.reconciler.compare_hardware(node);
            if is_new {
                self.inventory.saw(node.name());
            }
            queue.wake(node.name(), self.reconciler.urgency(node));
        };
        let mut handler = WatchHandler::new(&self.watch_health, &self.reconciler, writer, wake);
        let longest = longest_delay(self.config.lease);
        let parts = || self.reconciler.policies().stored_paths().clone();
        let take = |seen| {
            let listed = if let WatchEvent::All(parts) = &seen { Some(parts.clone()) } else { None };
            handler.handle(seen);
            listed.into_iter().for_each(|parts| drop(self.listed.send_replace(parts)));
        };
        node::follow(self.reconciler.nodes(), (parts, self.policies.clone()), longest, take).await;
    }

    /// Follows the devices of nodes, from when on policies read them.
    async fn follow_devices(&self) {
        let mut policies = self.policies.clone();
        if policies.wait_for(|_| self.reconciler.policies().reads_devices()).await.is_err() {
            return std::future::pending().await;
        }
        self.reconciler.known_devices().follow(self.client.clone()).await;
    }

    /// Follows the policy that admits only true evidence for pools, from when on the policies ask for evidence.
    async fn follow_evidence_guard(&self, queue: &Queue, store: &Store<NodeObject>) {
        let mut policies = self.policies.clone();
        if policies.wait_for(|_| self.reconciler.policies().asks_for_evidence()).await.is_err() {
            return std::future::pending().await;
        }
        let mut is_missed = false;
        evidence_guard::follow(&self.client, &self.config.configuration, |since| {
            if !std::mem::replace(&mut is_missed, since.is_none()) && since.is_none() {
                tracing::warn!("policies ask what was authenticated about kubelets, for pools or for inventories about machines, but the API server does not check what nodes say of it, so it is not known of them; install the guard (`nodegate render guard`, or guard.enabled of the chart)");
            }
            if self.reconciler.evidence_guarded(since) {
                store.state().iter().for_each(|node| queue.wake(node.name(), self.reconciler.urgency(node)));
            }
        })
        .await;
    }

    async fn work(&self, store: Store<NodeObject>, wakes: Wakes) {
        if store.wait_until_ready().await.is_err() {
            return;
        }
        let run = |name: Arc<str>, urgency: Urgency| {
            let node = store.get(&ObjectRef::new(&name));
            async move { reconcile_node(&*node?, &self.reconciler, urgency, self.config.resync).await }
        };
        let metrics = &self.reconciler.metrics().controller;
        queue::work(wakes, run, |waiting| metrics.queued(waiting)).await;
    }

    /// Surveys all nodes whenever policies have changed, and periodically.
    async fn survey(&self, store: Store<NodeObject>, queue: &Queue) {
        if store.wait_until_ready().await.is_err() {
            return;
        }
        let (mut policies, mut reports) = (self.policies.clone(), self.reports.clone());
        let mut listed = self.listed.subscribe();
        let (mut left_out, mut guard) = (self.config.annotations_left_out.clone(), self.config.guard_fault.clone());
        let (mut failing, mut answers) = (self.inventory.failing(), self.inventory.cache().touched().follow());
        policies.mark_changed();
        loop {
            let braked = self.reconciler.memory().removals.brake().is_some();
            let next = if braked { BRAKED_SURVEY.min(self.config.resync) } else { self.config.resync };
            let changed = tokio::select! {
                changed = policies.changed() => changed.is_ok(),
                Ok(()) = failing.changed() => false,
                () = inventories::answers_change(&mut answers) => false,
                // An invalid update changes only the reports about it.
                Ok(()) = reports.changed() => false,
                Ok(()) = left_out.changed() => false,
                Ok(()) = guard.changed() => false,
                () = tokio::time::sleep(next) => false,
            };
            if changed {
                policies.borrow_and_update();
                let refresh = self.reconciler.policies().inventories().map(|inventory| inventory.refresh).max();
                self.reconciler.memory().policies_changed(refresh);
            }
            // Until then the removals of new policies stay held back.
            let are_read = |parts: &Arc<Paths>| parts.hold(self.reconciler.policies().stored_paths());
            if listed.wait_for(are_read).await.is_err() {
                return;
            }
            let mut findings = self.look_at_fleet(&store).await;
            findings.note_inventories(&failing.borrow_and_update());
            if *left_out.borrow_and_update() {
                findings.note_left_out(&self.reconciler.policies());
            }
            if let Some(why) = &*guard.borrow_and_update() {
                findings.note_unguarded(&self.reconciler.policies(), why);
            }
            let policy_reports = reports.borrow_and_update().clone();
            status::write(&self.client, &policy_reports, &findings, &self.reconciler).await;
            if self.config.reports
                && let Err(error) = reports::keep(&self.client, findings.violations, &self.reconciler).await
            {
                tracing::warn!(%error, "could not write ClusterReports; check that the CustomResourceDefinition of openreports.io is installed");
            }
            if changed || braked {
                for node in store.state() {
                    queue.wake(node.name(), self.reconciler.urgency(&node));
                }
            }
        }
    }

    /// Keeps the metrics of all nodes, until dropped: what this replica does not see any more, it does not report.
    async fn count(&self, store: Store<NodeObject>) {
        let _forgets = Forgets(&self.reconciler);
        if store.wait_until_ready().await.is_err() {
            return;
        }
        loop {
            self.reconciler.count_fleet(&store, Timestamp::now());
            tokio::time::sleep(fleet::INTERVAL).await;
        }
    }

    /// Publishes what the controller does not write, for the command line.
    async fn publish(&self, store: Store<NodeObject>) {
        if store.wait_until_ready().await.is_ok() {
            observed::keep(self.client.clone(), &self.config.namespace, &self.reconciler).await;
        }
    }

    async fn follow_touched(&self, store: &Store<NodeObject>, queue: &Queue) {
        let mut records = self.reconciler.maps().touched().follow();
        let witnesses = self.reconciler.witnesses();
        let mut certificates = witnesses.map(|witnesses| witnesses.certificates.touched().follow());
        let mut machines = witnesses.map(|witnesses| witnesses.machines.touched().follow());
        let mut devices = self.reconciler.known_devices().touched().follow();
        loop {
            let touched = tokio::select! {
                touched = records.next() => touched,
                touched = devices.next() => touched,
                Some(touched) = OptionFuture::from(certificates.as_mut().map(Following::next)) => touched,
                Some(touched) = OptionFuture::from(machines.as_mut().map(Following::next)) => touched,
            };
            for node in &touched {
                let known = store.get(&ObjectRef::new(node));
                queue.wake(node, known.map_or(Urgency::Routine, |node| self.reconciler.urgency(&node)));
            }
        }
    }
}

/// Removes the metrics of all nodes at the end of a term.
struct Forgets<'a>(&'a Reconciler);

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        self.0.metrics().fleet.forget();
        self.0.metrics().controller.queued([0, 0]);
    }
}

/// Reconciles a node. Returns when it is to be processed again.
async fn reconcile_node(
    node: &NodeObject,
    reconciler: &Reconciler,
    urgency: Urgency,
    resync: Duration,
) -> Option<Again> {
    reconciler.record_departure_now(node.name()).await;
    let started = Instant::now();
    let outcome = if node.is_leaving() {
        reconciler.record_leaving(node).await
    } else {
        let work = reconciler.reconcile(node, urgency);
        reconciler.traces().reconcile(node.name(), urgency.as_str(), work).await
    };
    scheduled(node, outcome, reconciler, started, urgency, resync).await
}

/// Takes up the outcome of reconciling a node. Returns when it is to be processed again.
async fn scheduled(
    node: &NodeObject,
    outcome: Result<Done, Failure>,
    reconciler: &Reconciler,
    started: Instant,
    urgency: Urgency,
    resync: Duration,
) -> Option<Again> {
    reconciler.metrics().controller.reconciled(outcome.is_ok(), started.elapsed().as_secs_f64());
    let waits = match outcome.as_ref() {
        Ok(done) if done.awaited.is_nothing() => None,
        // This version is replaced, and the watch will show the next one.
        Ok(Done { made: Some(_), .. }) => Some(SEEN),
        done => {
            let (now, awaited) = (api_server::time_at_most(Timestamp::now()), done.ok().map(|done| &done.awaited));
            waiting::end_in_time(node, reconciler, now, awaited).await
        }
    };
    let (after, urgency) = match outcome {
        Ok(Done { again, .. }) => {
            reconciler.with_memory(node, |known| known.failures = 0);
            (again.map_or(resync, |again| again.min(resync)), Urgency::Routine)
        }
        Err(failure) => (retry_after(node, &failure, reconciler), urgency),
    };
    let after = waits.map_or(after, |waits| waits.min(after));
    Some(Again { after, urgency })
}

/// Handles a failure: reports it if it persists, and returns the delay before the next attempt.
fn retry_after(node: &NodeObject, failure: &Failure, reconciler: &Reconciler) -> Duration {
    let failed = |known: &mut NodeMemory| {
        known.failures = known.failures.saturating_add(1);
        known.failures
    };
    let failures = reconciler.with_memory(node, failed).unwrap_or(1);
    if matches!(failure, Failure::Conflict(_)) && failures <= CONFLICTS {
        return Duration::from_millis(250);
    }
    tracing::warn!(node = node.name(), error = %failure, failures, "could not reconcile the node; retrying");
    if failures == 3 || (failures == CONFLICTS + 1 && matches!(failure, Failure::Conflict(_))) {
        reconciler.events().later(node, "NotReconciled", failure.to_string());
    }
    Duration::from_millis(500).saturating_mul(1 << failures.min(7)).min(BACKOFF_MAX)
}
