//! One inventory: asks it by its schedule, and puts its answers in the cache.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use reqwest::header::HeaderValue;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::cache::InventoryCache;
use super::report::Report;
use super::request::{Fault, NOT_FOUND, Requester};
use super::schedule::{Health, LivingNode, Outcome, Schedule};
use nodegate_base::metrics::InventoryMetrics;
use nodegate_policy::Inventory;

/// Maximum number of concurrent requests to one inventory.
const CONCURRENCY: usize = 8;
/// How often the nodes that exist are compared with the schedule, besides when one joins.
const LOOK: Duration = Duration::from_secs(10);
/// The same, if nodes join one after the other.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Stands for all nodes in the schedule of a batch. No node has this name.
const ALL: &str = "";

/// How often the results about all nodes are compared while answers arrive.
const JUDGE: Duration = Duration::from_secs(1);

/// All nodes that exist.
pub(super) type Living<'a> = &'a (dyn Fn() -> Vec<LivingNode> + Sync);

/// One inventory, with what is known about it since this replica asks it.
pub(super) struct Source {
    pub(super) inventory: Arc<Inventory>,
    pub(super) requester: Requester,
    /// Whether the known answers are to other questions, so that the requests for all nodes are due at once.
    asks_anew: bool,
    pub(super) schedule: Mutex<Schedule>,
    /// When the results about all nodes were compared last.
    judged: Mutex<Option<Instant>>,
    /// Dropped keys, and reasons for which a part of an answer is not used, that were named in the log.
    pub(super) named: Mutex<BTreeSet<String>>,
}

/// What a source works with.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) cache: &'a InventoryCache,
    pub(super) metrics: &'a InventoryMetrics,
    pub(super) report: &'a Report,
    pub(super) living: Living<'a>,
    /// Minimum time between two requests.
    pub(super) spacing: Duration,
}

impl Source {
    /// A source that has not been asked. `asks_anew`: whether what is known does not count.
    pub(super) fn new(inventory: Arc<Inventory>, credentials: Option<&Path>, asks_anew: bool) -> Self {
        let schedule = Mutex::new(Schedule::new(inventory.refresh, Instant::now()));
        Self {
            inventory,
            requester: Requester::new(credentials),
            asks_anew,
            schedule,
            judged: Mutex::default(),
            named: Mutex::default(),
        }
    }

    /// Asks about every node when it is due; runs until dropped. `joined` changes when a node joins.
    pub(super) async fn follow(&self, around: Surroundings<'_>, mut joined: watch::Receiver<u64>) {
        let mut running = FuturesUnordered::new();
        self.schedule.lock().start_anew(Instant::now());
        let (mut look, mut soonest, mut earliest) = (Instant::now(), Instant::now(), Instant::now());
        loop {
            let now = Instant::now();
            let news = joined.has_changed().unwrap_or_default();
            if now >= look || (news && now >= soonest) {
                joined.borrow_and_update();
                (look, soonest) = (now + LOOK, now + LOOK_AGAIN);
                self.look(around, now);
                continue;
            }
            let most = if self.schedule.lock().is_unreachable() { 1 } else { CONCURRENCY };
            if running.len() < most && now >= earliest {
                let due = self.schedule.lock().next(now);
                if let Some((node, etag)) = due {
                    earliest = now + around.spacing;
                    running.push(Box::pin(self.ask(around, node, etag)));
                    continue;
                }
            }
            let wait = self.schedule.lock().wait(now).map_or(look, |wait| (now + wait).max(earliest)).min(look);
            let wait = if running.len() < most { wait } else { look };
            tokio::select! {
                Some(()) = running.next() => {}
                () = sleep_until(if news { wait.min(soonest) } else { wait }) => {}
                Ok(()) = joined.changed(), if !news => joined.mark_changed(),
            }
        }
    }

    /// Compares the schedule with the nodes that exist.
    fn look(&self, around: Surroundings<'_>, now: Instant) {
        let Inventory { id, policy, name, url, .. } = &*self.inventory;
        let is_answered =
            |node: &str| around.cache.of(node).of(id).is_some_and(|answer| self.inventory.is_answered_by(answer));
        if url.is_batch() {
            let all: Arc<str> = ALL.into();
            let mut schedule = self.schedule.lock();
            let request = LivingNode { name: all.clone(), uid: all.clone(), age: Duration::ZERO };
            schedule.follow(&[request], |_| false, now);
            let waits = |node: &LivingNode| !is_answered(&node.name);
            // Which machine a node is, is not known here, so nothing tells whether there is an answer about it.
            let living = if self.inventory.is_by_machine() { Vec::new() } else { (around.living)() };
            if let Some(age) = living.into_iter().filter(waits).map(|node| node.age).min() {
                schedule.hasten(&all, age);
            }
        } else {
            let is_known = |node: &str| !self.asks_anew && is_answered(node);
            let gone = self.schedule.lock().follow(&(around.living)(), is_known, now);
            gone.iter().for_each(|node| around.cache.put(node, id, None));
            self.schedule.lock().expect_gone(around.cache.nodes_of(id), now);
        }
        self.judge(around, now);
        around.metrics.set_nodes(policy, name, around.cache.count(id));
    }

    async fn ask(&self, around: Surroundings<'_>, node: Arc<str>, etag: Option<HeaderValue>) {
        let asked = self.requester.ask(&self.inventory, &node, etag.as_ref()).await;
        let is_batch = self.inventory.url.is_batch();
        let taken = match asked {
            Ok(returned) => self.take(around, &node, returned).await,
            Err(fault) => Err(fault),
        };
        let (result, failure, outcome) = match taken {
            Ok(NOT_FOUND) => (NOT_FOUND, None, Outcome::Unknown),
            Ok(result) => (result, None, Outcome::Answered),
            Err(Fault::OfNode(why)) if !is_batch => ("failed", Some(why.clone()), Outcome::Failed(why)),
            Err(Fault::OfInventory(why) | Fault::OfNode(why)) => {
                ("failed", Some(why.clone()), Outcome::Unreachable(why))
            }
        };
        let Inventory { policy, name, .. } = &*self.inventory;
        around.metrics.asked(policy, name, result);
        let now = Instant::now();
        let failing = {
            let mut schedule = self.schedule.lock();
            schedule.done(&node, outcome, now, random());
            schedule.is_failing(now) || (is_batch && failure.is_some())
        };
        match failure {
            None if self.is_time_to_judge(now) => self.judge(around, now),
            None => {}
            Some(why) if failing => around.report.fails(&self.inventory, why, around.metrics),
            // Other nodes are answered.
            Some(why) => tracing::debug!(policy = &**policy, inventory = &**name, node = &*node, why, "no answer"),
        }
    }

    fn is_time_to_judge(&self, now: Instant) -> bool {
        let judged = *self.judged.lock();
        judged.is_none_or(|judged| now.saturating_duration_since(judged) >= JUDGE)
    }

    /// Reports what the results about all nodes say, unless the inventory fails as a whole.
    fn judge(&self, around: Surroundings<'_>, now: Instant) {
        *self.judged.lock() = Some(now);
        let health = {
            let schedule = self.schedule.lock();
            if schedule.is_failing(now) {
                return;
            }
            schedule.health()
        };
        match health {
            Health::Answers => around.report.answers(&self.inventory, around.metrics),
            Health::Troubled(why) => around.report.fails(&self.inventory, why, around.metrics),
            Health::Undecided => {}
        }
    }
}

/// A number between 0 and 1. Every hasher of the standard library has other keys.
fn random() -> f64 {
    let bits = RandomState::new().hash_one(0_u8) >> 32;
    f64::from(u32::try_from(bits).unwrap_or_default()) / f64::from(u32::MAX)
}
