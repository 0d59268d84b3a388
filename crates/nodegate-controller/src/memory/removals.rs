//! Decides when an owned key may be removed: after its rule's grace period, and only if one change does not remove
//! keys from too many nodes.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use nodegate_base::text::counted;

use nodegate_policy::Removal;

/// Removals within this time count as one change. After an answer of an inventory they do so for as long as its refresh takes,
/// because an inventory that loses its data answers about one node after the other.
const WINDOW: Duration = Duration::from_secs(600);

/// How many nodes may lose owned keys by one change (`--max-removals`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxRemovals {
    /// The larger of ten and a tenth of all nodes.
    Tenth,
    /// This many nodes.
    Nodes(usize),
    /// No limit and no grace period, because a user has confirmed the removal.
    Confirmed,
}

impl MaxRemovals {
    /// The limit for a number of nodes.
    pub fn of(self, nodes: usize) -> usize {
        match self {
            Self::Tenth => (nodes / 10).max(10),
            Self::Nodes(limit) => limit,
            Self::Confirmed => usize::MAX,
        }
    }
}

/// Why removals are held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Brake {
    /// The nodes have not been checked against the policies in force.
    NotSurveyed,
    /// Too many nodes would lose owned keys.
    TooMany {
        /// This many nodes.
        nodes: usize,
        /// The limit.
        limit: usize,
    },
    /// No policy has a rule.
    NoRule,
}

impl std::fmt::Display for Brake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotSurveyed => f.write_str("the nodes have not been checked against the policies in force yet"),
            Self::TooMany { nodes, limit } => write!(
                f,
                "{} would lose labels or taints that nodegate owns; one change may affect at most {} (--max-removals). Nothing \
                 is removed until you run `nodegate apply --confirm`",
                counted(*nodes, "node", "nodes"),
                counted(*limit, "node", "nodes"),
            ),
            Self::NoRule => f.write_str(
                "no rule of a policy is left, so every owned label and taint would be removed. Nothing is removed until you run \
                 `nodegate apply --confirm`",
            ),
        }
    }
}

/// The grace periods of one node; they start again with a new leader.
#[derive(Debug, Default)]
pub(crate) struct GracePeriods {
    /// Since when a key has been undesired.
    since: BTreeMap<Removal, Instant>,
    /// When an inventory last changed its answer about the node.
    answered: Option<Instant>,
}

impl GracePeriods {
    /// Records that an inventory changed its answer.
    pub(crate) fn answered(&mut self, now: Instant) {
        self.answered = Some(now);
    }
}

/// The removal limit of one term; it starts again with a new leader.
#[derive(Debug)]
pub(crate) struct Removals {
    maximum: MaxRemovals,
    fleet: usize,
    /// Until when each node that lost keys counts, by uid. It counts on when it is gone.
    done: Vec<(Instant, String)>,
    /// The longest refresh of an inventory.
    refresh: Duration,
    brake: Option<Brake>,
}

impl Removals {
    /// Nothing may be removed before the first survey.
    pub(crate) fn new(maximum: MaxRemovals) -> Self {
        Self {
            maximum,
            fleet: 0,
            done: Vec::new(),
            refresh: Duration::ZERO,
            brake: (maximum != MaxRemovals::Confirmed).then_some(Brake::NotSurveyed),
        }
    }

    /// Records the result of a survey of all nodes: how many nodes exist, how many of them would lose keys, and
    /// whether any policy in force has a rule. Returns what holds removals back.
    pub(crate) fn surveyed(&mut self, fleet: usize, losing: usize, has_rules: bool, now: Instant) -> Option<&Brake> {
        self.fleet = fleet;
        let (limit, lost) = (self.maximum.of(fleet), self.lost(now));
        self.brake = if self.maximum == MaxRemovals::Confirmed {
            None
        } else if !has_rules && losing > 0 {
            Some(Brake::NoRule)
        } else if losing > limit {
            Some(Brake::TooMany { nodes: losing, limit })
        } else if losing > 0 && lost >= limit {
            Some(Brake::TooMany { nodes: lost + losing, limit })
        } else {
            None
        };
        self.brake.as_ref()
    }

    /// Records that the policies have changed: nothing is removed before the next survey. `refresh`: the longest one of their
    /// inventories.
    pub(crate) fn policies_changed(&mut self, refresh: Option<Duration>) {
        self.refresh = refresh.unwrap_or_default();
        if self.maximum != MaxRemovals::Confirmed {
            self.brake = Some(Brake::NotSurveyed);
        }
    }

    /// What holds removals back.
    pub(crate) fn brake(&self) -> Option<&Brake> {
        self.brake.as_ref()
    }

    /// Which of a node's `wanted` removals are due now, and how long until the next one is.
    pub(crate) fn due(
        &mut self,
        uid: &str,
        periods: &mut GracePeriods,
        wanted: &[Removal],
        now: Instant,
    ) -> (HashSet<Removal>, Option<Duration>) {
        let GracePeriods { since, answered } = periods;
        since.retain(|removal, _| wanted.contains(removal));
        let mut due = HashSet::new();
        let mut next: Option<Duration> = None;
        for removal in wanted {
            let began = *since.entry(removal.clone()).or_insert(now);
            let left = removal.after.saturating_sub(now.saturating_duration_since(began));
            if left.is_zero() || self.maximum == MaxRemovals::Confirmed {
                due.insert(removal.clone());
            } else {
                next = Some(next.map_or(left, |next| next.min(left)));
            }
        }
        let Some(grace) = due.iter().map(|removal| removal.after).max() else { return (due, next) };
        let follows_answer =
            answered.is_some_and(|at| now.saturating_duration_since(at) <= self.refresh + grace + WINDOW);
        if self.brake.is_some() || !self.may_lose(uid, follows_answer, now) {
            return (HashSet::new(), next);
        }
        (due, next)
    }

    /// Whether this node may lose keys within the window. `follows_answer`: an inventory has changed its answer before.
    fn may_lose(&mut self, uid: &str, follows_answer: bool, now: Instant) -> bool {
        let lost = self.lost(now);
        if self.maximum == MaxRemovals::Confirmed || self.done.iter().any(|(_, node)| node == uid) {
            return true;
        }
        let (nodes, limit) = (lost + 1, self.maximum.of(self.fleet));
        if nodes > limit {
            self.brake = Some(Brake::TooMany { nodes, limit });
            return false;
        }
        let window = if follows_answer { WINDOW.max(self.refresh) } else { WINDOW };
        self.done.push((now + window, uid.to_owned()));
        true
    }

    /// The number of nodes that lost keys and still count.
    fn lost(&mut self, now: Instant) -> usize {
        self.done.retain(|(until, _)| now <= *until);
        self.done.len()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nodegate_policy::Field;

    fn removal(after: u64) -> Removal {
        Removal { field: Field::Label, key: "tier".to_owned(), after: Duration::from_secs(after) }
    }

    /// Whether a node may lose a key without a grace period.
    fn loses(removals: &mut Removals, uid: &str, now: Instant) -> bool {
        !removals.due(uid, &mut GracePeriods::default(), &[removal(0)], now).0.is_empty()
    }

    #[test]
    fn a_key_is_removed_after_its_grace_period_unless_it_is_wanted_again_before() {
        let mut removals = Removals::new(MaxRemovals::Tenth);
        removals.surveyed(3, 1, true, Instant::now());
        let start = Instant::now();
        let mut periods = GracePeriods::default();
        let mut due =
            |wanted: &[Removal], seconds| removals.due("u", &mut periods, wanted, start + Duration::from_secs(seconds));
        assert_eq!(due(&[removal(60)], 0), (HashSet::new(), Some(Duration::from_secs(60))));
        assert_eq!(due(&[], 30), (HashSet::new(), None));
        assert_eq!(due(&[removal(60)], 40).1, Some(Duration::from_secs(60)));
        assert_eq!(due(&[removal(60)], 100).0.len(), 1);
    }

    #[test]
    fn nothing_is_removed_before_a_survey_or_if_too_many_nodes_would_lose_keys() {
        let mut removals = Removals::new(MaxRemovals::Nodes(2));
        let now = Instant::now();
        assert!(!loses(&mut removals, "u", now));
        assert_eq!(removals.surveyed(100, 3, true, Instant::now()), Some(&Brake::TooMany { nodes: 3, limit: 2 }));
        assert!(!loses(&mut removals, "u", now));
        assert_eq!(removals.surveyed(100, 1, false, Instant::now()), Some(&Brake::NoRule));
        assert_eq!(removals.surveyed(100, 0, false, Instant::now()), None);
    }

    #[test]
    fn the_limit_also_applies_to_nodes_that_lose_keys_one_after_the_other() {
        let mut removals = Removals::new(MaxRemovals::Nodes(2));
        removals.surveyed(100, 1, true, Instant::now());
        let now = Instant::now();
        let gone: Vec<bool> = ["a", "b", "c"].iter().map(|uid| loses(&mut removals, uid, now)).collect();
        assert_eq!(gone, [true, true, false]);
        assert!(matches!(removals.brake(), Some(Brake::TooMany { nodes: 3, limit: 2 })));
    }

    #[test]
    fn nodes_that_lost_keys_count_for_ten_minutes() {
        let start = Instant::now();
        let later = |seconds| {
            let mut removals = Removals::new(MaxRemovals::Nodes(1));
            removals.surveyed(100, 1, true, Instant::now());
            assert!(loses(&mut removals, "a", start));
            assert!(loses(&mut removals, "a", start), "a node counts once");
            loses(&mut removals, "b", start + Duration::from_secs(seconds))
        };
        assert_eq!((later(0), later(600), later(601)), (false, false, true));
    }

    #[test]
    fn nodes_that_lose_keys_after_an_answer_count_for_the_whole_refresh() {
        let start = Instant::now();
        let hour = Duration::from_secs(3600);
        let second_loses = |answered: bool, later: Duration| {
            let mut removals = Removals::new(MaxRemovals::Nodes(1));
            removals.policies_changed(Some(hour));
            removals.surveyed(100, 1, true, start);
            let mut periods = GracePeriods { answered: answered.then_some(start), ..GracePeriods::default() };
            assert_eq!(removals.due("a", &mut periods, &[removal(0)], start).0.len(), 1);
            // A survey in between does not forget it.
            let brake = removals.surveyed(100, 1, true, start + later).cloned();
            let gone = loses(&mut removals, "b", start + later);
            assert_eq!(brake, (!gone).then_some(Brake::TooMany { nodes: 2, limit: 1 }));
            gone
        };
        let minute = Duration::from_secs(60);
        assert!(!second_loses(true, 30 * minute) && !second_loses(true, hour));
        assert!(second_loses(true, hour + minute) && second_loses(false, 30 * minute));
    }

    #[test]
    fn the_limit_grows_with_the_number_of_nodes() {
        assert_eq!((MaxRemovals::Tenth.of(7), MaxRemovals::Tenth.of(5000)), (10, 500));
    }
}
