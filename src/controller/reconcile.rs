//! Brings one node to what it should have, and records it. Level-triggered: what happened does not matter, only what is.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use json_patch::{PatchOperation, ReplaceOperation};
use jsonptr::PointerBuf;
use kube::Client;
use kube::api::PatchParams;

use super::arrivals::Arrivals;
use super::change::{describe, reverts, summary};
use super::events::Events;
use super::fights::{Fights, Ground};
use super::history::{FIELD_MANAGER, History};
use super::limit::WriteLimit;
use super::node::{NodeApi, NodeObject, machine};
use super::removals::{MaxRemovals, Removals};
use crate::api::names::TaintId;
use crate::api::state::{Change, SavedState};
use crate::metrics::Metrics;
use crate::policy::{FactsError, Keep, Living, NodeChange, NodeFacts, PolicySet, keep, patch};
use crate::state::{ConfigMaps, Identity, StateWriter, WriteError};

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
    /// When it must be looked at again at the latest, if there is a reason.
    pub again: Option<Duration>,
}

/// What a term remembers of nodes.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) removals: Removals,
    pub(super) fights: Fights,
    pub(super) history: History,
    pub(super) arrivals: Arrivals,
    pub(super) failures: HashMap<String, u32>,
    /// The uids of nodes that were looked at in this term.
    pub(super) looked_at: HashSet<String>,
}

impl Memory {
    /// A node is gone.
    pub(super) fn forget(&mut self, node: &NodeObject) {
        self.history.forget(node.name());
        self.arrivals.forget(node.name());
        self.removals.forget(node.uid());
        self.fights.forget(node.uid());
        self.failures.remove(node.name());
        self.looked_at.remove(node.uid());
    }
}

/// Brings nodes to what they should have.
pub struct Reconciler {
    nodes: NodeApi,
    policies: Arc<ArcSwap<PolicySet>>,
    maps: ConfigMaps,
    writer: StateWriter,
    limit: WriteLimit,
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
            limit: WriteLimit::per_second(config.writes_per_second),
            registered_at: ArcSwap::default(),
            memory: Mutex::new(Memory {
                removals: Removals::new(config.max_removals),
                fights: Fights::default(),
                history: History::default(),
                arrivals: Arrivals::default(),
                failures: HashMap::new(),
                looked_at: HashSet::new(),
            }),
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

    pub(super) async fn turn(&self) {
        self.limit.turn().await;
    }

    fn saved(&self, facts: &NodeFacts<'_>) -> Arc<SavedState> {
        self.maps.states().get(machine(facts)).unwrap_or_default()
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
        let saved = self.saved(&facts);
        Some(self.look(node, &facts, set, &saved))
    }

    /// Brings a node to what it should have, and records it.
    ///
    /// # Guarantees
    /// Writes only what differs; foreign keys are not touched; a change is made to the very version that was looked
    /// at, or not at all. Whatever it will own is recorded before it is written.
    ///
    /// # Errors
    /// If something could not be written; asking again with the node as it is then goes on where this ended.
    pub async fn reconcile(&self, node: &NodeObject) -> Result<Done, Failure> {
        let facts = node.facts()?;
        let set = self.policies();
        let saved = self.saved(&facts);
        let keep = self.look(node, &facts, &set, &saved);
        self.tell_unseen(node, &keep);
        let (change, again) = self.admissible(node, &set, &keep);
        let history = self.memory().history.pending(node.name());
        let mut done = summary(&facts, &keep, change.as_ref());
        done.again = again;
        if let Some(change) = &change {
            self.record(&facts, &saved, keep.record_before(Some(change)), &[]).await?;
            self.make(node, &facts, change).await?;
            self.count_reverts(node, &facts, &saved, &keep, change);
            self.told(node, &keep).await;
        }
        match self.record(&facts, &self.saved(&facts), keep.record(change.as_ref()), &history).await {
            Ok(()) => {
                let mut memory = self.memory();
                memory.history.recorded(node.name(), history.len());
                memory.arrivals.recorded(node);
            }
            // Another writer looked at the node as it is now: what he recorded is looked at again.
            Err(WriteError::Changed(_)) => done.again = Some(SOON),
            Err(error) => return Err(error.into()),
        }
        Ok(done)
    }

    /// The change that grace, brake and fights leave over, and when to look again.
    fn admissible(&self, node: &NodeObject, set: &PolicySet, keep: &Keep) -> (Option<NodeChange>, Option<Duration>) {
        let mut memory = self.memory();
        let (due, mut again) = memory.removals.due(node.uid(), &keep.removals, Instant::now());
        if !keep.removals.is_empty() && due.is_empty() {
            again = Some(again.map_or(BRAKED, |again| again.min(BRAKED)));
        }
        let ground = |field, key: &str| Ground { uid: node.uid().to_owned(), field, key: key.to_owned() };
        let change = keep.change(
            |removal| due.contains(removal),
            |field, key| !set.is_protected(key) && memory.fights.is_left_alone(&ground(field, key)),
        );
        (change, again)
    }

    /// Counts what was undone by somebody and has been done again; after a while that key is left alone.
    fn count_reverts(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        saved: &SavedState,
        keep: &Keep,
        change: &NodeChange,
    ) {
        if keep.first_sight {
            return;
        }
        let set = self.policies();
        for (field, key, writer) in reverts(node, facts, saved, change) {
            if set.is_protected(&key) {
                continue;
            }
            let rule = keep.giver(field, &key);
            let policy = rule.map(|rule| &*rule.policy).unwrap_or_default();
            let ground = Ground { uid: node.uid().to_owned(), field, key: key.clone() };
            if !self.memory().fights.reverted(ground, &writer, policy, Instant::now()) {
                continue;
            }
            let rule = rule.map(ToString::to_string).unwrap_or_default();
            tracing::warn!(node = node.name(), %field, key, writer, rule, "left alone: it was reverted again and again");
            self.metrics.controller.keys_left_alone.inc();
            let note = format!(
                "{field} {key}: {writer:?} has undone rule {rule} five times in ten minutes; it is left alone until the \
                 policies change"
            );
            self.events.later(node, "LeftAlone", note);
        }
    }

    /// Makes a change to the version of the node that was looked at.
    async fn make(&self, node: &NodeObject, facts: &NodeFacts<'_>, change: &NodeChange) -> Result<(), Failure> {
        let version = PatchOperation::Replace(ReplaceOperation {
            path: PointerBuf::from_tokens(["metadata", "resourceVersion"]),
            value: node.resource_version().into(),
        });
        let mut guarded = patch(facts, change);
        guarded.0.insert(0, version);
        self.turn().await;
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let made = self.nodes.patch(node.name(), &parameters, guarded).await;
        self.metrics.controller.wrote("node", made.is_ok());
        match made {
            Ok(()) => {
                tracing::info!(node = node.name(), change = %describe(change), "changed");
                Ok(())
            }
            Err(kube::Error::Api(status)) if is_stale(&status) => Err(Failure::Conflict(node.name().to_owned())),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(Failure::Patch { node: node.name().to_owned(), error: Box::new(error) }),
        }
    }

    /// Lifts pending taints and nothing else, from a node that has waited too long.
    pub(super) async fn release(&self, node: &NodeObject) -> Result<(), Failure> {
        let facts = node.facts()?;
        let lifted = self.config.pending.iter().filter(|id| facts.taint(id.key.as_str(), id.effect).is_some());
        let Some(change) = NodeChange::without_taints(lifted.cloned()) else { return Ok(()) };
        self.make(node, &facts, &change).await
    }

    /// Whether a node has been pending for too long.
    pub(super) fn is_stuck(&self, node: &NodeObject, now: Timestamp) -> bool {
        let Ok(facts) = node.facts() else { return false };
        let pending = self.config.pending.iter().any(|id| facts.taint(id.key.as_str(), id.effect).is_some());
        let age = node.created().map_or(0, |created| now.as_second() - created.as_second());
        pending && u64::try_from(age).unwrap_or_default() > self.config.pending_timeout.as_secs()
    }

    pub(super) fn releases_stuck(&self) -> bool {
        self.config.release_pending
    }

    async fn record(
        &self,
        facts: &NodeFacts<'_>,
        saved: &SavedState,
        mut record: SavedState,
        history: &[Change],
    ) -> Result<(), WriteError> {
        let identity = self.maps.states().identity();
        let Some(known) = identity.of(machine(facts)) else { return Ok(()) };
        record.identity = (identity != Identity::Name).then_some(known);
        record.captured_at.clone_from(&saved.captured_at);
        if (record == *saved && history.is_empty()) || record.says_nothing() {
            return Ok(());
        }
        record.captured_at = Some(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        self.turn().await;
        let written = self.writer.write(saved, &record, history).await;
        self.metrics.controller.wrote("state", written.is_ok());
        written.map(drop)
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
    async fn told(&self, node: &NodeObject, keep: &Keep) {
        if !keep.forged.is_empty() {
            let keys = keep.forged.join(", ");
            let note =
                format!("removed {keys}: a kubelet may not assert protected labels, and admission was not asked");
            self.events.publish(node, "ForgedLabels", note).await;
        }
    }
}

/// How soon a node is looked at again after somebody else was quicker.
const SOON: Duration = Duration::from_millis(250);
/// How soon a node is looked at again whose removals are held back.
const BRAKED: Duration = Duration::from_secs(5);

/// Whether a patch was refused because the node is not as it was when it was looked at. A `resourceVersion` that is not the
/// present one is answered by 409; a `test` or `remove` that finds something else comes before that, and is answered by a
/// 422 that names no field.
fn is_stale(status: &kube::core::Status) -> bool {
    let names_fields = status.details.as_ref().is_some_and(|details| !details.causes.is_empty());
    status.code == 409 || (status.code == 422 && !names_fields)
}
