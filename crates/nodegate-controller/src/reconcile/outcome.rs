//! The result of reconciling a node.

use std::time::Duration;

use jiff::Timestamp;

use crate::memory::fleet::patience;
use crate::memory::unrecorded::Recorded;
use nodegate_policy::{ClosedGate, FactsError, NodeChange, ReconcilePlan};
use nodegate_stores::state::WriteError;

/// Why a node could not be reconciled.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The object is not a valid Node.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// Its saved state could not be written.
    #[error(transparent)]
    State(WriteError),
    /// The API server refused the change, or could not be reached.
    #[error("could not change node {node}: {error}")]
    Patch {
        /// The node.
        node: String,
        /// The reason.
        error: Box<kube::Error>,
    },
    /// It changed concurrently and is processed again.
    #[error("{0} changed concurrently")]
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

/// What a pending node waits for, and others have to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// Whether a required inventory has not answered.
    pub inventory: bool,
    /// The gates that it has not passed.
    pub gates: Vec<ClosedGate>,
}

impl Awaited {
    pub(crate) fn of(plan: &ReconcilePlan) -> Self {
        Self { inventory: plan.awaits_inventory, gates: plan.decision.gates.clone() }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        !self.inventory && self.gates.is_empty()
    }

    /// Whether a node that was created in this second waits for gates only, and all of them have time left.
    pub(crate) fn has_time(&self, created: i64, now: Timestamp) -> bool {
        let has_time = |gate: &ClosedGate| !patience(created, now, gate.timeout).is_zero();
        !self.inventory && !self.gates.is_empty() && self.gates.iter().all(has_time)
    }
}

/// What was done to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of added keys.
    pub set: usize,
    /// Number of keys with a changed value.
    pub changed: usize,
    /// Number of removed keys.
    pub removed: usize,
    /// Number of keys that already had the desired value.
    pub kept: usize,
    /// Number of owned keys that no rule sets and that are not removed yet.
    pub lingering: usize,
    /// Why the node is pending, if others have to do something.
    pub awaited: Awaited,
    /// The written change. Admission may have changed it.
    pub made: Option<NodeChange>,
    /// When the node must be processed again at the latest, if there is a reason.
    pub again: Option<Duration>,
    /// Why its saved state could not be written, if so.
    pub unrecorded: Option<String>,
}

impl Done {
    /// Schedules the node to be processed again after this time at the latest.
    pub(crate) fn look_again(&mut self, after: Option<Duration>) {
        self.again = self.again.into_iter().chain(after).min();
    }

    pub(crate) fn remembered(&mut self, recorded: Recorded) {
        if let Recorded::Remembered(wait) = recorded {
            self.look_again(Some(wait));
        }
    }
}
