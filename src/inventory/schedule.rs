//! When an inventory is asked about which node: at once about a node that joins, then once in each interval, and more and
//! more rarely while it fails. Pure: the clock and randomness are arguments.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderValue;
use tokio::time::Instant;

/// How long an answer about a deleted node is kept: a node that is created again gets its labels at admission.
const KEPT: Duration = Duration::from_secs(3600);
/// Number of failures in a row after which the whole inventory is left alone for a while.
const TOLERATED: u32 = 3;
/// The longest delay after a failure.
const DELAY_MAX: Duration = Duration::from_secs(300);

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It answered, possibly that it does not know the node.
    Answered,
    /// It did not, or not with labels.
    Failed,
}

struct Entry {
    due: Instant,
    /// Whether a request is under way. Then it is not in the order: a late answer must not replace a newer one.
    asked: bool,
    etag: Option<HeaderValue>,
    failures: u32,
    gone_since: Option<Instant>,
}

/// The schedule of one inventory.
pub(super) struct Schedule {
    interval: Duration,
    nodes: HashMap<Arc<str>, Entry>,
    order: BTreeSet<(Instant, Arc<str>)>,
    /// Failures since the last answer.
    failures: u32,
    paused_until: Instant,
}

impl Schedule {
    /// An empty schedule.
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, nodes: HashMap::new(), order: BTreeSet::new(), failures: 0, paused_until: now }
    }

    /// Adds nodes that joined, and returns those that were deleted too long ago. A node with a known answer is asked about
    /// at its own time in the interval, all others at once.
    pub(super) fn follow(
        &mut self,
        living: &[Arc<str>],
        is_known: impl Fn(&str) -> bool,
        now: Instant,
    ) -> Vec<Arc<str>> {
        let mut gone: std::collections::HashSet<Arc<str>> = self.nodes.keys().cloned().collect();
        for node in living {
            gone.remove(node);
            match self.nodes.get_mut(node) {
                Some(entry) => {
                    if entry.gone_since.take().is_some() {
                        self.set_due(node, now);
                    }
                }
                None => {
                    // A node that joins is due before all that wait for their next turn.
                    let first = now.checked_sub(self.interval).unwrap_or(now);
                    let due = if is_known(node) { now + self.phase(node) } else { first };
                    self.nodes
                        .insert(node.clone(), Entry { due, asked: false, etag: None, failures: 0, gone_since: None });
                    self.order.insert((due, node.clone()));
                }
            }
        }
        let mut forgotten = Vec::new();
        for node in gone {
            let Some(entry) = self.nodes.get_mut(&node) else { continue };
            let since = *entry.gone_since.get_or_insert(now);
            let due = entry.due;
            self.order.remove(&(due, node.clone()));
            if now.saturating_duration_since(since) >= KEPT {
                self.nodes.remove(&node);
                forgotten.push(node);
            }
        }
        forgotten
    }

    /// Takes back the requests without a result: nobody waits for them anymore. Their nodes are due at once.
    pub(super) fn start_anew(&mut self, now: Instant) {
        let asked = self.nodes.iter_mut().filter(|(_, entry)| entry.asked);
        for (node, entry) in asked {
            (entry.asked, entry.due) = (false, now);
            if entry.gone_since.is_none() {
                self.order.insert((now, node.clone()));
            }
        }
    }

    /// The node to ask about now, with the ETag of its last answer. Until [`Self::done`], it is not asked about again.
    pub(super) fn next(&mut self, now: Instant) -> Option<(Arc<str>, Option<HeaderValue>)> {
        if now < self.paused_until {
            return None;
        }
        let (due, node) = self.order.first()?.clone();
        if due > now {
            return None;
        }
        self.order.remove(&(due, node.clone()));
        let entry = self.nodes.get_mut(&node)?;
        (entry.asked, entry.due) = (true, now + self.interval);
        let etag = entry.etag.clone();
        Some((node, etag))
    }

    /// How long until [`Self::next`] returns a node.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let (due, _) = self.order.first()?;
        Some((*due).max(self.paused_until).saturating_duration_since(now))
    }

    /// Records the result of a request. `random` is between 0 and 1.
    pub(super) fn done(&mut self, node: &Arc<str>, outcome: Outcome, now: Instant, random: f64) {
        let interval = self.interval;
        let Some(entry) = self.nodes.get_mut(node) else { return };
        entry.asked = false;
        match outcome {
            Outcome::Answered => {
                entry.failures = 0;
                self.failures = 0;
                self.paused_until = now;
            }
            Outcome::Failed => {
                entry.failures = entry.failures.saturating_add(1);
                self.failures = self.failures.saturating_add(1);
                entry.due = now + delay(entry.failures, random).min(interval);
                if self.failures > TOLERATED {
                    self.paused_until = now + delay(self.failures - TOLERATED, random).min(interval);
                }
            }
        }
        if entry.gone_since.is_none() {
            self.order.insert((entry.due, node.clone()));
        }
    }

    /// Remembers the ETag of an answer that is in use.
    pub(super) fn keep_etag(&mut self, node: &str, etag: Option<HeaderValue>) {
        if let Some(entry) = self.nodes.get_mut(node) {
            entry.etag = etag;
        }
    }

    /// Whether the inventory fails, so that one request at a time is enough.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > TOLERATED
    }

    fn set_due(&mut self, node: &Arc<str>, due: Instant) {
        let Some(entry) = self.nodes.get_mut(node) else { return };
        self.order.remove(&(entry.due, node.clone()));
        entry.due = due;
        if !entry.asked {
            self.order.insert((due, node.clone()));
        }
    }

    /// The time of a node in the interval, so that requests are spread evenly.
    fn phase(&self, node: &str) -> Duration {
        let mut hasher = DefaultHasher::new();
        node.hash(&mut hasher);
        let hash = u32::try_from(hasher.finish() >> 32).unwrap_or_default();
        self.interval.mul_f64(f64::from(hash) / f64::from(u32::MAX))
    }
}

/// The delay after so many failures: 1 s, 2 s, 4 s and so on, each by up to a half shorter.
fn delay(failures: u32, random: f64) -> Duration {
    let whole = Duration::from_secs(1_u64 << (failures - 1).min(16)).min(DELAY_MAX);
    whole.mul_f64(1.0 - random.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(300);

    fn nodes(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| (*name).into()).collect()
    }

    fn next(schedule: &mut Schedule, now: Instant) -> Option<String> {
        schedule.next(now).map(|(node, _)| node.to_string())
    }

    #[test]
    fn a_node_is_asked_about_when_it_joins_and_then_once_in_each_interval() {
        let start = Instant::now();
        let mut schedule = Schedule::new(INTERVAL, start);
        schedule.follow(&nodes(&["a", "b"]), |_| false, start);
        assert_eq!([next(&mut schedule, start), next(&mut schedule, start)].map(Option::unwrap), ["a", "b"]);
        assert_eq!((next(&mut schedule, start), schedule.wait(start)), (None, None));
        schedule.done(&"a".into(), Outcome::Answered, start, 0.0);
        assert_eq!(schedule.wait(start), Some(INTERVAL));
        let joined = start + Duration::from_secs(10);
        schedule.follow(&nodes(&["a", "b", "c"]), |_| false, joined);
        assert_eq!(next(&mut schedule, joined).as_deref(), Some("c"));
        assert_eq!(next(&mut schedule, start + INTERVAL).as_deref(), Some("a"));
    }

    #[test]
    fn one_request_at_a_time_is_under_way_about_a_node_and_a_dropped_one_is_repeated_at_once() {
        let start = Instant::now();
        let mut schedule = Schedule::new(INTERVAL, start);
        schedule.follow(&nodes(&["a", "b"]), |_| false, start);
        assert_eq!([next(&mut schedule, start), next(&mut schedule, start)].map(Option::unwrap), ["a", "b"]);
        schedule.done(&"b".into(), Outcome::Answered, start, 0.0);
        let later = start + INTERVAL;
        schedule.follow(&nodes(&["a", "b"]), |_| true, later);
        assert_eq!([next(&mut schedule, later), next(&mut schedule, later)], [Some("b".to_owned()), None]);
        schedule.done(&"b".into(), Outcome::Answered, later, 0.0);
        schedule.start_anew(later);
        assert_eq!([next(&mut schedule, later), next(&mut schedule, later)], [Some("a".to_owned()), None]);
        // A node that is created again while a request about its predecessor is under way is asked about again.
        schedule.follow(&nodes(&["b"]), |_| true, later);
        schedule.follow(&nodes(&["a", "b"]), |_| true, later);
        assert_eq!(next(&mut schedule, later), None);
        schedule.done(&"a".into(), Outcome::Answered, later, 0.0);
        assert_eq!(next(&mut schedule, later).as_deref(), Some("a"));
    }

    #[test]
    fn known_nodes_are_spread_over_the_interval() {
        let start = Instant::now();
        let mut schedule = Schedule::new(INTERVAL, start);
        let names: Vec<Arc<str>> = (0..15_000).map(|number| format!("node-{number}").into()).collect();
        schedule.follow(&names, |_| true, start);
        let mut counts = Vec::new();
        for tenth in 1..=10 {
            let now = start + INTERVAL * tenth / 10;
            let before = counts.iter().sum::<usize>();
            let all = schedule.order.iter().filter(|(due, _)| *due <= now).count();
            counts.push(all - before);
        }
        assert!(counts.iter().all(|count| (1_000..2_000).contains(count)), "{counts:?}");
    }

    #[test]
    fn an_inventory_that_fails_is_asked_more_and_more_rarely_until_it_answers() {
        let start = Instant::now();
        let mut schedule = Schedule::new(INTERVAL, start);
        let names: Vec<Arc<str>> = (0..100).map(|number| format!("n{number}").into()).collect();
        schedule.follow(&names, |_| false, start);
        let (mut now, mut asked) = (start, Vec::new());
        while now < start + Duration::from_secs(120) {
            match schedule.next(now) {
                Some((node, _)) => {
                    asked.push(now - start);
                    schedule.done(&node, Outcome::Failed, now, 0.0);
                }
                None => now += Duration::from_secs(1),
            }
        }
        assert_eq!(asked.iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 3, 7, 15, 31, 63]);
        assert!(schedule.is_failing());
        let later = start + Duration::from_secs(600);
        let (node, _) = schedule.next(later).unwrap();
        schedule.done(&node, Outcome::Answered, later, 0.0);
        assert!(!schedule.is_failing() && schedule.next(later).is_some());
    }

    #[test]
    fn one_node_that_fails_delays_no_other() {
        let start = Instant::now();
        let mut schedule = Schedule::new(INTERVAL, start);
        schedule.follow(&nodes(&["bad", "good"]), |_| false, start);
        for second in 0..10 {
            let now = start + Duration::from_secs(second);
            while let Some((node, _)) = schedule.next(now) {
                let outcome = if &*node == "bad" { Outcome::Failed } else { Outcome::Answered };
                schedule.done(&node, outcome, now, 0.0);
            }
            assert!(second > 2 || !schedule.is_failing());
        }
        schedule.follow(&nodes(&["bad", "good", "new"]), |_| false, start + Duration::from_secs(2));
        assert_eq!(delay(1, 1.0), Duration::from_millis(500));
        assert_eq!(delay(40, 0.0), DELAY_MAX);
    }

    #[test]
    fn answers_about_deleted_nodes_are_kept_for_an_hour() {
        let start = Instant::now();
        let mut schedule = Schedule::new(INTERVAL, start);
        schedule.follow(&nodes(&["a"]), |_| false, start);
        assert!(schedule.follow(&[], |_| true, start).is_empty());
        assert_eq!(next(&mut schedule, start + INTERVAL), None, "nobody asks about it");
        let again = start + Duration::from_secs(60);
        schedule.follow(&nodes(&["a"]), |_| true, again);
        assert_eq!(next(&mut schedule, again).as_deref(), Some("a"), "it may be another machine");
        schedule.follow(&[], |_| true, again);
        assert_eq!(schedule.follow(&[], |_| true, again + KEPT), nodes(&["a"]));
    }
}
