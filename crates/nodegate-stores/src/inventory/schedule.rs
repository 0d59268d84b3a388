//! When the request for each node is due: at once for a node that joins, more and more rarely until there is an answer about it,
//! then once in each interval. What an inventory answers about one node delays no other, unless nothing else is known of it.
//! Pure: the clock and randomness are arguments.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderValue;
use tokio::time::Instant;

use super::pace::{Pace, TOLERATED, longer, since_joined};

/// How long an answer about a deleted node is kept: a node that is created again gets its labels at admission.
const KEPT: Duration = Duration::from_secs(3600);
/// Minimum time between two requests about all nodes, while one of them waits for the result.
const BATCH_SPACING: Duration = Duration::from_secs(5);
/// The longest delay after a failure about one node.
const DELAY_MAX: Duration = Duration::from_secs(300);

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It answered with labels.
    Answered,
    /// It answered that it does not know the node.
    Unknown,
    /// It did not answer about this node in time, or not with labels; with the reason.
    Failed(String),
    /// The inventory itself fails, whatever it is asked: it cannot be reached, for example; with the reason.
    Unreachable(String),
}

/// A node that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivingNode {
    /// Its name.
    pub name: Arc<str>,
    /// The UID of the object. A node that is created again has another one.
    pub uid: Arc<str>,
    /// How long ago it was created.
    pub age: Duration,
}

/// What the results about all nodes say about the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It answers about nodes.
    Answers,
    /// Not enough is known.
    Undecided,
    /// It does not answer about some nodes, or knows none; with the reason.
    Troubled(String),
}

struct Entry {
    uid: Arc<str>,
    due: Instant,
    /// When the last request was sent.
    sent: Option<Instant>,
    /// Whether a request is under way. Then it is not in the order: a late answer must not replace a newer one.
    asked: bool,
    /// Whether there is no answer yet, so that the node may wait for it.
    awaited: bool,
    /// The age of the node at a time.
    age: (Duration, Instant),
    etag: Option<HeaderValue>,
    failures: u32,
    last: Option<Outcome>,
    gone_since: Option<Instant>,
}

impl Entry {
    fn new(uid: Arc<str>, awaited: bool, age: (Duration, Instant), due: Instant) -> Self {
        Self { uid, due, sent: None, asked: false, awaited, age, etag: None, failures: 0, last: None, gone_since: None }
    }

    fn age(&self, now: Instant) -> Duration {
        let (age, at) = self.age;
        age.saturating_add(now.saturating_duration_since(at))
    }
}

/// The schedule of one inventory.
pub(super) struct Schedule {
    interval: Duration,
    nodes: HashMap<Arc<str>, Entry>,
    /// The nodes about which there is no answer yet, and the others, by when they are due.
    awaited: BTreeSet<(Instant, Arc<str>)>,
    known: BTreeSet<(Instant, Arc<str>)>,
    pace: Pace,
}

impl Schedule {
    /// An empty schedule.
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        let (awaited, known) = (BTreeSet::new(), BTreeSet::new());
        Self { interval, nodes: HashMap::new(), awaited, known, pace: Pace::new(interval, now) }
    }

    /// Adds nodes that joined, and returns those that were deleted too long ago. The request for a node with a known
    /// answer is due at its own time in the interval, those for all others at once.
    pub(super) fn follow(
        &mut self,
        living: &[LivingNode],
        is_known: impl Fn(&str) -> bool,
        now: Instant,
    ) -> Vec<Arc<str>> {
        let mut gone: std::collections::HashSet<Arc<str>> = self.nodes.keys().cloned().collect();
        for LivingNode { name: node, uid, age } in living {
            gone.remove(node);
            match self.nodes.get_mut(node) {
                Some(entry) => {
                    if entry.gone_since.take().is_some() || entry.uid != *uid {
                        (entry.uid, entry.age) = (uid.clone(), (*age, now));
                        self.queue(node, now);
                    }
                }
                None => {
                    let known = is_known(node);
                    // A node that joins is due before all that wait for their next turn.
                    let first = now.checked_sub(self.interval).unwrap_or(now);
                    let due = if known { now + self.phase(node) } else { first };
                    self.nodes.insert(node.clone(), Entry::new(uid.clone(), !known, (*age, now), due));
                    self.queue(node, due);
                }
            }
        }
        let mut forgotten = Vec::new();
        for node in gone {
            self.unqueue(&node);
            let Some(entry) = self.nodes.get_mut(&node) else { continue };
            let since = *entry.gone_since.get_or_insert(now);
            if now.saturating_duration_since(since) >= KEPT {
                self.nodes.remove(&node);
                forgotten.push(node);
            }
        }
        forgotten
    }

    /// Counts nodes with a known answer that [`Self::follow`] has never seen as deleted from now on: they were deleted while
    /// nobody followed.
    pub(super) fn expect_gone(&mut self, known: impl IntoIterator<Item = Arc<str>>, now: Instant) {
        for node in known {
            let entry = || Entry::new(Arc::from(""), false, (Duration::ZERO, now), now);
            let gone = || Entry { gone_since: Some(now), ..entry() };
            self.nodes.entry(node).or_insert_with(gone);
        }
    }

    /// Makes the request about `all` nodes due earlier than once in each interval: a node of this age waits for its result.
    pub(super) fn hasten(&mut self, all: &Arc<str>, age: Duration) {
        let Some(entry) = self.nodes.get(all) else { return };
        let Some(sent) = entry.sent.filter(|_| entry.last == Some(Outcome::Answered)) else { return };
        let soon = sent + since_joined(age, 0.0).max(BATCH_SPACING);
        if soon < entry.due {
            self.queue(all, soon);
        }
    }

    /// What the last results about the nodes that exist say.
    pub(super) fn health(&self) -> Health {
        let living = || self.nodes.iter().filter(|(_, entry)| entry.gone_since.is_none());
        let stuck = || living().filter(|(_, entry)| entry.failures > TOLERATED);
        if let Some((node, Entry { last: Some(Outcome::Failed(why)), .. })) = stuck().min_by_key(|(node, _)| *node) {
            return Health::Troubled(match stuck().count() {
                1 => format!("it fails repeatedly about node {node}: {why}"),
                count => format!("it fails repeatedly about {count} nodes, for example {node}: {why}"),
            });
        }
        if living().any(|(_, entry)| entry.last == Some(Outcome::Answered)) {
            return Health::Answers;
        }
        match living().map(|(node, _)| node).min() {
            Some(node) if living().all(|(_, entry)| entry.last == Some(Outcome::Unknown)) => Health::Troubled(format!(
                "it answers 404 about all nodes, for example {node}; check the path of its URL"
            )),
            _ => Health::Undecided,
        }
    }

    /// Takes back the requests without a result: nobody waits for them anymore. Their nodes are due at once.
    pub(super) fn start_anew(&mut self, now: Instant) {
        let asked = self.nodes.iter_mut().filter(|(_, entry)| entry.asked);
        let asked: Vec<Arc<str>> = asked.map(|(node, entry)| (entry.asked = false, node.clone()).1).collect();
        for node in asked {
            if self.nodes.get(&node).is_some_and(|entry| entry.gone_since.is_none()) {
                self.queue(&node, now);
            }
        }
    }

    /// The node whose request is due now, with the ETag of its last answer. Until [`Self::done`], it has no other request.
    pub(super) fn next(&mut self, now: Instant) -> Option<(Arc<str>, Option<HeaderValue>)> {
        let node = self.choose(now)?;
        self.unqueue(&node);
        let entry = self.nodes.get_mut(&node)?;
        (entry.asked, entry.due, entry.sent) = (true, now + self.interval, Some(now));
        let etag = entry.etag.clone();
        Some((node, etag))
    }

    fn choose(&mut self, now: Instant) -> Option<Arc<str>> {
        let [awaited, known] = self.pace.opens(now).map(|from| from <= now);
        let due = |order: &BTreeSet<(Instant, Arc<str>)>| order.first().filter(|(due, _)| *due <= now).cloned();
        let known = known.then(|| due(&self.known)).flatten();
        if !self.pace.answers_fail(now) {
            let awaited = awaited.then(|| due(&self.awaited)).flatten();
            return awaited.into_iter().chain(known).min().map(|(_, node)| node);
        }
        if let Some(node) = awaited.then(|| self.oldest_awaited(now)).flatten() {
            self.pace.asked_awaited(now);
            return Some(node);
        }
        let (_, node) = known?;
        self.pace.asked_known(now);
        Some(node)
    }

    /// How long until [`Self::next`] returns a node.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let due = |order: &BTreeSet<(Instant, Arc<str>)>| order.first().map(|(due, _)| *due);
        let [awaited, known] = self.pace.opens(now);
        let awaited = due(&self.awaited).map(|due| due.max(awaited));
        let known = due(&self.known).map(|due| due.max(known));
        awaited.into_iter().chain(known).min().map(|at| at.saturating_duration_since(now))
    }

    /// Records the result of a request. `random` is between 0 and 1.
    pub(super) fn done(&mut self, node: &Arc<str>, outcome: Outcome, now: Instant, random: f64) {
        let interval = self.interval;
        let Some(entry) = self.nodes.get_mut(node) else { return };
        entry.asked = false;
        let soon = since_joined(entry.age(now), random);
        match &outcome {
            Outcome::Answered => {
                (entry.failures, entry.awaited) = (0, false);
                self.pace.answered(now);
            }
            Outcome::Unknown => {
                entry.failures = 0;
                if entry.awaited {
                    entry.due = now + soon.min(interval);
                }
                self.pace.answered(now);
            }
            Outcome::Failed(_) => {
                entry.failures = entry.failures.saturating_add(1);
                let delay = longer(entry.failures, DELAY_MAX, random);
                let delay = if entry.awaited { delay.min(soon) } else { delay };
                entry.due = now + delay.min(interval);
                self.pace.failed();
            }
            Outcome::Unreachable(_) => {
                // This says nothing about the node: its request is sent again as soon as the inventory may be asked.
                entry.due = now;
                self.pace.unreachable(now, random);
            }
        }
        entry.last = Some(outcome);
        if entry.gone_since.is_none() {
            let due = entry.due;
            self.queue(node, due);
        }
    }

    /// Remembers the ETag of an answer that is in use.
    pub(super) fn keep_etag(&mut self, node: &str, etag: Option<HeaderValue>) {
        if let Some(entry) = self.nodes.get_mut(node) {
            entry.etag = etag;
        }
    }

    /// Whether the inventory fails as a whole.
    pub(super) fn is_failing(&self, now: Instant) -> bool {
        self.pace.is_failing(now)
    }

    /// Whether it could not be reached at last, so that one request at a time is enough.
    pub(super) fn is_unreachable(&self) -> bool {
        self.pace.is_unreachable()
    }

    /// The oldest node without an answer whose request is due: the first about which there will be one, if there will be.
    fn oldest_awaited(&self, now: Instant) -> Option<Arc<str>> {
        let due = self.awaited.iter().take_while(|(due, _)| *due <= now);
        let age = |node: &Arc<str>| self.nodes.get(node).map(|entry| entry.age(now));
        due.map(|(_, node)| node).max_by_key(|node| (age(node), std::cmp::Reverse(*node))).cloned()
    }

    /// Makes the request for a node due, unless one is under way.
    fn queue(&mut self, node: &Arc<str>, due: Instant) {
        self.unqueue(node);
        let Some(entry) = self.nodes.get_mut(node) else { return };
        entry.due = due;
        if !entry.asked {
            let order = if entry.awaited { &mut self.awaited } else { &mut self.known };
            order.insert((due, node.clone()));
        }
    }

    fn unqueue(&mut self, node: &Arc<str>) {
        let Some(entry) = self.nodes.get(node) else { return };
        let place = (entry.due, node.clone());
        self.awaited.remove(&place);
        self.known.remove(&place);
    }

    /// The time of a node in the interval, so that requests are spread evenly.
    fn phase(&self, node: &str) -> Duration {
        let mut hasher = DefaultHasher::new();
        node.hash(&mut hasher);
        let hash = u32::try_from(hasher.finish() >> 32).unwrap_or_default();
        self.interval.mul_f64(f64::from(hash) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
