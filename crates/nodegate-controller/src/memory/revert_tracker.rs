//! Detects keys that others keep reverting. After several reverts nodegate stops repairing the key and reports it.
//!
//! Reverts are counted per key of a node, whoever makes them, because field managers choose their own names.

use std::collections::{HashMap, HashSet, VecDeque};
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
/// Minimum time between two searches of all nodes for keys that can be forgotten.
const SWEEP: Duration = Duration::from_secs(30);

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
    /// The uid of its node.
    pub(crate) uid: &'a str,
    pub(crate) key: &'a RevertKey,
    /// The last writers, the latest last.
    pub(crate) writers: &'a [Box<str>],
    /// The policy that sets it.
    pub(crate) policy: &'a str,
}

/// Observed reverts, and keys that are no longer repaired because of them. Bounded, whatever nodes do.
#[derive(Debug, Default)]
pub(crate) struct RevertTracker {
    /// By the node's uid.
    nodes: HashMap<String, HashMap<RevertKey, RevertCount>>,
    total: usize,
    swept: Option<Instant>,
    /// Nodes for which it was reported that keys are not counted.
    reported_uncounted: HashSet<String>,
}

impl RevertTracker {
    /// Whether a key is not repaired: because of its reverts, or because it is `reverted` and the limit of counted
    /// keys is reached.
    pub(crate) fn is_left_alone(&self, uid: &str, revert_key: &RevertKey, reverted: bool) -> bool {
        match self.nodes.get(uid).and_then(|counts| counts.get(revert_key)) {
            Some(count) => count.given_up.is_some(),
            None => reverted && self.is_uncounted(uid, revert_key),
        }
    }

    /// Whether the limit of counted keys is reached for this key.
    pub(crate) fn is_uncounted(&self, uid: &str, revert_key: &RevertKey) -> bool {
        let counts = self.nodes.get(uid);
        let known = counts.is_some_and(|counts| counts.contains_key(revert_key));
        !known && self.is_full(counts.map_or(0, HashMap::len))
    }

    /// Whether to report now that keys of this node are not counted. True only from time to time.
    pub(crate) fn report_uncounted(&mut self, uid: &str) -> bool {
        self.reported_uncounted.insert(uid.to_owned())
    }

    fn is_full(&self, of_node: usize) -> bool {
        of_node >= NODE_MAX || self.total >= TOTAL_MAX
    }

    /// Forgets old reverts if the limit is reached. Call this before checking a node.
    pub(crate) fn make_room(&mut self, uid: &str, now: Instant) {
        if let Some(counts) = self.nodes.get_mut(uid).filter(|counts| counts.len() >= NODE_MAX) {
            let before = counts.len();
            counts.retain(|_, count| !count.is_over(now));
            self.total -= before - counts.len();
            if counts.len() < NODE_MAX {
                self.reported_uncounted.remove(uid);
            }
        }
        let swept = self.swept.is_some_and(|swept| now.saturating_duration_since(swept) < SWEEP);
        if self.total >= TOTAL_MAX && !swept {
            self.swept = Some(now);
            self.nodes.retain(|_, counts| {
                counts.retain(|_, count| !count.is_over(now));
                !counts.is_empty()
            });
            self.total = self.nodes.values().map(HashMap::len).sum();
        }
    }

    /// Counts one revert. If it ends the repair of the key, returns the last writers.
    pub(crate) fn reverted(
        &mut self,
        uid: &str,
        revert_key: RevertKey,
        writer: &str,
        policy: &str,
        now: Instant,
    ) -> Option<String> {
        if self.is_uncounted(uid, &revert_key) {
            return None;
        }
        let known = self.nodes.get(uid).is_some_and(|counts| counts.contains_key(&revert_key));
        self.total += usize::from(!known);
        let count = self.nodes.entry(uid.to_owned()).or_default().entry(revert_key).or_default();
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
        let counts = self.nodes.iter().flat_map(|(uid, counts)| counts.iter().map(move |count| (uid, count)));
        counts.filter_map(|(uid, (key, count))| {
            let policy = count.given_up.as_deref()?;
            Some(GivenUp { uid, key, writers: &count.writers, policy })
        })
    }

    /// Records that the policies have changed: every key is repaired again.
    pub(crate) fn policies_changed(&mut self) {
        *self = Self::default();
    }

    /// Forgets a node that was deleted.
    pub(crate) fn forget(&mut self, uid: &str) {
        let Self { nodes, total, swept: _, reported_uncounted } = self;
        *total -= nodes.remove(uid).map_or(0, |counts| counts.len());
        reported_uncounted.remove(uid);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn label(key: &str) -> RevertKey {
        (Field::Label, key.to_owned())
    }

    #[test]
    fn five_reverts_in_ten_minutes_end_the_repair_until_policies_change() {
        let mut tracker = RevertTracker::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for turn in 0..4 {
            assert_eq!(tracker.reverted("u", label("tier"), "a", "p", at(turn)), None);
        }
        assert_eq!(tracker.reverted("u", label("tier"), "a", "p", at(700)), None, "long after");
        assert!(!tracker.is_left_alone("u", &label("tier"), true));
        for turn in 0..3 {
            assert_eq!(tracker.reverted("u", label("tier"), "a", "p", at(701 + turn)), None);
        }
        assert_eq!(tracker.reverted("u", label("tier"), "a", "p", at(705)).unwrap(), "\"a\"");
        assert!(tracker.is_left_alone("u", &label("tier"), true));
        assert!(!tracker.is_left_alone("u", &label("other"), true));
        assert!(!tracker.is_left_alone("v", &label("tier"), true));
        assert_eq!(tracker.given_up().count(), 1);
        tracker.policies_changed();
        assert!(!tracker.is_left_alone("u", &label("tier"), true));
    }

    #[test]
    fn reverts_by_a_writer_that_changes_its_name_are_counted_and_names_are_escaped() {
        let mut tracker = RevertTracker::default();
        let now = Instant::now();
        let ended: Vec<String> = (0..5)
            .filter_map(|turn| {
                let name = format!("{turn}\u{1b}[2J{}", "x".repeat(500));
                tracker.reverted("u", label("tier"), &name, "p", now)
            })
            .collect();
        assert_eq!(ended.len(), 1);
        assert!(ended[0].contains("\"4\\u{1b}[2J") && !ended[0].contains("\"1\\u{1b}"), "{}", ended[0]);
        assert!(ended[0].len() < 300 && !ended[0].contains('\u{1b}'), "{}", ended[0]);
    }

    #[test]
    fn reverted_keys_beyond_the_limit_are_not_repaired_and_other_nodes_are_unaffected() {
        let mut tracker = RevertTracker::default();
        let start = Instant::now();
        for key in 0..10_000 {
            tracker.reverted("u", label(&format!("k{key}")), "a", "p", start);
        }
        assert_eq!((tracker.total, tracker.nodes["u"].len()), (NODE_MAX, NODE_MAX));
        assert!(tracker.is_left_alone("u", &label("k9999"), true));
        assert!(!tracker.is_left_alone("u", &label("k9999"), false), "a key that nobody has reverted is still set");
        assert!(!tracker.is_left_alone("u", &label("k0"), true), "it is counted");
        assert!(!tracker.is_left_alone("v", &label("k9999"), true));
        tracker.make_room("u", start + WITHIN * 2);
        assert!(!tracker.is_left_alone("u", &label("k9999"), true), "old reverts are forgotten");
        assert_eq!(tracker.total, 0);
    }

    #[test]
    fn memory_is_bounded_over_all_nodes_and_freed_with_the_nodes() {
        let mut tracker = RevertTracker::default();
        let start = Instant::now();
        for at in 0..TOTAL_MAX + 10 {
            tracker.reverted(&format!("u{at}"), label("tier"), "a", "p", start);
        }
        assert_eq!(tracker.total, TOTAL_MAX);
        assert!(tracker.is_left_alone("new", &label("tier"), true));
        tracker.forget("u0");
        assert!(!tracker.is_left_alone("new", &label("tier"), true));
        tracker.reverted("new", label("tier"), "a", "p", start);
        tracker.make_room("new", start + WITHIN * 2);
        assert_eq!((tracker.total, tracker.nodes.len()), (0, 0));
    }
}
