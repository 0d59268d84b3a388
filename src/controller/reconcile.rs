//! Brings one node to what it should have, and records it. Level-triggered: what happened does not matter, only what is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use kube::Client;

use super::change::{reverts, summary};
use super::events::Events;
use super::history::FIELD_MANAGER;
use super::limit::WriteBudget;
use super::memory::Memory;
use super::node::{NodeApi, NodeObject, machine};
use super::queue::Urgency;
use super::records::Recorded;
use super::removals::MaxRemovals;
use crate::api::names::TaintId;
use crate::api::state::SavedState;
use crate::metrics::Metrics;
use crate::policy::{
    FactsError, Keep, Living, NodeChange, NodeFacts, PolicySet, SAVED_LABELS_MAX, SAVED_TAINTS_MAX, keep,
};
use crate::state::{ConfigMaps, StateWriter, WriteError};

/// How nodes are kept.
#[derive(Clone, Debug)]
pub struct KeepConfig {
    /// How many nodes may lose owned keys by one change.
    pub max_removals: MaxRemovals,
    /// Writes per second.
    pub writes_per_second: u32,
    /// Pending taints to lift.
    pub pending: Vec<TaintId>,
    /// After so long a node that is still pending is reported.
    pub pending_timeout: Duration,
    /// Whether such a node is released although it lacks something.
    pub release_pending: bool,
    /// Whether keys that are there with the desired value become ours (`apply --adopt`).
    pub adopt: bool,
    /// Whether the webhook keeps stamps (`--stamp-changes`), so that history may believe them.
    pub stamps: bool,
}

/// Why a node could not be brought to what it should have.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The object is not what Kubernetes says a Node is.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// Its state could not be recorded.
    #[error(transparent)]
    State(WriteError),
    /// The API server refused the change, or could not be asked.
    #[error("node {node} could not be changed: {error}")]
    Patch {
        /// The node.
        node: String,
        /// Why.
        error: Box<kube::Error>,
    },
    /// It changed meanwhile; it is looked at again.
    #[error("{0} changed meanwhile")]
    Conflict(String),
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Changed(what) => Self::Conflict(what),
            other => Self::State(other),
        }
    }
}

/// What was done to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Keys it did not have.
    pub set: usize,
    /// Keys that had another value.
    pub changed: usize,
    /// Keys that were removed.
    pub removed: usize,
    /// Keys it had already.
    pub kept: usize,
    /// Owned keys that no rule gives and that are not removed yet.
    pub lingering: usize,
    /// What was written. Admission may have stored something else.
    pub made: Option<NodeChange>,
    /// When it must be looked at again at the latest, if there is a reason.
    pub again: Option<Duration>,
    /// Why its state is not recorded, where that failed.
    pub unrecorded: Option<String>,
}

impl Done {
    /// Has the node looked at again after this time at the latest.
    fn look_again(&mut self, after: Option<Duration>) {
        self.again = self.again.into_iter().chain(after).min();
    }

    fn remembered(&mut self, recorded: Recorded) {
        if let Recorded::Remembered(wait) = recorded {
            self.look_again(Some(wait));
        }
    }
}

/// Brings nodes to what they should have.
pub struct Reconciler {
    nodes: NodeApi,
    policies: Arc<ArcSwap<PolicySet>>,
    maps: ConfigMaps,
    writer: StateWriter,
    budget: WriteBudget,
    config: KeepConfig,
    registered_at: ArcSwap<Option<Timestamp>>,
    memory: Mutex<Memory>,
    events: Events,
    metrics: Arc<Metrics>,
}

impl Reconciler {
    /// A reconciler that remembers nothing yet.
    pub fn new(
        client: Client,
        config: KeepConfig,
        policies: Arc<ArcSwap<PolicySet>>,
        maps: ConfigMaps,
        events: Events,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            nodes: NodeApi::new(client),
            policies,
            writer: StateWriter::new(maps.clone(), FIELD_MANAGER),
            maps,
            budget: WriteBudget::per_second(config.writes_per_second),
            registered_at: ArcSwap::default(),
            memory: Mutex::new(Memory::new(config.max_removals, config.stamps)),
            config,
            events,
            metrics,
        }
    }

    /// Nodes.
    pub fn nodes(&self) -> &NodeApi {
        &self.nodes
    }

    /// Since when the mutating webhook has been registered; `None` when it is not. Times of creation have whole seconds: a
    /// node of the same second may be older.
    pub fn registered(&self, since: Option<Timestamp>) {
        self.registered_at.store(Arc::new(since));
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        // What is remembered is advice; a panic elsewhere leaves it usable.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn policies(&self) -> Arc<PolicySet> {
        self.policies.load_full()
    }

    pub(super) fn writer(&self) -> &StateWriter {
        &self.writer
    }

    pub(super) fn maps(&self) -> &ConfigMaps {
        &self.maps
    }

    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Waits for a place in the write budget.
    pub(super) async fn turn(&self, urgency: Urgency) {
        self.budget.turn(urgency).await;
    }

    /// What the work on a node is for.
    pub(super) fn urgency(&self, node: &NodeObject) -> Urgency {
        match node.facts() {
            Ok(facts) if self.is_pending(&facts) => Urgency::Joining,
            Ok(_) | Err(_) => Urgency::Routine,
        }
    }

    pub(super) fn pending(&self) -> &[TaintId] {
        &self.config.pending
    }

    fn is_pending(&self, facts: &NodeFacts<'_>) -> bool {
        self.config.pending.iter().any(|id| facts.taint(id.key.as_str(), id.effect).is_some())
    }

    /// What is stored of a node.
    fn stored(&self, facts: &NodeFacts<'_>) -> Arc<SavedState> {
        self.maps.states().get(machine(facts)).unwrap_or_default()
    }

    /// What is stored of a node, and what is to be taken for it where a record could not be written.
    fn stored_and_saved(&self, node: &NodeObject, facts: &NodeFacts<'_>) -> (Arc<SavedState>, Arc<SavedState>) {
        let stored = self.stored(facts);
        let saved = self.memory().unrecorded.in_place_of(node.uid(), &stored);
        (stored, saved)
    }

    /// What a node needs, by what is in memory.
    pub(super) fn look(&self, node: &NodeObject, facts: &NodeFacts<'_>, set: &PolicySet, saved: &SavedState) -> Keep {
        let registered = self.registered_at.load();
        let patched_taints = self.memory().arrivals.patched(node);
        let living = Living {
            node: facts,
            claims: &node.claims,
            saved,
            registered: registered.zip(node.created()).is_some_and(|(since, created)| created > since),
            identified: self.maps.states().identity().of(machine(facts)).is_some(),
            pending: &self.config.pending,
            adopt: self.config.adopt,
            patched_taints: &patched_taints,
        };
        keep(set, &living)
    }

    /// Whether a node would lose owned keys, for the survey.
    pub(super) fn inspect(&self, node: &NodeObject, set: &PolicySet) -> Option<Keep> {
        let facts = node.facts().ok()?;
        let (_, saved) = self.stored_and_saved(node, &facts);
        Some(self.look(node, &facts, set, &saved))
    }

    /// Brings a node to what it should have, and records it.
    ///
    /// # Guarantees
    /// Writes only what differs; foreign keys are not touched; a change is made to the very version that was looked
    /// at, or not at all. Whatever it will own is recorded before it is written. A node that joins has all it waits for
    /// after two writes, its record and its change; what is left to record is recorded when it is looked at again.
    ///
    /// # Errors
    /// If something could not be written; asking again with the node as it is then goes on where this ended.
    pub async fn reconcile(&self, node: &NodeObject, urgency: Urgency) -> Result<Done, Failure> {
        if self.memory().is_behind(node, Instant::now()) {
            return Ok(Done { again: Some(SEEN), ..Done::default() });
        }
        let facts = node.facts()?;
        let set = self.policies();
        let (stored, saved) = self.stored_and_saved(node, &facts);
        let keep = self.look(node, &facts, &set, &saved);
        self.tell_unseen(node, &keep);
        let reverts = if keep.first_sight { Vec::new() } else { reverts(node, &facts, &saved) };
        let (change, again) = self.admissible(node, &set, &keep, &reverts);
        let mut done = summary(&facts, &keep, change.as_ref());
        done.look_again(again);
        let mut stored = stored;
        if let Some(change) = &change {
            let before = self.to_store(&facts, &stored, keep.record_before(Some(change)), &[]);
            // A record and a change, or neither: what flaps must not use up its budget for records alone.
            if let Err(wait) = self.afford(node, 1 + u32::from(before.is_some())) {
                return Ok(Done { again: Some(wait), ..Done::default() });
            }
            if let Some(before) = before {
                done.remembered(self.record(node, &stored, before, &[], urgency).await?);
            }
            self.make(node, &facts, change, urgency).await?;
            self.count_reverts(node, &keep, &reverts, change);
            self.tell(node, &keep);
            if urgency == Urgency::Joining {
                // Our own write is seen next, and that look records the rest.
                done.look_again(Some(SEEN));
                return Ok(done);
            }
            stored = self.stored(&facts);
        }
        self.record_rest(node, &facts, &stored, &keep, change.as_ref(), &mut done).await?;
        done.made = change;
        Ok(done)
    }

    /// Records what is left to record once a node is as it should be: what was removed, restored, persisted, and what
    /// has changed.
    async fn record_rest(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        stored: &SavedState,
        keep: &Keep,
        change: Option<&NodeChange>,
        done: &mut Done,
    ) -> Result<(), Failure> {
        let (history, wait) = self.memory().history.due(node.name(), Instant::now());
        done.look_again(wait);
        let Some(record) = self.to_store(facts, stored, keep.record(change), &history) else {
            self.is_recorded(node);
            self.memory().arrivals.recorded(node);
            return Ok(());
        };
        if let Err(wait) = self.afford(node, 1) {
            done.look_again(Some(wait));
            return Ok(());
        }
        match self.record(node, stored, record, &history, Urgency::Routine).await {
            Ok(Recorded::Stored) => {
                let mut memory = self.memory();
                memory.history.recorded(node.name(), history.len());
                memory.arrivals.recorded(node);
                drop(memory);
                if keep.not_saved > 0 {
                    self.too_many_persisted(node, keep.not_saved);
                }
            }
            Ok(remembered @ Recorded::Remembered(_)) => {
                self.memory().arrivals.recorded(node);
                done.remembered(remembered);
            }
            // Another writer looked at the node as it is now: what it recorded is looked at again.
            Err(WriteError::Changed(_)) => done.look_again(Some(SOON)),
            Err(error) => return Err(error.into()),
        }
        if let Some(why) = self.memory().unrecorded.why(node.uid()) {
            done.unrecorded = Some(why.to_owned());
        }
        Ok(())
    }

    /// Whether a node has been pending for too long.
    pub(super) fn is_stuck(&self, node: &NodeObject, now: Timestamp) -> bool {
        let Ok(facts) = node.facts() else { return false };
        let age = node.created().map_or(0, |created| now.as_second() - created.as_second());
        self.is_pending(&facts) && u64::try_from(age).unwrap_or_default() > self.config.pending_timeout.as_secs()
    }

    pub(super) fn releases_stuck(&self) -> bool {
        self.config.release_pending
    }

    /// Tells at this leader's first look at a node what was admitted although nobody was asked.
    fn tell_unseen(&self, node: &NodeObject, keep: &Keep) {
        if !self.memory().looked_at.insert(node.uid().to_owned()) {
            return;
        }
        if let Some(unseen) = &keep.unseen {
            tracing::warn!(node = node.name(), %unseen, "admitted while no replica answered");
            self.metrics.controller.admitted_unseen.inc();
            self.events.later(node, "AdmittedUnseen", unseen.to_string());
        }
    }

    /// Tells people what they should hear of.
    fn tell(&self, node: &NodeObject, keep: &Keep) {
        if !keep.forged.is_empty() {
            let keys = keep.forged.join(", ");
            let note =
                format!("removed {keys}: a kubelet may not assert protected labels, and admission was not asked");
            self.events.later(node, "ForgedLabels", note);
        }
    }

    fn too_many_persisted(&self, node: &NodeObject, count: usize) {
        self.metrics.controller.keeping.keys_not_saved.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        let note = format!(
            "{count} persisted labels or taints of this node are not saved: at most {SAVED_LABELS_MAX} labels and {SAVED_TAINTS_MAX} \
             taints of one node are, those that were saved before first"
        );
        tracing::warn!(node = node.name(), count, "too many persisted labels or taints; not all are saved");
        self.events.later(node, "TooManyPersistedKeys", note);
    }
}

/// How soon a node is looked at again at the latest after we wrote to it; the watch wakes it before.
const SEEN: Duration = Duration::from_secs(2);
/// How soon a node is looked at again after somebody else was quicker.
const SOON: Duration = Duration::from_millis(250);
