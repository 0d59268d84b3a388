//! Who keeps undoing what nodegate repairs: after a while nodegate gives in and says so.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::policy::Field;

/// So many reverts of one key by one writer…
const REVERTS: usize = 5;
/// …within this time end its repair.
const WITHIN: Duration = Duration::from_secs(600);

/// One key of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ground {
    /// The node's uid.
    pub(super) uid: String,
    /// Which part of the node.
    pub(super) field: Field,
    /// The key; for a taint `key:Effect`.
    pub(super) key: String,
}

/// Reverts that were seen, and keys that are left alone because of them.
#[derive(Debug, Default)]
pub(super) struct Fights {
    reverts: HashMap<(Ground, String), VecDeque<Instant>>,
    /// To whom a key was left, and whose rule gave it.
    given_up: HashMap<Ground, (String, String)>,
}

impl Fights {
    /// Whether this key is left alone.
    pub(super) fn is_left_alone(&self, ground: &Ground) -> bool {
        self.given_up.contains_key(ground)
    }

    /// Counts one revert by `writer`; true when it is the one that ends the repair.
    pub(super) fn reverted(&mut self, ground: Ground, writer: &str, policy: &str, now: Instant) -> bool {
        let times = self.reverts.entry((ground.clone(), writer.to_owned())).or_default();
        times.push_back(now);
        while times.front().is_some_and(|at| now.saturating_duration_since(*at) > WITHIN) {
            times.pop_front();
        }
        times.len() >= REVERTS && self.given_up.insert(ground, (writer.to_owned(), policy.to_owned())).is_none()
    }

    /// Every key that is left alone: to whom, and the policy whose it is.
    pub(super) fn given_up(&self) -> impl Iterator<Item = (&Ground, (&str, &str))> {
        self.given_up.iter().map(|(ground, (writer, policy))| (ground, (writer.as_str(), policy.as_str())))
    }

    /// The policies have changed: everything is repaired again.
    pub(super) fn policies_changed(&mut self) {
        self.reverts.clear();
        self.given_up.clear();
    }

    /// A node is gone.
    pub(super) fn forget(&mut self, uid: &str) {
        self.reverts.retain(|(ground, _), _| ground.uid != uid);
        self.given_up.retain(|ground, _| ground.uid != uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_reverts_by_one_writer_in_ten_minutes_end_the_repair_until_policies_change() {
        let mut fights = Fights::default();
        let ground = Ground { uid: "u".to_owned(), field: Field::Label, key: "tier".to_owned() };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let ended: Vec<bool> = (0..4).map(|turn| fights.reverted(ground.clone(), "a", "p", at(turn))).collect();
        assert_eq!(ended, [false; 4]);
        assert!(!fights.reverted(ground.clone(), "b", "p", at(5)), "another writer");
        assert!(!fights.reverted(ground.clone(), "a", "p", at(700)), "long after");
        for turn in 0..3 {
            assert!(!fights.reverted(ground.clone(), "a", "p", at(701 + turn)));
        }
        assert!(fights.reverted(ground.clone(), "a", "p", at(705)));
        assert!(fights.is_left_alone(&ground));
        fights.policies_changed();
        assert!(!fights.is_left_alone(&ground));
    }
}
