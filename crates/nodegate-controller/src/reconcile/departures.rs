//! Records what leaves: nodes that are being deleted, and those that were.

use std::time::Duration;

use super::Reconciler;
use super::outcome::{Done, Failure};
use super::records::dated;
use crate::memory::departures::Departed;
use crate::memory::history::deletion;
use crate::node::NodeObject;
use crate::node::queue::Urgency;
use nodegate_policy::api::state::{Change, SavedState};
use nodegate_stores::state::WriteError;

/// How often a record that was written concurrently is read again.
const TRIES: usize = 3;
/// How often a deletion that could not be recorded for another reason is tried again…
const RETRIES: usize = 5;
/// …and the pause before that.
const RETRY_AFTER: Duration = Duration::from_secs(2);

impl Reconciler {
    /// Records the deletion of all nodes that wait for that, and pauses after a failure.
    pub(crate) async fn record_departures(&self) {
        while let Some(name) = { self.memory().departures.next() } {
            let Some(departed) = self.record_departure(&name).await else { continue };
            tokio::time::sleep(RETRY_AFTER).await;
            let mut memory = self.memory();
            // A node that has its name now was processed meanwhile, and its record is no longer about the deleted one.
            if departed.failures < RETRIES && !memory.is_living(&name) {
                memory.departures.note_again(departed);
            } else {
                memory.settle(&departed.node);
            }
        }
    }

    /// Records the deletion of the node of this name, if it waits for that: before a node that has its name now is processed.
    pub(crate) async fn record_departure_now(&self, name: &str) {
        if let Some(departed) = self.record_departure(name).await {
            self.memory().settle(&departed.node);
        }
    }

    /// Returns the node if its deletion could not be recorded.
    async fn record_departure(&self, name: &str) -> Option<Departed> {
        let mut departed = self.memory().departures.take(name)?;
        for _ in 0..TRIES {
            match self.try_record_departure(&departed).await {
                Ok(()) => break,
                Err(Failure::Conflict(_)) => {}
                Err(error) => {
                    tracing::warn!(node = name, %error, "could not record the deletion of the node");
                    departed.failures += 1;
                    return Some(departed);
                }
            }
        }
        self.memory().settle(&departed.node);
        None
    }

    async fn try_record_departure(&self, departed: &Departed) -> Result<(), Failure> {
        let Departed { node, at, changes, is_behind, failures: _ } = departed;
        let facts = node.facts()?;
        let (stored, saved) = self.stored_and_saved(node, &facts);
        if *stored == SavedState::default() {
            return Ok(());
        }
        let plan = self.look(node, &facts, &self.policies(), &saved);
        // Of a node that no leader has looked at, the saved state is still to be restored. A version from before nodegate's last
        // write lacks what that write restored, which the record has.
        let last = if plan.first_sight || *is_behind { SavedState::clone(&stored) } else { plan.record(None) };
        let record = SavedState { deleted_at: Some(at.to_string()), ..last };
        let history: Vec<Change> = changes.iter().cloned().chain([deletion(*at)]).collect();
        let Some(record) = self.to_store(&facts, &stored, record, &history) else { return Ok(()) };
        self.turn(Urgency::Routine).await;
        match self.writer().write(&stored, &dated(&record), &history).await {
            Ok(_) => Ok(()),
            Err(WriteError::Changed(what)) => Err(Failure::Conflict(what)),
            Err(error) => Err(error.into()),
        }
    }

    /// Records a node that is being deleted: what people change until it is gone is saved, and nothing is set anymore.
    pub(crate) async fn record_leaving(&self, node: &NodeObject) -> Result<Done, Failure> {
        let facts = node.facts()?;
        let (stored, saved) = self.stored_and_saved(node, &facts);
        let plan = self.look(node, &facts, &self.policies(), &saved);
        let mut done = Done::default();
        if !plan.first_sight {
            self.record_rest(node, &facts, &stored, &plan, None, &mut done).await?;
        }
        Ok(done)
    }
}
