//! Reconciles one node and records it. It is level-triggered: only the current state matters, not the events.

mod admitted;
pub(crate) mod change;
mod contradictions;
mod departures;
#[cfg(test)]
pub(crate) mod fixture;
mod fleet;
mod hardware;
mod joins;
pub(crate) mod outcome;
pub(crate) mod patching;
mod records;
mod safeguards;
mod spans;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use kube::Client;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::cluster::events::Events;
use crate::memory::Memory;
use crate::memory::history::{Arrival, Sight};
use crate::memory::node::NodeMemory;
use crate::memory::removals::MaxRemovals;
use crate::node::limit::WriteBudget;
use crate::node::queue::Urgency;
use crate::node::{NodeApi, NodeObject, machine};
use crate::reconcile::change::{reverts, summary};
use crate::reconcile::outcome::{Awaited, Done, Failure};
use crate::reconcile::patching::Presence;
use nodegate_base::metrics::Metrics;
use nodegate_base::traces::{Step, Traces};
use nodegate_policy::FIELD_MANAGER;
use nodegate_policy::api::names::LabelKey;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{Evidence, NodeFacts, PendingTaints, PolicySet, ReconcilePlan, StoredNode, plan_reconcile};
use nodegate_stores::devices::KnownDevices;
use nodegate_stores::inventory::InventoryCache;
use nodegate_stores::state::{ConfigMaps, StateWriter};
use nodegate_stores::witnesses::Witnesses;

/// How nodes are reconciled.
#[derive(Clone, Debug)]
pub struct KeepConfig {
    /// How many nodes may lose owned keys by one change.
    pub max_removals: MaxRemovals,
    /// Writes per second.
    pub writes_per_second: u32,
    /// Pending taints to remove.
    pub pending: PendingTaints,
    /// A node that has been pending for longer is reported.
    pub pending_timeout: Duration,
    /// Whether such a node is also released.
    pub release_pending: bool,
    /// Whether existing keys with the desired value become owned (`apply --adopt`).
    pub adopt: bool,
    /// Whether the webhook maintains stamps (`--stamp-changes`), so that the history may trust them.
    pub records_last_change: bool,
    /// Labels by whose values nodes are counted.
    pub counted_labels: Vec<LabelKey>,
}

/// Reconciles nodes.
pub struct Reconciler {
    nodes: NodeApi,
    policies: Arc<ArcSwap<PolicySet>>,
    maps: ConfigMaps,
    inventory: Arc<InventoryCache>,
    witnesses: Option<Arc<Witnesses>>,
    devices: KnownDevices,
    /// When it was made.
    begun: Instant,
    writer: StateWriter,
    budget: WriteBudget,
    config: KeepConfig,
    registered_at: ArcSwap<Option<Timestamp>>,
    evidence_guarded: ArcSwap<Option<Timestamp>>,
    memory: Mutex<Memory>,
    events: Events,
    metrics: Arc<Metrics>,
    traces: Traces,
    news: Notify,
    departed: Notify,
    shared: Notify,
}

impl Reconciler {
    /// A reconciler with an empty memory.
    pub fn new(
        client: Client,
        config: KeepConfig,
        policies: Arc<ArcSwap<PolicySet>>,
        maps: ConfigMaps,
        inventory: Arc<InventoryCache>,
        events: Events,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            nodes: NodeApi::new(client),
            policies,
            writer: StateWriter::new(maps.clone(), FIELD_MANAGER),
            maps,
            inventory,
            witnesses: None,
            devices: KnownDevices::default(),
            begun: Instant::now(),
            budget: WriteBudget::per_second(config.writes_per_second),
            registered_at: ArcSwap::default(),
            evidence_guarded: ArcSwap::default(),
            memory: Mutex::new(Memory::new(
                config.max_removals,
                config.records_last_change,
                metrics.controller.keeping.unrecorded_nodes.clone(),
            )),
            config,
            events,
            metrics,
            traces: Traces::default(),
            news: Notify::new(),
            departed: Notify::new(),
            shared: Notify::new(),
        }
    }

    /// Starts the spans of reconciles with `traces`.
    #[must_use]
    pub fn with_traces(self, traces: Traces) -> Self {
        Self { traces, ..self }
    }

    /// Asks `witnesses` what is known of nodes, which without them only the records say.
    #[must_use]
    pub fn with_witnesses(self, witnesses: Arc<Witnesses>) -> Self {
        Self { witnesses: Some(witnesses), ..self }
    }

    /// The API of nodes.
    pub fn nodes(&self) -> &NodeApi {
        &self.nodes
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        // The memory is only an optimization, so a panic elsewhere leaves it usable.
        self.memory.lock()
    }

    /// Lets `what` read and change what is known of a node; nothing if it is gone and that is recorded.
    pub(crate) fn with_memory<R>(&self, node: &NodeObject, what: impl FnOnce(&mut NodeMemory) -> R) -> Option<R> {
        self.memory().of(node).map(what)
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.policies.load_full()
    }

    pub(crate) fn writer(&self) -> &StateWriter {
        &self.writer
    }

    pub(crate) fn maps(&self) -> &ConfigMaps {
        &self.maps
    }

    /// Notified when the controller begins or ends to leave something alone.
    pub(crate) fn news(&self) -> &Notify {
        &self.news
    }

    /// Notified when a node was deleted, which is to be recorded.
    pub(crate) fn departed(&self) -> &Notify {
        &self.departed
    }

    /// Notified when what the nodes say about their pools is something else: one says so, has left, or all were asked.
    pub(crate) fn shared(&self) -> &Notify {
        &self.shared
    }

    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn traces(&self) -> &Traces {
        &self.traces
    }

    /// Waits for the write budget.
    pub(crate) async fn turn(&self, urgency: Urgency) {
        self.budget.turn(urgency).await;
    }

    /// Why a node is processed.
    pub(crate) fn urgency(&self, node: &NodeObject) -> Urgency {
        match node.text().facts() {
            Ok(facts) if self.is_pending(&facts) => Urgency::Joining,
            Ok(_) | Err(_) => Urgency::Routine,
        }
    }

    pub(crate) fn pending(&self) -> &PendingTaints {
        &self.config.pending
    }

    pub(crate) fn counted_labels(&self) -> &[LabelKey] {
        &self.config.counted_labels
    }

    pub(crate) fn pending_timeout(&self) -> Duration {
        self.config.pending_timeout
    }

    pub(crate) fn is_pending(&self, facts: &NodeFacts<'_>) -> bool {
        self.config.pending.on(facts).next().is_some()
    }

    /// The stored record of a node.
    fn stored(&self, facts: &NodeFacts<'_>) -> Arc<SavedState> {
        self.maps.states().get(machine(facts)).unwrap_or_default()
    }

    /// The stored record of a node, and the one to use if a record could not be written.
    pub(crate) fn stored_and_saved(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
    ) -> (Arc<SavedState>, Arc<SavedState>) {
        let stored = self.stored(facts);
        let saved = self.with_memory(node, |known| known.unrecorded.in_place_of(&stored));
        let saved = saved.unwrap_or_else(|| stored.clone());
        (stored, saved)
    }

    /// The change that a node needs, according to the data in memory.
    pub(crate) fn look(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        set: &PolicySet,
        saved: &SavedState,
        evidence: Option<&Evidence<'_>>,
    ) -> ReconcilePlan {
        let patched_taints = self.with_memory(node, |known| known.patched_taints.patched().clone()).unwrap_or_default();
        let devices = self.devices(set, node);
        let stored_node = StoredNode {
            node: facts,
            version: Some(node.resource_version()),
            claims: &node.claims(),
            saved,
            pools: Some(&self.maps.states().pools()),
            inventory: Some(&set.answers_about(facts, evidence, |name| self.inventory.of(name))),
            devices: devices.as_ref(),
            registered: self.was_admitted(node),
            identified: self.maps.states().identity().of(machine(facts)).is_some(),
            pending: &self.config.pending,
            adopt: self.config.adopt,
            patched_taints: &patched_taints,
            elsewhere: self.maps.states().publishers(),
            evidence,
        };
        plan_reconcile(set, &stored_node)
    }

    /// Reconciles a node that was read without a watch, as [`reconcile`](Self::reconcile) does.
    ///
    /// # Errors
    /// As there.
    pub async fn reconcile_listed(&self, node: &NodeObject) -> Result<Done, Failure> {
        self.memory().sees(node, Timestamp::now(), Sight::Listed);
        self.reconcile(node, Urgency::Routine).await
    }

    /// Reconciles a node that the watch has shown, and records it. Does nothing if the watch has shown its end.
    ///
    /// # Guarantees
    /// Writes only what differs, and does not change foreign keys. A change applies to the exact version that was
    /// read, or fails. Keys are recorded as owned before they are written. A joining node has everything that it
    /// waits for after two writes, its record and its change; the rest is recorded when it is processed again.
    ///
    /// # Errors
    /// Returns an error if something could not be written; calling it again with the current node continues.
    pub(crate) async fn reconcile(&self, node: &NodeObject, urgency: Urgency) -> Result<Done, Failure> {
        match self.memory().living(node).map(|known| known.is_behind(node, Instant::now())) {
            Some(false) => {}
            Some(true) => return Ok(Done { again: Some(SEEN), ..Done::default() }),
            None => return Ok(Done::default()),
        }
        let set = self.policies();
        if !node.is_read_for(&set) {
            return Ok(Done { again: Some(SEEN), ..Done::default() });
        }
        let text = node.text();
        let facts = text.facts()?;
        let (stored, saved) = self.stored_and_saved(node, &facts);
        let (evidence, wait) = self.evidence(node, &facts, &set, &saved);
        if wait.is_some() {
            return Ok(Done { again: wait, ..Done::default() });
        }
        let evidence = evidence.as_ref();
        let plan = self.traces.step_now(Step::Plan, || self.look(node, &facts, &set, &saved, evidence));
        self.note_share(node, &set, plan.share.clone());
        self.report_first_look(node, &plan);
        self.tell_contradictions(node, &facts, &set, evidence);
        if plan.first_sight {
            let admitted = self.was_admitted(node);
            let returned = saved.node_uid.as_deref().is_some_and(|uid| uid != node.uid());
            let arrival = Arrival { decision: &plan.decision, returned, admitted };
            let rejected = plan.rejected.iter().cloned().chain(plan.rejected_unnamed());
            self.with_memory(node, |known| known.history.arrived(node, &facts, &arrival, rejected));
        }
        let reverts = if plan.first_sight { Vec::new() } else { reverts(node, &facts, &saved) };
        let Some((change, again)) = self.admissible(node, &set, &plan, &reverts) else { return Ok(Done::default()) };
        let mut done = summary(&facts, &plan, change.as_ref());
        done.look_again(again);
        let mut stored = stored;
        if let Some(change) = &change {
            let before = self.to_store(&facts, &stored, plan.record_before(Some(change)), &[]);
            // A record and a change, or neither: a node that changes constantly must not exhaust its budget for
            // records only.
            if let Err(wait) = self.afford(node, 1 + u32::from(before.is_some())) {
                return Ok(Done { again: Some(wait), ..Done::default() });
            }
            if let Some(before) = before {
                done.remembered(self.record(node, &stored, before, &[], urgency).await?);
            }
            self.with_memory(node, |known| known.history.makes(&plan.decision, change));
            let made = self.make(node, &facts, change, Some(&plan), urgency).await;
            if !matches!(made, Ok(Presence::There)) {
                self.with_memory(node, |known| known.history.made_nothing());
            }
            let tried = !matches!(made, Ok(Presence::Gone) | Err(Failure::Conflict(_)));
            if plan.decision.restored_by(change) > 0 && tried {
                self.metrics.controller.restored(made.is_ok());
            }
            if made? == Presence::Gone {
                // What follows would record its uid, as of a node that has what was saved. Then its last state, which lacks
                // that, would be saved at its deletion.
                return Ok(Done::default());
            }
            self.report_join(node, &facts, &plan, Some(change));
            self.report_policy_change(node, &set, &plan, change, &reverts);
            self.count_reverts(node, &plan, &reverts, change);
            if urgency == Urgency::Joining {
                // The watch reports nodegate's own write next, and that run records the rest.
                done.look_again(Some(SEEN));
                done.made = Some(change.clone());
                return Ok(done);
            }
            stored = self.stored(&facts);
        }
        if change.is_none() {
            self.report_join(node, &facts, &plan, None);
        }
        self.record_rest(node, &facts, &stored, &plan, change.as_ref(), &mut done).await?;
        done.made = change;
        Ok(done)
    }

    /// The second in which a node was created that is pending; `None` if it is not.
    pub(crate) fn pending_since(&self, node: &NodeObject) -> Option<i64> {
        let created = node.created().filter(|_| node.text().facts().is_ok_and(|facts| self.is_pending(&facts)))?;
        Some(created.as_second())
    }

    /// What a pending node waits for.
    pub(crate) fn awaited_by(&self, node: &NodeObject) -> Awaited {
        let text = node.text();
        let Ok(facts) = text.facts() else { return Awaited::default() };
        let set = self.policies();
        let (_, saved) = self.stored_and_saved(node, &facts);
        let evidence = self.evidence(node, &facts, &set, &saved).0;
        Awaited::of(&self.look(node, &facts, &set, &saved, evidence.as_ref()))
    }

    pub(crate) fn releases_stuck(&self) -> bool {
        self.config.release_pending
    }
}

/// Maximum delay before a node is processed again after a write; usually the watch wakes it before.
pub(crate) const SEEN: Duration = Duration::from_secs(2);
