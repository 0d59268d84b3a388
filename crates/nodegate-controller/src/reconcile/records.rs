//! Writes the records of nodes before the changes they describe, and remembers them here while they cannot be
//! written.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::memory::node::NodeMemory;
use crate::memory::unrecorded::Recorded;
use crate::node::queue::Urgency;
use crate::node::{NodeObject, machine};
use crate::reconcile::Reconciler;
use crate::reconcile::outcome::{Done, Failure};
use nodegate_base::text::{counted, hexadecimal};
use nodegate_base::traces::Step;
use nodegate_policy::api::state::{Change, SavedState};
use nodegate_policy::{NodeChange, NodeFacts, ReconcilePlan, SAVED_LABELS_MAX, SAVED_TAINTS_MAX};
use nodegate_stores::state::{Identity, WriteError};

/// The record with the time at which it is written.
pub(crate) fn dated(record: &SavedState) -> SavedState {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    SavedState { captured_at: Some(now), ..record.clone() }
}

/// The token of a record: another one for each node object and for each change of what is saved, and none while there is nothing to
/// restore. A replica that lags restores an older state, whose token proves nothing about this one.
fn restore_token(record: &SavedState, stored: &SavedState) -> Option<String> {
    let restores = !record.labels.is_empty() || !record.taints.is_empty();
    let is_same =
        (&record.node_uid, &record.labels, &record.taints) == (&stored.node_uid, &stored.labels, &stored.taints);
    let known = stored.restore_token.as_ref().filter(|_| is_same);
    known.cloned().or_else(random_word).filter(|_| restores)
}

/// A word that cannot be guessed; `None` if the system has no randomness, and then admission leaves no token.
fn random_word() -> Option<String> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    Some(hexadecimal(&bytes))
}

/// How many consecutive temporary failures are waited for before a node is changed without a record.
const PATIENCE: u32 = 2;

/// Delay before a node is processed again after a concurrent change.
const SOON: Duration = Duration::from_millis(250);

impl Reconciler {
    /// Records the rest once a node needs no change: removed, restored and persisted keys, and the history.
    pub(crate) async fn record_rest(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        stored: &SavedState,
        plan: &ReconcilePlan,
        change: Option<&NodeChange>,
        done: &mut Done,
    ) -> Result<(), Failure> {
        let due = self.with_memory(node, |known| known.history.due(Instant::now()));
        let (history, wait) = due.unwrap_or_default();
        done.look_again(wait);
        let Some(record) = self.to_store(facts, stored, plan.record(change), &history) else {
            self.is_recorded(node);
            self.with_memory(node, |known| known.recorded(node));
            return Ok(());
        };
        if let Err(wait) = self.afford(node, 1) {
            done.look_again(Some(wait));
            return Ok(());
        }
        match self.record(node, stored, record, &history, Urgency::Routine).await {
            Ok(Recorded::Stored) => {
                self.with_memory(node, |known| {
                    known.history.recorded(history.len());
                    known.recorded(node);
                });
                if plan.not_saved > 0 {
                    self.too_many_persisted(node, plan.not_saved);
                }
            }
            Ok(remembered @ Recorded::Remembered(_)) => {
                self.with_memory(node, |known| known.recorded(node));
                done.remembered(remembered);
            }
            // Another writer has processed the current node: read its record and try again.
            Err(WriteError::Changed(_)) => done.look_again(Some(SOON)),
            Err(error) => return Err(error.into()),
        }
        done.unrecorded = self.with_memory(node, |known| known.unrecorded.why().map(str::to_owned)).flatten();
        Ok(())
    }

    /// The record to store in place of `stored`; `None` if it does not differ.
    pub(crate) fn to_store(
        &self,
        facts: &NodeFacts<'_>,
        stored: &SavedState,
        mut record: SavedState,
        history: &[Change],
    ) -> Option<SavedState> {
        let identity = self.maps().states().identity();
        let known = identity.of(machine(facts))?;
        record.identity = (identity != Identity::Name).then_some(known);
        record.captured_at.clone_from(&stored.captured_at);
        record.revision = stored.revision;
        record.restore_token.clone_from(&stored.restore_token);
        record.bootstrapped_by = self.bootstraps(facts, stored, &record);
        if (record == *stored && history.is_empty()) || record.says_nothing() {
            return None;
        }
        record.restore_token = restore_token(&record, stored);
        Some(record)
    }

    /// Writes a node's record, based on what is `stored`.
    ///
    /// A record that cannot be written is remembered and counts as written while this replica leads, so that no
    /// change of a node waits forever. If this replica stops before the record is written, nodegate no longer knows
    /// what it owns, and such keys stay on the node when their rule ends. An event reports this.
    ///
    /// # Errors
    /// Returns an error if the record was written concurrently, or for a possibly temporary reason.
    pub(crate) async fn record(
        &self,
        node: &NodeObject,
        stored: &SavedState,
        record: SavedState,
        history: &[Change],
        urgency: Urgency,
    ) -> Result<Recorded, WriteError> {
        if let Some(known) = self.memory().of(node) {
            let wait = known.unrecorded.wait(Instant::now());
            if !wait.is_zero() {
                known.unrecorded.remember(record);
                return Ok(Recorded::Remembered(wait));
            }
        }
        let dated = dated(&record);
        self.turn(urgency).await;
        let writing = self.writer().write(stored, &dated, history);
        let written = self.traces().step(Step::WriteRecord, writing).await;
        self.metrics().controller.wrote("state", written.is_ok());
        match written {
            Ok(written) => {
                self.is_recorded(node);
                if written.dropped > 0 {
                    self.dropped(node, written.dropped);
                }
                Ok(Recorded::Stored)
            }
            Err(error @ WriteError::Changed(_)) => Err(error),
            Err(error) => {
                let is_waited_for =
                    |known: &mut NodeMemory| known.unrecorded.why().is_none() && known.failures < PATIENCE;
                if !error.is_refusal() && self.with_memory(node, is_waited_for) != Some(false) {
                    return Err(error);
                }
                Ok(Recorded::Remembered(self.not_recorded(node, stored, record, &error)))
            }
        }
    }

    fn not_recorded(&self, node: &NodeObject, stored: &SavedState, record: SavedState, error: &WriteError) -> Duration {
        let now = Instant::now();
        let noted = self.with_memory(node, |known| {
            let first = known.unrecorded.failed(stored, record, error.to_string(), now);
            (first, known.unrecorded.wait(now))
        });
        // Nobody asks for the record of a node that is gone.
        let Some((first, wait)) = noted else { return Duration::ZERO };
        if first {
            tracing::warn!(node = node.name(), %error, "cannot write the saved state of the node; reconciling the node without it");
            let note = format!(
                "could not write the saved state of this node: {error}. Its labels and taints are still reconciled, and the \
                 write is retried. If nodegate restarts before the write succeeds, keys that it sets meanwhile stay on the \
                 node when their rule ends"
            );
            self.events().later(node, "NotRecorded", note);
        }
        wait
    }

    /// Records that the stored record is up to date.
    pub(crate) fn is_recorded(&self, node: &NodeObject) {
        if self.with_memory(node, |known| known.unrecorded.forget()) == Some(true) {
            tracing::info!(node = node.name(), "the saved state of the node is up to date again");
        }
    }

    fn dropped(&self, node: &NodeObject, count: usize) {
        self.metrics().controller.keeping.records_dropped.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        let note = format!(
            "dropped {count} old records of this node: records of other machines with this name, or unreadable texts. \
             nodegate keeps only the latest few"
        );
        tracing::warn!(node = node.name(), count, "dropped old records of the node");
        self.events().later(node, "RecordsDropped", note);
    }

    fn too_many_persisted(&self, node: &NodeObject, count: usize) {
        self.metrics().controller.keeping.keys_not_saved.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        let note = format!(
            "{} not saved: the limits for one node are {SAVED_LABELS_MAX} labels and {SAVED_TAINTS_MAX} taints; keys that are \
             already saved stay saved",
            counted(count, "persisted label or taint of this node is", "persisted labels or taints of this node are"),
        );
        tracing::warn!(node = node.name(), count, "too many persisted labels or taints; not all of them are saved");
        self.events().later(node, "TooManyPersistedKeys", note);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_stands_for_one_node_object_and_one_saved_state() {
        let state = |uid: &str, team: &str| -> SavedState {
            serde_json::from_value(json!({"nodeName": "n", "nodeUID": uid, "labels": {"team": team}})).unwrap()
        };
        let nothing = SavedState::default();
        let first = state("u1", "ml");
        let stored = SavedState { restore_token: restore_token(&first, &nothing), ..first.clone() };
        assert!(stored.restore_token.is_some());
        let again = SavedState { deleted_at: Some("2026-11-20T10:00:00Z".into()), ..first };
        assert_eq!(restore_token(&again, &stored), stored.restore_token, "the same to restore");
        for other in [state("u2", "ml"), state("u1", "web")] {
            let token = restore_token(&other, &stored);
            assert!(token.is_some() && token != stored.restore_token, "{other:?}");
        }
        assert_eq!(restore_token(&SavedState { labels: Default::default(), ..state("u1", "ml") }, &stored), None);
    }
}
