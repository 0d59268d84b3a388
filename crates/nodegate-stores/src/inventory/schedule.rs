//! When the request for each node is due: at once for a node that joins, then once in each interval, and more and more
//! rarely while the inventory fails. Pure: the clock and randomness are arguments.

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It answered with labels.
    Answered,
    /// It answered that it does not know the node.
    Unknown,
    /// It did not answer, or not with labels; with the reason.
    Failed(String),
}

/// A node that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivingNode {
    /// Its name.
    pub name: Arc<str>,
    /// The UID of the object. A node that is created again has another one.
    pub uid: Arc<str>,
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
    /// Whether a request is under way. Then it is not in the order: a late answer must not replace a newer one.
    asked: bool,
    etag: Option<HeaderValue>,
    failures: u32,
    last: Option<Outcome>,
    gone_since: Option<Instant>,
}

impl Entry {
    fn new(uid: Arc<str>, due: Instant) -> Self {
        Self { uid, due, asked: false, etag: None, failures: 0, last: None, gone_since: None }
    }
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

    /// Adds nodes that joined, and returns those that were deleted too long ago. The request for a node with a known
    /// answer is due at its own time in the interval, those for all others at once.
    pub(super) fn follow(
        &mut self,
        living: &[LivingNode],
        is_known: impl Fn(&str) -> bool,
        now: Instant,
    ) -> Vec<Arc<str>> {
        let mut gone: std::collections::HashSet<Arc<str>> = self.nodes.keys().cloned().collect();
        for LivingNode { name: node, uid } in living {
            gone.remove(node);
            match self.nodes.get_mut(node) {
                Some(entry) => {
                    if entry.gone_since.take().is_some() || entry.uid != *uid {
                        entry.uid = uid.clone();
                        self.set_due(node, now);
                    }
                }
                None => {
                    // A node that joins is due before all that wait for their next turn.
                    let first = now.checked_sub(self.interval).unwrap_or(now);
                    let due = if is_known(node) { now + self.phase(node) } else { first };
                    self.nodes.insert(node.clone(), Entry::new(uid.clone(), due));
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

    /// Counts nodes with a known answer that [`Self::follow`] has never seen as deleted from now on: they were deleted while
    /// nobody followed.
    pub(super) fn expect_gone(&mut self, known: impl IntoIterator<Item = Arc<str>>, now: Instant) {
        for node in known {
            let gone = || Entry { gone_since: Some(now), ..Entry::new(Arc::from(""), now) };
            self.nodes.entry(node).or_insert_with(gone);
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
        for (node, entry) in asked {
            (entry.asked, entry.due) = (false, now);
            if entry.gone_since.is_none() {
                self.order.insert((now, node.clone()));
            }
        }
    }

    /// The node whose request is due now, with the ETag of its last answer. Until [`Self::done`], it has no other request.
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
        match &outcome {
            Outcome::Answered | Outcome::Unknown => {
                entry.failures = 0;
                self.failures = 0;
                self.paused_until = now;
            }
            Outcome::Failed(_) => {
                entry.failures = entry.failures.saturating_add(1);
                self.failures = self.failures.saturating_add(1);
                entry.due = now + delay(entry.failures, random).min(interval);
                if self.failures > TOLERATED {
                    self.paused_until = now + delay(self.failures - TOLERATED, random).min(interval);
                }
            }
        }
        entry.last = Some(outcome);
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
mod tests;
