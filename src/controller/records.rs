//! Records of nodes: written before the change they are of, and remembered here for as long as they cannot be written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::node::{NodeObject, machine};
use super::queue::Urgency;
use super::reconcile::Reconciler;
use crate::api::state::{Change, Owned, SavedState};
use crate::policy::NodeFacts;
use crate::state::{Identity, WriteError};

/// How soon a record that could not be written is tried again at the latest.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// So many failures in a row that could pass by themselves are waited for before a node is changed without a record.
const PATIENCE: u32 = 2;

/// Records that could not be written, by the node's uid.
#[derive(Debug, Default)]
pub(super) struct Unrecorded(HashMap<String, Waiting>);

#[derive(Debug)]
struct Waiting {
    /// What was stored when it was last looked at.
    stored: SavedState,
    record: SavedState,
    tries: u32,
    next: Instant,
    why: String,
}

impl Unrecorded {
    /// What is to be taken for the record of a node, where `stored` is the one that was read.
    pub(super) fn in_place_of(&mut self, uid: &str, stored: &Arc<SavedState>) -> Arc<SavedState> {
        let Some(waiting) = self.0.get_mut(uid) else { return stored.clone() };
        if waiting.stored != **stored {
            // Somebody could write: that is newer, but what was given meanwhile stays owned.
            let owned = both(stored.owned.as_ref(), waiting.record.owned.take());
            waiting.record = SavedState { owned, ..SavedState::clone(stored) };
            waiting.stored = SavedState::clone(stored);
        }
        Arc::new(waiting.record.clone())
    }

    /// How long until a record may be tried again; zero where none has failed.
    fn wait(&self, uid: &str, now: Instant) -> Duration {
        self.0.get(uid).map_or(Duration::ZERO, |waiting| waiting.next.saturating_duration_since(now))
    }

    /// Remembers another record for a node whose records cannot be written.
    fn remember(&mut self, uid: &str, record: SavedState) {
        if let Some(waiting) = self.0.get_mut(uid) {
            waiting.record = record;
        }
    }

    /// Notes a failure; true when it is the first in a row.
    fn failed(&mut self, uid: &str, stored: &SavedState, record: SavedState, why: String, now: Instant) -> bool {
        let tries = self.0.get(uid).map_or(0, |waiting| waiting.tries).saturating_add(1);
        let next = now + Duration::from_secs(1 << tries.min(6)).min(RETRY_MAX);
        self.0.insert(uid.to_owned(), Waiting { stored: stored.clone(), record, tries, next, why });
        tries == 1
    }

    /// A record was written, or the node is gone; true where one had failed before.
    pub(super) fn forget(&mut self, uid: &str) -> bool {
        self.0.remove(uid).is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Why the record of a node is not written.
    pub(super) fn why(&self, uid: &str) -> Option<&str> {
        self.0.get(uid).map(|waiting| waiting.why.as_str())
    }
}

/// What either says is owned; the second knows the later value.
fn both(one: Option<&Owned>, other: Option<Owned>) -> Option<Owned> {
    let (Some(one), Some(mut other)) = (one, other.clone()) else { return one.cloned().or(other) };
    let add = |into: &mut std::collections::BTreeMap<String, String>, from: &std::collections::BTreeMap<_, _>| {
        for (key, value) in from {
            into.entry(String::clone(key)).or_insert_with(|| String::clone(value));
        }
    };
    add(&mut other.labels, &one.labels);
    add(&mut other.annotations, &one.annotations);
    for taint in &one.taints {
        if !other.taints.iter().any(|known| (&known.key, &known.effect) == (&taint.key, &taint.effect)) {
            other.taints.push(taint.clone());
        }
    }
    for (key, seconds) in &one.remove_after {
        other.remove_after.entry(key.clone()).or_insert(*seconds);
    }
    Some(other)
}

/// Whether a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// It is stored.
    Stored,
    /// It cannot be written; it is remembered, and to be tried again after so long.
    Remembered(Duration),
}

impl Reconciler {
    /// A record as it is to be stored in place of `stored`; `None` where it says nothing else.
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
        let nothing_new = (record == *stored && history.is_empty()) || record.says_nothing();
        (!nothing_new).then_some(record)
    }

    /// Records a node's state, on the ground of what is `stored`.
    ///
    /// A record that cannot be written is remembered and counts as written for as long as this replica leads: no change
    /// of a node waits for it for ever. If this replica ends before it can be written, it is forgotten what is owned,
    /// and such keys stay on the node when their rule ends; an event says so.
    ///
    /// # Errors
    /// If somebody else has written since, or for a reason that may pass by itself.
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
        let written = self.writer().write(stored, &dated, history).await;
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
            tracing::warn!(node = node.name(), %error, "its state cannot be recorded; the node is kept right without");
            let note = format!(
                "the state of this node cannot be recorded: {error}. Its labels and taints are kept right, and the \
                 record is tried again. If nodegate restarts before it succeeds, keys that it gives meanwhile stay on \
                 the node when their rule ends"
            );
            self.events().later(node, "NotRecorded", note);
        }
        wait
    }

    /// What is stored of a node is right.
    pub(super) fn is_recorded(&self, node: &NodeObject) {
        let (failed, count) = {
            let mut memory = self.memory();
            let unrecorded = &mut memory.unrecorded;
            (unrecorded.forget(node.uid()), unrecorded.len())
        };
        if failed {
            self.metrics().controller.keeping.unrecorded_nodes.set(i64::try_from(count).unwrap_or(i64::MAX));
            tracing::info!(node = node.name(), "its state is recorded again");
        }
    }

    fn dropped(&self, node: &NodeObject, count: usize) {
        self.metrics().controller.keeping.records_dropped.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        let note = format!(
            "{count} older records kept beside the state of this node were dropped: of other machines of this name, \
             or texts that could not be read. Only the latest few are kept"
        );
        tracing::warn!(node = node.name(), count, "older records were dropped to make room");
        self.events().later(node, "RecordsDropped", note);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn state(uid: &str, owned: &[&str]) -> SavedState {
        let labels: BTreeMap<String, String> = owned.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect();
        let owned = (!labels.is_empty()).then(|| Owned { labels, ..Owned::default() });
        SavedState { node_name: "n".to_owned(), node_uid: Some(uid.to_owned()), owned, ..SavedState::default() }
    }

    #[test]
    fn a_record_that_cannot_be_written_stands_for_the_stored_one_and_is_tried_ever_more_seldom() {
        let (mut unrecorded, now) = (Unrecorded::default(), Instant::now());
        let stored = Arc::new(state("u", &[]));
        assert_eq!(unrecorded.in_place_of("u", &stored), stored);
        assert!(unrecorded.failed("u", &stored, state("u", &["given"]), "403".to_owned(), now));
        assert_eq!(*unrecorded.in_place_of("u", &stored), state("u", &["given"]));
        assert!(!unrecorded.failed("u", &stored, state("u", &["given"]), "403".to_owned(), now));
        assert_eq!(unrecorded.wait("u", now), Duration::from_secs(4));
        for _ in 0..100 {
            unrecorded.failed("u", &stored, state("u", &["given"]), "403".to_owned(), now);
        }
        assert_eq!(unrecorded.wait("u", now), RETRY_MAX);
        assert!(unrecorded.forget("u") && !unrecorded.forget("u"));
    }

    #[test]
    fn what_was_given_meanwhile_stays_owned_when_somebody_else_can_write() {
        let (mut unrecorded, now) = (Unrecorded::default(), Instant::now());
        let stored = Arc::new(state("u", &["before"]));
        unrecorded.failed("u", &stored, state("u", &["before", "given"]), "403".to_owned(), now);
        let newer = Arc::new(SavedState {
            labels: BTreeMap::from([("persist.demo/x".to_owned(), "y".to_owned())]),
            ..state("u", &["before", "by-apply"])
        });
        let taken = unrecorded.in_place_of("u", &newer);
        assert_eq!(taken.labels, newer.labels);
        let owned: Vec<&str> = taken.owned.iter().flat_map(|owned| owned.labels.keys()).map(String::as_str).collect();
        assert_eq!(owned, ["before", "by-apply", "given"]);
        assert_eq!(unrecorded.in_place_of("u", &newer), taken, "and it stays so");
    }
}
