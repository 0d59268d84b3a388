//! Keys that somebody keeps undoing: after a while nodegate gives in and says so.
//!
//! Reverts are counted per key of a node, whoever makes them: field managers call themselves what they like.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::policy::Field;

/// So many reverts of one key…
const REVERTS: usize = 5;
/// …within this time end its repair.
const WITHIN: Duration = Duration::from_secs(600);
/// Most keys of one node that are remembered. Others that are reverted meanwhile are left alone.
const NODE_MAX: usize = 64;
/// Most keys of all nodes that are remembered.
const TOTAL_MAX: usize = 32_768;
/// So many of the last writers of a key are named.
const WRITERS_MAX: usize = 3;
/// Longest name of a writer, in characters.
const WRITER_MAX: usize = 64;
/// How often all nodes are searched for keys that can be forgotten, at most.
const SWEEP: Duration = Duration::from_secs(30);

/// One key of a node: the part of the node and the key (`key:Effect` for a taint).
pub(super) type Ground = (Field, String);

/// What is remembered of one key.
#[derive(Debug, Default)]
struct Fight {
    reverts: VecDeque<Instant>,
    /// The last writers, the latest last, each once.
    writers: Vec<Box<str>>,
    /// The policy whose key it is, once it is left alone.
    given_up: Option<Box<str>>,
}

impl Fight {
    fn is_over(&self, now: Instant) -> bool {
        let last = self.reverts.back();
        self.given_up.is_none() && last.is_none_or(|at| now.saturating_duration_since(*at) > WITHIN)
    }

    fn wrote(&mut self, writer: &str) {
        let writer: String = writer.chars().take(WRITER_MAX).collect();
        self.writers.retain(|known| **known != *writer);
        self.writers.push(writer.into());
        let surplus = self.writers.len().saturating_sub(WRITERS_MAX);
        self.writers.drain(..surplus);
    }

    /// The last writers, quoted, with what a terminal would act on escaped.
    fn named(&self) -> String {
        self.writers.iter().map(|writer| format!("{writer:?}")).collect::<Vec<_>>().join(", ")
    }
}

/// Reverts that were seen, and keys that are left alone because of them. Bounded, whatever nodes do.
#[derive(Debug, Default)]
pub(super) struct Fights {
    /// By the node's uid.
    nodes: HashMap<String, HashMap<Ground, Fight>>,
    total: usize,
    swept: Option<Instant>,
    /// Nodes of which it was told that keys are not counted.
    told: HashSet<String>,
}

impl Fights {
    /// Whether a key is left alone: it was given up, or it is `reverted` and there is no room to count it.
    pub(super) fn is_left_alone(&self, uid: &str, ground: &Ground, reverted: bool) -> bool {
        match self.nodes.get(uid).and_then(|fights| fights.get(ground)) {
            Some(fight) => fight.given_up.is_some(),
            None => reverted && self.is_uncounted(uid, ground),
        }
    }

    /// Whether there is no room to count reverts of this key.
    pub(super) fn is_uncounted(&self, uid: &str, ground: &Ground) -> bool {
        let fights = self.nodes.get(uid);
        let known = fights.is_some_and(|fights| fights.contains_key(ground));
        !known && self.is_full(fights.map_or(0, HashMap::len))
    }

    /// Whether it is to be told now that keys of this node are not counted: once in a while.
    pub(super) fn tell_uncounted(&mut self, uid: &str) -> bool {
        self.told.insert(uid.to_owned())
    }

    fn is_full(&self, of_node: usize) -> bool {
        of_node >= NODE_MAX || self.total >= TOTAL_MAX
    }

    /// Forgets what is long over, where room is short. To be called before a node is asked for.
    pub(super) fn make_room(&mut self, uid: &str, now: Instant) {
        if let Some(fights) = self.nodes.get_mut(uid).filter(|fights| fights.len() >= NODE_MAX) {
            let before = fights.len();
            fights.retain(|_, fight| !fight.is_over(now));
            self.total -= before - fights.len();
            if fights.len() < NODE_MAX {
                self.told.remove(uid);
            }
        }
        let swept = self.swept.is_some_and(|swept| now.saturating_duration_since(swept) < SWEEP);
        if self.total >= TOTAL_MAX && !swept {
            self.swept = Some(now);
            self.nodes.retain(|_, fights| {
                fights.retain(|_, fight| !fight.is_over(now));
                !fights.is_empty()
            });
            self.total = self.nodes.values().map(HashMap::len).sum();
        }
    }

    /// Counts one revert. When it is the one that ends the repair, answers who the last writers were.
    pub(super) fn reverted(
        &mut self,
        uid: &str,
        ground: Ground,
        writer: &str,
        policy: &str,
        now: Instant,
    ) -> Option<String> {
        if self.is_uncounted(uid, &ground) {
            return None;
        }
        let known = self.nodes.get(uid).is_some_and(|fights| fights.contains_key(&ground));
        self.total += usize::from(!known);
        let fight = self.nodes.entry(uid.to_owned()).or_default().entry(ground).or_default();
        fight.wrote(writer);
        fight.reverts.push_back(now);
        while fight.reverts.front().is_some_and(|at| now.saturating_duration_since(*at) > WITHIN) {
            fight.reverts.pop_front();
        }
        if fight.reverts.len() < REVERTS || fight.given_up.is_some() {
            return None;
        }
        fight.given_up = Some(policy.into());
        Some(fight.named())
    }

    /// Every key that is left alone, with its last writers and the policy whose it is.
    pub(super) fn given_up(&self) -> impl Iterator<Item = (&Ground, String, &str)> {
        let fights = self.nodes.values().flatten();
        fights.filter_map(|(ground, fight)| Some((ground, fight.named(), fight.given_up.as_deref()?)))
    }

    /// The policies have changed: everything is repaired again.
    pub(super) fn policies_changed(&mut self) {
        *self = Self::default();
    }

    /// A node is gone.
    pub(super) fn forget(&mut self, uid: &str) {
        self.total -= self.nodes.remove(uid).map_or(0, |fights| fights.len());
        self.told.remove(uid);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn label(key: &str) -> Ground {
        (Field::Label, key.to_owned())
    }

    #[test]
    fn five_reverts_in_ten_minutes_end_the_repair_until_policies_change() {
        let mut fights = Fights::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for turn in 0..4 {
            assert_eq!(fights.reverted("u", label("tier"), "a", "p", at(turn)), None);
        }
        assert_eq!(fights.reverted("u", label("tier"), "a", "p", at(700)), None, "long after");
        assert!(!fights.is_left_alone("u", &label("tier"), true));
        for turn in 0..3 {
            assert_eq!(fights.reverted("u", label("tier"), "a", "p", at(701 + turn)), None);
        }
        assert_eq!(fights.reverted("u", label("tier"), "a", "p", at(705)).unwrap(), "\"a\"");
        assert!(fights.is_left_alone("u", &label("tier"), true));
        assert!(!fights.is_left_alone("u", &label("other"), true));
        assert!(!fights.is_left_alone("v", &label("tier"), true));
        assert_eq!(fights.given_up().count(), 1);
        fights.policies_changed();
        assert!(!fights.is_left_alone("u", &label("tier"), true));
    }

    #[test]
    fn a_writer_that_changes_its_name_is_counted_all_the_same_and_named_without_control_characters() {
        let mut fights = Fights::default();
        let now = Instant::now();
        let ended: Vec<String> = (0..5)
            .filter_map(|turn| {
                let name = format!("{turn}\u{1b}[2J{}", "x".repeat(500));
                fights.reverted("u", label("tier"), &name, "p", now)
            })
            .collect();
        assert_eq!(ended.len(), 1);
        assert!(ended[0].contains("\"4\\u{1b}[2J") && !ended[0].contains("\"1\\u{1b}"), "{}", ended[0]);
        assert!(ended[0].len() < 300 && !ended[0].contains('\u{1b}'), "{}", ended[0]);
    }

    #[test]
    fn more_keys_than_can_be_counted_are_left_alone_and_the_rest_of_the_fleet_is_not() {
        let mut fights = Fights::default();
        let start = Instant::now();
        for key in 0..10_000 {
            fights.reverted("u", label(&format!("k{key}")), "a", "p", start);
        }
        assert_eq!((fights.total, fights.nodes["u"].len()), (NODE_MAX, NODE_MAX));
        assert!(fights.is_left_alone("u", &label("k9999"), true));
        assert!(!fights.is_left_alone("u", &label("k9999"), false), "a key that nobody has touched is still given");
        assert!(!fights.is_left_alone("u", &label("k0"), true), "it is counted");
        assert!(!fights.is_left_alone("v", &label("k9999"), true));
        fights.make_room("u", start + WITHIN * 2);
        assert!(!fights.is_left_alone("u", &label("k9999"), true), "what is long over makes room");
        assert_eq!(fights.total, 0);
    }

    #[test]
    fn memory_is_bounded_over_all_nodes_and_freed_with_them() {
        let mut fights = Fights::default();
        let start = Instant::now();
        for at in 0..TOTAL_MAX + 10 {
            fights.reverted(&format!("u{at}"), label("tier"), "a", "p", start);
        }
        assert_eq!(fights.total, TOTAL_MAX);
        assert!(fights.is_left_alone("new", &label("tier"), true));
        fights.forget("u0");
        assert!(!fights.is_left_alone("new", &label("tier"), true));
        fights.reverted("new", label("tier"), "a", "p", start);
        fights.make_room("new", start + WITHIN * 2);
        assert_eq!((fights.total, fights.nodes.len()), (0, 0));
    }
}
