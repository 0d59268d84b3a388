//! The record of a node that could not be written, remembered until it can be.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use nodegate_policy::api::state::{Owned, SavedState, TextMap};
use prometheus_client::metrics::gauge::Gauge;

/// The maximum delay before a failed write of a record is retried.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// The delays before a failed write of a record is retried.
const RETRY: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_secs(2)).with_max_delay(RETRY_MAX).without_max_times();

/// A record that could not be written, if there is one.
#[derive(Debug)]
pub(crate) struct Unrecorded {
    waiting: Option<Box<Waiting>>,
    /// The number of nodes that have one.
    nodes: Gauge,
}

#[derive(Debug)]
struct Waiting {
    /// The stored record when it was last read.
    stored: SavedState,
    record: SavedState,
    pauses: ExponentialBackoff,
    next: Instant,
    why: String,
    _counted: Counted,
}

/// Counts one node until dropped.
#[derive(Debug)]
struct Counted(Gauge);

impl Counted {
    fn in_gauge(nodes: &Gauge) -> Self {
        nodes.inc();
        Self(nodes.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Unrecorded {
    /// No record. `nodes`: the number of nodes that have one.
    pub(crate) fn new(nodes: Gauge) -> Self {
        Self { waiting: None, nodes }
    }

    /// The record to use for the node, where `stored` is the one that was read.
    pub(crate) fn in_place_of(&mut self, stored: &Arc<SavedState>) -> Arc<SavedState> {
        let Some(waiting) = &mut self.waiting else { return stored.clone() };
        if waiting.stored != **stored {
            // Another writer succeeded. Its record is newer, but what was set meanwhile stays owned.
            let owned = both(stored.owned.as_ref(), waiting.record.owned.take());
            waiting.record = SavedState { owned, ..SavedState::clone(stored) };
            waiting.stored = SavedState::clone(stored);
        }
        Arc::new(waiting.record.clone())
    }

    /// How long until writing the record may be retried; zero if no write has failed.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        self.waiting.as_ref().map_or(Duration::ZERO, |waiting| waiting.next.saturating_duration_since(now))
    }

    /// Replaces the remembered record, if a write has failed.
    pub(crate) fn remember(&mut self, record: SavedState) {
        if let Some(waiting) = &mut self.waiting {
            waiting.record = record;
        }
    }

    /// Records a failure. Returns true if it is the first of consecutive ones.
    pub(crate) fn failed(&mut self, stored: &SavedState, record: SavedState, why: String, now: Instant) -> bool {
        let before = self.waiting.take();
        let is_first = before.is_none();
        let mut pauses = before.map_or_else(|| RETRY.build(), |waiting| waiting.pauses);
        let next = now + pauses.next().unwrap_or(RETRY_MAX);
        let (stored, counted) = (stored.clone(), Counted::in_gauge(&self.nodes));
        self.waiting = Some(Box::new(Waiting { stored, record, pauses, next, why, _counted: counted }));
        is_first
    }

    /// Records that the record was written. Returns true if a write had failed before.
    pub(crate) fn forget(&mut self) -> bool {
        self.waiting.take().is_some()
    }

    /// Why the record is not written.
    pub(crate) fn why(&self) -> Option<&str> {
        self.waiting.as_ref().map(|waiting| waiting.why.as_str())
    }
}

/// Merges what both records list as owned; for values, the second one wins.
fn both(one: Option<&Owned>, other: Option<Owned>) -> Option<Owned> {
    let (Some(one), Some(mut other)) = (one, other.clone()) else { return one.cloned().or(other) };
    let add = |into: &mut TextMap, from: &TextMap| {
        let missing: Vec<_> = from.iter().filter(|(key, _)| !into.contains_key(key)).collect();
        into.extend(missing);
    };
    let copies = one.copies.iter().filter(|key| !other.labels.contains_key(key));
    other.copies.extend(copies.cloned().collect::<Vec<_>>());
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
pub(crate) enum Recorded {
    /// It is stored.
    Stored,
    /// It cannot be written; it is remembered, and retried after this time.
    Remembered(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(uid: &str, owned: &[&str]) -> SavedState {
        let labels: TextMap = owned.iter().map(|key| (key, "x")).collect();
        let owned = (!labels.is_empty()).then(|| Owned { labels, ..Owned::default() });
        SavedState { node_name: "n".to_owned(), node_uid: Some(uid.to_owned()), owned, ..SavedState::default() }
    }

    #[test]
    fn a_record_that_cannot_be_written_replaces_the_stored_one_and_is_retried_with_increasing_delays() {
        let (count, now) = (Gauge::default(), Instant::now());
        let mut unrecorded = Unrecorded::new(count.clone());
        let stored = Arc::new(state("u", &[]));
        assert_eq!(unrecorded.in_place_of(&stored), stored);
        assert!(unrecorded.failed(&stored, state("u", &["given"]), "403".to_owned(), now));
        assert_eq!(*unrecorded.in_place_of(&stored), state("u", &["given"]));
        assert!(!unrecorded.failed(&stored, state("u", &["given"]), "403".to_owned(), now));
        assert_eq!(unrecorded.wait(now), Duration::from_secs(4));
        for _ in 0..100 {
            unrecorded.failed(&stored, state("u", &["given"]), "403".to_owned(), now);
        }
        assert_eq!(unrecorded.wait(now), RETRY_MAX);
        assert_eq!(count.get(), 1);
        assert!(unrecorded.forget() && !unrecorded.forget());
        assert_eq!(count.get(), 0);
        unrecorded.failed(&stored, state("u", &["given"]), "403".to_owned(), now);
        drop(unrecorded);
        assert_eq!(count.get(), 0, "with the node");
    }

    #[test]
    fn keys_set_meanwhile_stay_owned_if_another_writer_succeeds() {
        let (mut unrecorded, now) = (Unrecorded::new(Gauge::default()), Instant::now());
        let stored = Arc::new(state("u", &["before"]));
        unrecorded.failed(&stored, state("u", &["before", "given"]), "403".to_owned(), now);
        let newer = Arc::new(SavedState {
            labels: TextMap::from([("persist.demo/x", "y")]),
            ..state("u", &["before", "by-apply"])
        });
        let taken = unrecorded.in_place_of(&newer);
        assert_eq!(taken.labels, newer.labels);
        let owned: Vec<&str> = taken.owned.iter().flat_map(|owned| owned.labels.keys()).collect();
        assert_eq!(owned, ["before", "by-apply", "given"]);
        assert_eq!(unrecorded.in_place_of(&newer), taken, "and stays the same");
    }
}
