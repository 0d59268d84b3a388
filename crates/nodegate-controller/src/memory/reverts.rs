//! Detects keys that others keep reverting. After several reverts nodegate stops repairing the key and reports it.
//!
//! Reverts are counted per key of a node, whoever makes them, because field managers choose their own names.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nodegate_base::text;
use nodegate_policy::Field;

/// This many reverts of one key…
const REVERTS: usize = 5;
/// …within this time end its repair.
const WITHIN: Duration = Duration::from_secs(600);
/// Maximum number of keys of one node that are remembered. Further ones that are reverted are not repaired.
const NODE_MAX: usize = 64;
/// Maximum number of keys of all nodes that are remembered.
const TOTAL_MAX: usize = 32_768;
/// How many of the last writers of a key are named.
const WRITERS_MAX: usize = 3;
/// Maximum length of a writer's name, in characters.
const WRITER_MAX: usize = 64;

/// One key of a node: the field and the key (`key:Effect` for a taint).
pub(crate) type RevertKey = (Field, String);

/// What is remembered about one key.
#[derive(Debug, Default)]
struct RevertCount {
    reverts: VecDeque<Instant>,
    /// The last writers, the latest last, each once.
    writers: Vec<Box<str>>,
    /// The policy that sets the key, once the key is no longer repaired.
    given_up: Option<Box<str>>,
}

impl RevertCount {
    fn is_over(&self, now: Instant) -> bool {
        let last = self.reverts.back();
        self.given_up.is_none() && last.is_none_or(|at| now.saturating_duration_since(*at) > WITHIN)
    }

    fn wrote(&mut self, writer: &str) {
        let mut writer = writer.to_owned();
        text::cut_to_characters(&mut writer, WRITER_MAX);
        self.writers.retain(|known| **known != *writer);
        self.writers.push(writer.into());
        let surplus = self.writers.len().saturating_sub(WRITERS_MAX);
        self.writers.drain(..surplus);
    }

    /// The last writers, quoted and escaped for a terminal.
    fn named(&self) -> String {
        quoted(&self.writers)
    }
}

/// Names of writers, quoted and escaped for a terminal.
pub(crate) fn quoted(writers: &[Box<str>]) -> String {
    writers.iter().map(|writer| format!("{writer:?}")).collect::<Vec<_>>().join(", ")
}

/// A key that is not repaired anymore.
pub(crate) struct GivenUp<'a> {
    pub(crate) key: &'a RevertKey,
    /// The last writers, the latest last.
    pub(crate) writers: &'a [Box<str>],
    /// The policy that sets it.
    pub(crate) policy: &'a str,
}

/// How many keys are counted on all nodes. Each node adds its own, and takes them back with its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct CountedKeys(Arc<AtomicUsize>);

impl CountedKeys {
    /// Whether no further key is counted.
    pub(crate) fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= TOTAL_MAX
    }
}

/// The reverts of one node's keys, and keys that are no longer repaired because of them. Bounded, whatever the node does.
#[derive(Debug)]
pub(crate) struct Reverts {
    counts: BTreeMap<RevertKey, RevertCount>,
    all: CountedKeys,
    /// Whether it was reported that keys are not counted.
    reported_uncounted: bool,
}

impl Reverts {
    /// No reverts. `all`: the keys of all nodes.
    pub(crate) fn new(all: CountedKeys) -> Self {
        Self { counts: BTreeMap::new(), all, reported_uncounted: false }
    }

    /// Whether a key is not repaired: because of its reverts, or because it is `reverted` and the limit of counted
    /// keys is reached.
    pub(crate) fn is_left_alone(&self, revert_key: &RevertKey, reverted: bool) -> bool {
        match self.counts.get(revert_key) {
            Some(count) => count.given_up.is_some(),
            None => reverted && self.is_uncounted(revert_key),
        }
    }

    /// Whether the limit of counted keys is reached for this key.
    pub(crate) fn is_uncounted(&self, revert_key: &RevertKey) -> bool {
        (self.counts.len() >= NODE_MAX || self.all.is_full()) && !self.counts.contains_key(revert_key)
    }

    /// Whether to report now that keys are not counted. True only from time to time.
    pub(crate) fn report_uncounted(&mut self) -> bool {
        !std::mem::replace(&mut self.reported_uncounted, true)
    }

    /// Forgets old reverts if the limit of this node is reached. Call this before checking it.
    pub(crate) fn make_room(&mut self, now: Instant) {
        if self.counts.len() >= NODE_MAX {
            self.forget_old(now);
            self.reported_uncounted &= self.counts.len() >= NODE_MAX;
        }
    }

    /// Forgets old reverts.
    pub(crate) fn forget_old(&mut self, now: Instant) {
        let before = self.counts.len();
        self.counts.retain(|_, count| !count.is_over(now));
        self.all.0.fetch_sub(before - self.counts.len(), Ordering::Relaxed);
    }

    /// Counts one revert. If it ends the repair of the key, returns the last writers.
    pub(crate) fn reverted(
        &mut self,
        revert_key: RevertKey,
        writer: &str,
        policy: &str,
        now: Instant,
    ) -> Option<String> {
        if self.is_uncounted(&revert_key) {
            return None;
        }
        let all = &self.all.0;
        let count = self.counts.entry(revert_key).or_insert_with(|| {
            all.fetch_add(1, Ordering::Relaxed);
            RevertCount::default()
        });
        count.wrote(writer);
        count.reverts.push_back(now);
        while count.reverts.front().is_some_and(|at| now.saturating_duration_since(*at) > WITHIN) {
            count.reverts.pop_front();
        }
        if count.reverts.len() < REVERTS || count.given_up.is_some() {
            return None;
        }
        count.given_up = Some(policy.into());
        Some(count.named())
    }

    /// Every key that is not repaired.
    pub(crate) fn given_up(&self) -> impl Iterator<Item = GivenUp<'_>> {
        self.counts.iter().filter_map(|(key, count)| {
            let policy = count.given_up.as_deref()?;
            Some(GivenUp { key, writers: &count.writers, policy })
        })
    }

    /// Records that the policies have changed: every key is repaired again.
    pub(crate) fn policies_changed(&mut self) {
        *self = Self::new(self.all.clone());
    }
}

impl Drop for Reverts {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.counts.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn label(key: &str) -> RevertKey {
        (Field::Label, key.to_owned())
    }

    fn of_a_node() -> Reverts {
        Reverts::new(CountedKeys::default())
    }

    #[test]
    fn five_reverts_in_ten_minutes_end_the_repair_until_policies_change() {
        let mut reverts = of_a_node();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for turn in 0..4 {
            assert_eq!(reverts.reverted(label("tier"), "a", "p", at(turn)), None);
        }
        assert_eq!(reverts.reverted(label("tier"), "a", "p", at(700)), None, "long after");
        assert!(!reverts.is_left_alone(&label("tier"), true));
        for turn in 0..3 {
            assert_eq!(reverts.reverted(label("tier"), "a", "p", at(701 + turn)), None);
        }
        assert_eq!(reverts.reverted(label("tier"), "a", "p", at(705)).unwrap(), "\"a\"");
        assert!(reverts.is_left_alone(&label("tier"), true));
        assert!(!reverts.is_left_alone(&label("other"), true));
        assert_eq!(reverts.given_up().count(), 1);
        reverts.policies_changed();
        assert!(!reverts.is_left_alone(&label("tier"), true));
        assert_eq!(reverts.all.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn reverts_by_a_writer_that_changes_its_name_are_counted_and_names_are_escaped() {
        let (mut reverts, now) = (of_a_node(), Instant::now());
        let ended: Vec<String> = (0..5)
            .filter_map(|turn| {
                let name = format!("{turn}\u{1b}[2J{}", "x".repeat(500));
                reverts.reverted(label("tier"), &name, "p", now)
            })
            .collect();
        assert_eq!(ended.len(), 1);
        assert!(ended[0].contains("\"4\\u{1b}[2J") && !ended[0].contains("\"1\\u{1b}"), "{}", ended[0]);
        assert!(ended[0].len() < 300 && !ended[0].contains('\u{1b}'), "{}", ended[0]);
    }

    #[test]
    fn reverted_keys_beyond_the_limit_are_not_repaired_and_other_nodes_are_unaffected() {
        let all = CountedKeys::default();
        let (mut reverts, other, start) = (Reverts::new(all.clone()), Reverts::new(all.clone()), Instant::now());
        for key in 0..10_000 {
            reverts.reverted(label(&format!("k{key}")), "a", "p", start);
        }
        assert_eq!((all.0.load(Ordering::Relaxed), reverts.counts.len()), (NODE_MAX, NODE_MAX));
        assert!(reverts.is_left_alone(&label("k9999"), true));
        assert!(!reverts.is_left_alone(&label("k9999"), false), "a key that nobody has reverted is still set");
        assert!(!reverts.is_left_alone(&label("k0"), true), "it is counted");
        assert!(!other.is_left_alone(&label("k9999"), true));
        assert!(reverts.report_uncounted() && !reverts.report_uncounted());
        reverts.make_room(start + WITHIN * 2);
        assert!(!reverts.is_left_alone(&label("k9999"), true), "old reverts are forgotten");
        assert!(reverts.report_uncounted(), "and it is reported again");
        assert_eq!(all.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_keys_of_all_nodes_are_bounded_and_end_with_their_nodes() {
        let (all, start) = (CountedKeys::default(), Instant::now());
        let mut nodes: Vec<Reverts> = (0..TOTAL_MAX + 10).map(|_| Reverts::new(all.clone())).collect();
        for reverts in &mut nodes {
            reverts.reverted(label("tier"), "a", "p", start);
        }
        assert_eq!(all.0.load(Ordering::Relaxed), TOTAL_MAX);
        let mut new = Reverts::new(all.clone());
        assert!(new.is_left_alone(&label("tier"), true));
        nodes.swap_remove(0);
        assert!(!new.is_left_alone(&label("tier"), true));
        new.reverted(label("tier"), "a", "p", start);
        assert!(all.is_full());
        nodes.iter_mut().for_each(|reverts| reverts.forget_old(start + WITHIN * 2));
        assert_eq!(all.0.load(Ordering::Relaxed), new.counts.len());
    }
}
