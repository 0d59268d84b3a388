//! Writes the records of nodes before the changes they describe, and remembers them here while they cannot be
//! written.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::node::{NodeObject, machine};
use super::queue::Urgency;
use super::reconcile::Reconciler;
use super::unrecorded::Recorded;
use crate::state::{Identity, WriteError};
use crate::traces::Step;
use nodegate_policy::NodeFacts;
use nodegate_policy::api::state::{Change, SavedState};

/// How many consecutive temporary failures are waited for before a node is changed without a record.
const PATIENCE: u32 = 2;

impl Reconciler {
    /// The record to store in place of `stored`; `None` if it does not differ.
    pub(super) fn to_store(
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
        let nothing_new = (record == *stored && history.is_empty()) || record.says_nothing();
        (!nothing_new).then_some(record)
    }

    /// Writes a node's record, based on what is `stored`.
    ///
    /// A record that cannot be written is remembered and counts as written while this replica leads, so that no
    /// change of a node waits forever. If this replica stops before the record is written, nodegate no longer knows
    /// what it owns, and such keys stay on the node when their rule ends. An event reports this.
    ///
    /// # Errors
    /// Returns an error if the record was written concurrently, or for a possibly temporary reason.
    pub(super) async fn record(
        &self,
        node: &NodeObject,
        stored: &SavedState,
        record: SavedState,
        history: &[Change],
        urgency: Urgency,
    ) -> Result<Recorded, WriteError> {
        let wait = self.memory().unrecorded.wait(node.uid(), Instant::now());
        if !wait.is_zero() {
            self.memory().unrecorded.remember(node.uid(), record);
            return Ok(Recorded::Remembered(wait));
        }
        let mut dated = record.clone();
        dated.captured_at = Some(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
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
                let failures = self.memory().failures.get(node.name()).copied().unwrap_or_default();
                let known = self.memory().unrecorded.why(node.uid()).is_some();
                if !known && !error.is_refusal() && failures < PATIENCE {
                    return Err(error);
                }
                Ok(Recorded::Remembered(self.not_recorded(node, stored, record, &error)))
            }
        }
    }

    fn not_recorded(&self, node: &NodeObject, stored: &SavedState, record: SavedState, error: &WriteError) -> Duration {
        let now = Instant::now();
        let (first, wait, count) = {
            let mut memory = self.memory();
            let unrecorded = &mut memory.unrecorded;
            let first = unrecorded.failed(node.uid(), stored, record, error.to_string(), now);
            (first, unrecorded.wait(node.uid(), now), unrecorded.len())
        };
        self.metrics().controller.keeping.unrecorded_nodes.set(i64::try_from(count).unwrap_or(i64::MAX));
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
    pub(super) fn is_recorded(&self, node: &NodeObject) {
        let (failed, count) = {
            let mut memory = self.memory();
            let unrecorded = &mut memory.unrecorded;
            (unrecorded.forget(node.uid()), unrecorded.len())
        };
        if failed {
            self.metrics().controller.keeping.unrecorded_nodes.set(i64::try_from(count).unwrap_or(i64::MAX));
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
}
