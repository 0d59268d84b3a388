//! One inventory: asks it by its schedule, and puts its answers in the cache.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
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

use super::answer;
use super::cache::InventoryCache;
use super::items::Items;
use super::report::Report;
use super::request::{Fault, Requester, Returned};
use super::schedule::{Health, LivingNode, Outcome, Schedule};
use nodegate_base::metrics::InventoryMetrics;
use nodegate_base::text;
use nodegate_policy::api::names::is_dns_subdomain;
use nodegate_policy::{DroppedLabel, Inventory, InventoryLabels, ItemLabels};

/// Maximum number of concurrent requests to one inventory.
const CONCURRENCY: usize = 8;
/// How often the nodes that exist are compared with the schedule, besides when one joins.
const LOOK: Duration = Duration::from_secs(10);
/// The same, if nodes join one after the other.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Maximum length of a key or a name in a message, in bytes.
const SHOWN_MAX: usize = 128;
/// Maximum number of dropped labels that are named in the log for one inventory.
const NAMED_MAX: usize = 32;
/// Stands for all nodes in the schedule of a batch. No node has this name.
const ALL: &str = "";

/// The word for 404 in metrics.
const NOT_FOUND: &str = "not_found";
/// How often the results about all nodes are compared while answers arrive.
const JUDGE: Duration = Duration::from_secs(1);

/// All nodes that exist.
pub(super) type Living<'a> = &'a (dyn Fn() -> Vec<LivingNode> + Sync);

/// One inventory, with what is known about it since this replica asks it.
pub(super) struct Source {
    pub(super) inventory: Arc<Inventory>,
    requester: Requester,
    /// Whether the known answers are to other questions, so that the requests for all nodes are due at once.
    asks_anew: bool,
    schedule: Mutex<Schedule>,
    /// When the results about all nodes were compared last.
    judged: Mutex<Option<Instant>>,
    /// Dropped keys that were named in the log.
    named: Mutex<BTreeSet<String>>,
}

/// What an answer about all nodes says of them.
#[derive(Default)]
struct Answers {
    accepted: Vec<(String, InventoryLabels)>,
    /// The nodes of which it says nothing that can be used.
    refused: BTreeSet<String>,
    first_refusal: Option<String>,
    /// Whether any node may be among those of which it says nothing that can be used.
    keeps_all: bool,
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
            let waits = (around.living)().into_iter().filter(|node| !is_answered(&node.name));
            if let Some(age) = waits.map(|node| node.age).min() {
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

    /// Uses an answer, and returns the word for it in metrics.
    ///
    /// # Errors
    /// Returns a sentence if it is no answer; the last one stays in force.
    async fn take(&self, around: Surroundings<'_>, node: &Arc<str>, returned: Returned) -> Result<&'static str, Fault> {
        let (body, etag) = match returned {
            Returned::Unchanged => return Ok("unchanged"),
            Returned::NotFound => return Ok(NOT_FOUND),
            Returned::Body(body, etag) => (body, etag),
        };
        let mut etag = etag;
        match (&self.inventory.form, self.inventory.url.is_batch()) {
            (None, true) => {
                let mut answers = Answers::default();
                let each = |node, labels| {
                    self.add(around, &mut answers, node, Ok(ItemLabels { labels, ..ItemLabels::default() }));
                };
                answer::of_all(&body, each).map_err(not_understood)?;
                self.put_all(around, answers)?;
            }
            (Some(form), true) => {
                let (mut items, mut next) = with_page(Items::of_all(&self.inventory, form), body).await?;
                let mut pages = self.requester.pages(&self.inventory, around.spacing);
                while let Some(written) = next {
                    // It is of the first page only.
                    etag = None;
                    (items, next) = with_page(items, pages.next(&written).await?).await?;
                }
                let (nodes, nameless) = items.finish().map_err(not_understood)?;
                let nameless = nameless.map(Cow::into_owned);
                let mut answers =
                    Answers { keeps_all: nameless.is_some(), first_refusal: nameless, ..Answers::default() };
                nodes.into_iter().for_each(|(node, item)| self.add(around, &mut answers, node, item));
                self.put_all(around, answers)?;
            }
            (None, false) => {
                let labels = answer::of_node(&body).map_err(not_understood)?;
                self.put(around, node, ItemLabels { labels, ..ItemLabels::default() })?;
            }
            (Some(form), false) => {
                let (inventory, form, name) = (self.inventory.clone(), form.clone(), node.clone());
                let item = beside(move || Items::of_node(&inventory, &form, &name, &body)).await?;
                let Some(item) = item.map_err(not_understood)? else { return Ok(NOT_FOUND) };
                self.put(around, node, item)?;
            }
        }
        self.schedule.lock().keep_etag(node, etag);
        Ok("answered")
    }

    /// Uses what an answer says of one node.
    ///
    /// # Errors
    /// Returns a sentence if nothing of it can be used.
    fn put(&self, around: Surroundings<'_>, node: &Arc<str>, item: ItemLabels) -> Result<(), Fault> {
        let labels = self.accept(around, node, item).map_err(Fault::OfNode)?;
        around.cache.put(node, &self.inventory.id, Some(labels));
        Ok(())
    }

    /// Adds what an answer about all nodes says of one.
    fn add(
        &self,
        around: Surroundings<'_>,
        answers: &mut Answers,
        node: String,
        item: Result<ItemLabels, Cow<'static, str>>,
    ) {
        if !is_dns_subdomain(&node) {
            return;
        }
        match item.map_err(Cow::into_owned).and_then(|item| self.accept(around, &node, item)) {
            Ok(labels) => answers.accepted.push((node, labels)),
            Err(why) => {
                answers.first_refusal.get_or_insert_with(|| format!("node {}: {why}", shown(&node)));
                answers.refused.insert(node);
            }
        }
    }

    /// Uses what an answer says of all nodes.
    ///
    /// # Errors
    /// Returns a sentence if it says nothing that can be used of any node.
    fn put_all(&self, around: Surroundings<'_>, answers: Answers) -> Result<(), Fault> {
        let Answers { accepted, refused, first_refusal, keeps_all } = answers;
        if let Some(why) = first_refusal {
            if accepted.is_empty() {
                return Err(Fault::OfNode(why));
            }
            let Inventory { policy, name, .. } = &*self.inventory;
            around.metrics.dropped(policy, name, refused.len().max(1));
            self.name_once(&why, "a part of an inventory's answer is not used; its nodes keep their last labels");
        }
        // A node that is missing in a batch may be missing by mistake. What exists keeps its last answer.
        let living: HashSet<Arc<str>> = (around.living)().into_iter().map(|node| node.name).collect();
        let kept = |node: &str| keeps_all || living.contains(node) || refused.contains(node);
        around.cache.put_all(&self.inventory.id, accepted, kept);
        around.metrics.set_nodes(&self.inventory.policy, &self.inventory.name, around.cache.count(&self.inventory.id));
        Ok(())
    }

    /// The labels that may be used. One that may not is no answer about its key, so the previous value stays.
    ///
    /// # Errors
    /// Returns a sentence if there are labels and none of them may be used: a page about an error looks like this, and
    /// must not remove labels.
    fn accept(&self, around: Surroundings<'_>, node: &str, item: ItemLabels) -> Result<InventoryLabels, String> {
        let ItemLabels { node: _, labels, unknown } = item;
        let before = around.cache.of(node);
        let before = before.of(&self.inventory.id);
        // Without an answer, what is unknown would count as absent.
        if let (None, Some(DroppedLabel { key, reason })) = (before, unknown.first()) {
            return Err(format!("label {key} is unknown: {reason}"));
        }
        let count = labels.len() + unknown.len();
        let (labels, mut dropped) = self.inventory.accept(labels);
        dropped.extend(unknown);
        if !dropped.is_empty() {
            around.metrics.dropped(&self.inventory.policy, &self.inventory.name, dropped.len());
            self.name_dropped(&dropped);
        }
        match dropped.first() {
            Some(DroppedLabel { key, reason }) if dropped.len() == count => {
                Err(format!("none of its labels can be used; {:?}: {}", shown(key), shown(reason)))
            }
            None => Ok(labels),
            Some(_) => {
                let stays = |key: &str| dropped.iter().any(|dropped| dropped.key == key);
                let before = before.into_iter().flat_map(InventoryLabels::iter);
                let all = labels.iter().chain(before.filter(|(key, _)| stays(key)));
                let all = all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
                Ok(self.inventory.accept(all).0)
            }
        }
    }

    /// Logs each dropped key once.
    fn name_dropped(&self, dropped: &[DroppedLabel]) {
        let mut named = self.named.lock();
        for DroppedLabel { key, reason } in dropped {
            let (key, reason) = (shown(key), shown(reason));
            if named.len() < NAMED_MAX && named.insert(key.clone()) {
                let Inventory { policy, name, .. } = &*self.inventory;
                tracing::warn!(
                    policy = &**policy,
                    inventory = &**name,
                    ?key,
                    reason,
                    "a label of an inventory is not used"
                );
            }
        }
    }

    /// Logs each reason once for which a part of an answer is not used.
    fn name_once(&self, why: &str, what: &str) {
        let (why, mut named) = (shown(why), self.named.lock());
        if named.len() < NAMED_MAX && named.insert(why.clone()) {
            let Inventory { policy, name, .. } = &*self.inventory;
            tracing::warn!(policy = &**policy, inventory = &**name, why, "{what}");
        }
    }
}

/// A text of an inventory, cut for a message.
fn shown(text: &str) -> String {
    let mut text = text.to_owned();
    text::cut(&mut text, SHOWN_MAX);
    text
}

/// Adds a page to `items`. Returns the URL of the next one as well.
async fn with_page(mut items: Items, body: Vec<u8>) -> Result<(Items, Option<String>), Fault> {
    let (next, items) = beside(move || (items.add_page(&body), items)).await?;
    Ok((items, next.map_err(not_understood)?))
}

/// Does work beside the threads that answer reviews.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Fault::OfNode(format!("its answer could not be evaluated: {error}")))
}

fn not_understood(why: Cow<'static, str>) -> Fault {
    Fault::OfNode(format!("its answer cannot be used: {why}"))
}

/// A number between 0 and 1. Every hasher of the standard library has other keys.
fn random() -> f64 {
    let bits = RandomState::new().hash_one(0_u8) >> 32;
    f64::from(u32::try_from(bits).unwrap_or_default()) / f64::from(u32::MAX)
}
