//! What the leader counts about all nodes, from the watch: how many there are, which wait, and the values of some labels.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use nodegate_base::metrics::Count;
use nodegate_policy::api::names::LabelKey;

/// How often the metrics are set.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

/// A node as it is counted.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) created: Option<i64>,
    /// Whether it has the pending taint.
    pub(crate) pending: bool,
    /// Whether it has been without the pending taint before; what waits later does not wait to join.
    pub(crate) completed: bool,
    /// Its values of the labels that are counted, in their order; empty without the label.
    pub(crate) values: Vec<String>,
}

impl Member {
    /// Whether it is pending longer than this.
    pub(crate) fn is_overdue(&self, now: Timestamp, timeout: Duration) -> bool {
        self.pending && self.created.is_some_and(|created| patience(created, now, timeout).is_zero())
    }

    /// Takes up a version of a node. If nothing of it is deferred any more since this version, returns for how many seconds it
    /// waited.
    pub(crate) fn follow(known: &mut Option<Self>, mut member: Self, now: Timestamp) -> Option<f64> {
        member.completed = !member.pending || known.as_ref().is_some_and(|before| before.completed);
        let completes = known.as_ref().is_some_and(|before| !before.completed) && member.completed;
        let waited = member.created.filter(|_| completes).map(|created| (now.as_second() - created).max(0) as f64);
        *known = Some(member);
        waited
    }
}

/// Counts these nodes, but not those that are pending for too long. `labels` are those whose values they have.
pub(crate) fn count<'a>(members: impl Iterator<Item = &'a Member>, labels: &[LabelKey]) -> Count {
    let mut by_label = vec![BTreeMap::<&str, i64>::new(); labels.len()];
    let mut count = Count::default();
    for Member { created, pending, values, completed: _ } in members {
        count.nodes += 1;
        for (by_value, value) in by_label.iter_mut().zip(values) {
            *by_value.entry(value).or_default() += 1;
        }
        if *pending {
            count.pending += 1;
            count.oldest_pending = count.oldest_pending.into_iter().chain(*created).min();
        }
    }
    for (key, values) in labels.iter().zip(by_label) {
        let values = values.into_iter().map(|(value, nodes)| (value.to_owned(), nodes)).collect();
        count.by_label.insert(key.to_string(), values);
    }
    count
}

/// How long a node that was created in the second `created` may still wait at `now`, if it may wait for `timeout`. A creation
/// time has whole seconds, so it is the end of its second that counts.
pub(crate) fn patience(created: i64, now: Timestamp, timeout: Duration) -> Duration {
    let end = i128::from(created) + 1 + i128::from(timeout.as_secs());
    let rest = end * 1000 - i128::from(now.as_millisecond());
    Duration::from_millis(u64::try_from(rest.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn member(created: i64, pending: bool, value: &str) -> Member {
        Member { created: Some(created), pending, completed: false, values: vec![value.to_owned()] }
    }

    #[test]
    fn a_node_waits_from_its_creation_until_it_is_first_seen_without_the_taint() {
        let mut known = None;
        let mut follow = |pending, second| Member::follow(&mut known, member(100, pending, ""), at(second));
        assert_eq!((follow(true, 101), follow(true, 102), follow(false, 103)), (None, None, Some(3.0)));
        assert_eq!((follow(true, 200), follow(false, 300)), (None, None), "it joined long ago");
        assert_eq!(Member::follow(&mut None, member(400, false, ""), at(401)), None, "it never waited");
        let mut known = Some(member(500, true, ""));
        assert_eq!(Member::follow(&mut known, member(500, false, ""), at(499)), Some(0.0), "a clock that is behind");
    }

    #[test]
    fn nodes_are_counted_by_value_and_those_that_wait_by_their_age() {
        let tier: LabelKey = "hardware.tier".parse().unwrap();
        let nodes = [(10, true, "gold"), (5, true, ""), (1, false, "gold"), (99, true, "iron")];
        let nodes = nodes.map(|(created, pending, value)| member(created, pending, value));
        let overdue = nodes.iter().filter(|node| node.is_overdue(at(100), Duration::from_secs(90))).count();
        let count = count(nodes.iter(), std::slice::from_ref(&tier));
        assert_eq!((count.nodes, count.pending, overdue, count.oldest_pending), (4, 3, 1, Some(5)));
        let values = [("", 1), ("gold", 2), ("iron", 1)].map(|(value, nodes)| (value.to_owned(), nodes));
        assert_eq!(count.by_label, BTreeMap::from([("hardware.tier".to_owned(), BTreeMap::from(values))]));
    }

    #[test]
    fn the_time_of_a_node_is_due_at_the_end_of_a_second() {
        let rest = |created, timeout| patience(created, at(100), timeout);
        assert_eq!(rest(10, Duration::from_secs(90)), Duration::from_secs(1), "it may be up to a second younger");
        assert_eq!(rest(9, Duration::from_secs(90)), Duration::ZERO);
        assert_eq!(rest(200, Duration::ZERO), Duration::from_secs(101), "a clock that is behind");
        assert!(rest(0, Duration::MAX) > Duration::from_secs(1 << 40), "never");
    }
}
