//! What is known of the cluster: a function of the news and the time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::feed::{Feed, ROWS_MAX, Row, What};
use super::news::{Failure, News, Node, Published, Record, Sight, Source, Survey, Told};
use super::rows;
use nodegate_controller::leader::Held;
use nodegate_controller::tell::published;
use nodegate_policy::PendingTaints;
use nodegate_policy::api::state::Change;

/// How old what is listed at the start may be to be shown as something that happened.
const RECENT: SignedDuration = SignedDuration::from_mins(10);
/// Reasons of events that say what the record of a node tells key by key, or the node itself.
const TOLD_OTHERWISE: [&str; 5] = ["Admitted", "Completed", "Restored", "Released", "ClaimRejected"];

/// How a source is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Status {
    /// Nothing has come from it yet.
    #[default]
    Waiting,
    /// It works.
    Works,
    /// It fails.
    Failing {
        /// Since when.
        since: Timestamp,
        /// Why, in words.
        why: String,
    },
    /// The user may not read it.
    Denied,
}

/// A node, and what was seen of it here.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) node: Node,
    /// When its creation was seen; `None` if it was there before.
    joined: Option<Timestamp>,
}

/// Who holds the Lease, as it was read last.
#[derive(Debug)]
pub(super) struct Leader {
    pub(super) held: Held,
    /// When it was read last.
    pub(super) read: Timestamp,
    /// When it was read first with this renewal, without a failure since.
    renewed: Timestamp,
}

impl Leader {
    /// For how long it has been seen not to be renewed, if that is longer than it is valid.
    pub(super) fn silence(&self) -> Option<SignedDuration> {
        let silence = self.read.duration_since(self.renewed);
        // Negative if the clock was set back.
        Duration::try_from(silence).is_ok_and(|silence| silence > self.held.valid_for()).then_some(silence)
    }
}

/// What is known.
#[derive(Debug)]
pub(super) struct State {
    pub(super) nodes: HashMap<Arc<str>, Seen>,
    pub(super) feed: Feed,
    pub(super) leader: Option<Leader>,
    pub(super) published: Published,
    /// How many pods of nodegate are ready, and how many there are.
    pub(super) pods: Option<(usize, usize)>,
    pub(super) survey: Option<(Timestamp, Survey)>,
    statuses: HashMap<Source, Status>,
    /// Sources that are listed again and again, because the user may not watch them.
    pub(super) not_watched: HashSet<Source>,
    /// Sources that have been listed once.
    listed: HashSet<Source>,
    /// What the listing under way has named, by source.
    naming: HashMap<Source, HashSet<String>>,
    /// The last change of each record that was shown, by the record's ConfigMap.
    shown: HashMap<String, u64>,
    /// When each event happened last, by its name. Its time alone does not say whether it is new: whoever may create events
    /// chooses it.
    told: HashMap<String, Timestamp>,
    /// Rows of the first listing, which has no order.
    early: Vec<Row>,
    pending: PendingTaints,
    started: Timestamp,
}

impl State {
    /// Nothing is known. `pending`: the taints of nodes that wait.
    pub(super) fn new(pending: PendingTaints, now: Timestamp) -> Self {
        Self {
            nodes: HashMap::new(),
            feed: Feed::default(),
            leader: None,
            published: Published::default(),
            pods: None,
            survey: None,
            statuses: HashMap::new(),
            not_watched: HashSet::new(),
            listed: HashSet::new(),
            naming: HashMap::new(),
            shown: HashMap::new(),
            told: HashMap::new(),
            early: Vec::new(),
            pending,
            started: now,
        }
    }

    /// How a source is doing.
    pub(super) fn status(&self, source: Source) -> &Status {
        self.statuses.get(&source).unwrap_or(&Status::Waiting)
    }

    /// Whether all of a source has been listed.
    pub(super) fn is_listed(&self, source: Source) -> bool {
        self.listed.contains(&source)
    }

    /// The nodes that wait, the newest first.
    pub(super) fn waiting(&self) -> Vec<&Node> {
        let mut waiting: Vec<&Node> =
            self.nodes.values().map(|seen| &seen.node).filter(|node| node.pending.is_some()).collect();
        waiting.sort_unstable_by(|one, other| other.created.cmp(&one.created).then_with(|| one.name.cmp(&other.name)));
        waiting
    }

    /// Why a node waits, as the last pass over all nodes found it.
    pub(super) fn why_waiting(&self, node: &str) -> Option<&str> {
        let (_, survey) = self.survey.as_ref()?;
        survey.waiting.get(node).map(String::as_str)
    }

    /// Takes a piece of news.
    pub(super) fn apply(&mut self, news: News, now: Timestamp) {
        match news {
            News::Begins(source) => drop(self.naming.insert(source, HashSet::new())),
            News::Listed(source) => self.is_complete(source, now),
            News::Failed(source, failure) => self.failed(source, failure, now),
            News::NotWatched(source) => drop(self.not_watched.insert(source)),
            News::Watched(source) => drop(self.not_watched.remove(&source)),
            News::Node(node) => self.node(node, now),
            News::NodeGone(name) => self.node_gone(&name, now),
            News::Record(sight, record) => self.record(sight, &record, now),
            News::RecordGone(config_map) if config_map == published::NAME => self.published = Published::default(),
            News::RecordGone(config_map) => drop(self.shown.remove(&config_map)),
            News::Published(published) => {
                self.named(Source::Records, published::NAME);
                self.published = published;
            }
            News::Event(sight, told) => self.event(sight, told, now),
            News::EventGone(event) => drop(self.told.remove(&event)),
            News::Lease(held) => self.lease(held, now),
            News::Pods(ready, all) => {
                self.works(Source::Pods);
                self.pods = Some((ready, all));
            }
            News::Survey(survey) => {
                self.works(Source::Survey);
                self.survey = Some((now, survey));
            }
        }
    }

    fn works(&mut self, source: Source) {
        self.statuses.insert(source, Status::Works);
    }

    fn failed(&mut self, source: Source, failure: Failure, now: Timestamp) {
        let since = match self.status(source) {
            Status::Failing { since, .. } => *since,
            Status::Waiting | Status::Works | Status::Denied => now,
        };
        let status = match failure {
            Failure::Denied => Status::Denied,
            Failure::Other(why) => Status::Failing { since, why },
        };
        self.statuses.insert(source, status);
    }

    /// A listing is complete: what it did not name is gone.
    fn is_complete(&mut self, source: Source, now: Timestamp) {
        self.works(source);
        let named = self.naming.remove(&source).unwrap_or_default();
        match source {
            Source::Nodes => {
                let all = self.nodes.keys().filter(|name| !named.contains(&***name));
                for name in all.cloned().collect::<Vec<_>>() {
                    self.node_gone(&name, now);
                }
            }
            Source::Records => {
                self.shown.retain(|config_map, _| named.contains(config_map));
                if !named.contains(published::NAME) {
                    self.published = Published::default();
                }
            }
            Source::Events => self.told.retain(|event, _| named.contains(event)),
            Source::Lease | Source::Pods | Source::Survey => {}
        }
        let is_first = self.listed.insert(source);
        if is_first && !self.early.is_empty() {
            self.feed.merge(std::mem::take(&mut self.early));
        }
    }

    /// Takes note that this object exists, for the end of the listing under way. Without one, the news shows that the source works.
    fn named(&mut self, source: Source, name: &str) {
        match self.naming.get_mut(&source) {
            Some(named) => drop(named.insert(name.to_owned())),
            None => self.works(source),
        }
    }

    /// Adds a row. Those of the first listing have no order before it is complete.
    fn add(&mut self, sight: Sight, source: Source, row: Row) {
        if sight == Sight::Changed || self.is_listed(source) {
            self.feed.add(row);
            return;
        }
        self.early.push(row);
        if self.early.len() >= 2 * ROWS_MAX {
            self.early.sort_by_key(|row| std::cmp::Reverse(row.time));
            self.early.truncate(ROWS_MAX);
        }
    }

    fn node(&mut self, node: Node, now: Timestamp) {
        let is_new = self.is_listed(Source::Nodes);
        self.named(Source::Nodes, &node.name);
        let name = node.name.clone();
        let before = self.nodes.get(&name).filter(|seen| seen.node.uid == node.uid);
        let joined = before.map_or_else(|| is_new.then_some(now), |seen| seen.joined);
        match before {
            None if is_new => {
                let text = match &node.pending {
                    Some(key) => format!("waits with {key}"),
                    None => "waits for nothing".to_owned(),
                };
                self.feed.add(Row::new(now, &name, What::Joined, text));
            }
            Some(seen) if seen.node.pending.is_some() && node.pending.is_none() => {
                let after = match seen.joined {
                    Some(joined) => format!("{} after it joined", precisely(now.duration_since(joined))),
                    None => {
                        let age = node.created.map(|created| age(now.duration_since(created)));
                        format!("{} after it was created", age.unwrap_or_else(|| "some time".to_owned()))
                    }
                };
                self.feed.add(Row::new(now, &name, What::Complete, format!("pending taint removed {after}")));
            }
            None | Some(_) => {}
        }
        self.nodes.insert(name, Seen { node, joined });
    }

    fn node_gone(&mut self, name: &str, now: Timestamp) {
        if self.nodes.remove(name).is_some() {
            self.feed.add(Row::new(now, name, What::Deleted, String::new()));
        }
    }

    fn record(&mut self, sight: Sight, record: &Record, now: Timestamp) {
        let Record { config_map, node, changes } = record;
        self.named(Source::Records, config_map);
        let newest = changes.iter().map(|change| change.id).max().unwrap_or_default();
        let shown = self.shown.insert(config_map.clone(), newest);
        let is_first = !self.is_listed(Source::Records);
        let recent = self.started.checked_sub(RECENT).ok();
        let is_news = |change: &Change| match shown {
            Some(shown) => change.id > shown,
            None if is_first => change.time.parse::<Timestamp>().is_ok_and(|time| Some(time) >= recent),
            None => true,
        };
        for row in rows::of_history(node, changes, is_news, (&self.pending, now)) {
            self.add(sight, Source::Records, row);
        }
    }

    fn event(&mut self, sight: Sight, told: Told, now: Timestamp) {
        self.named(Source::Events, &told.event);
        let recent = self.started.checked_sub(RECENT).ok();
        let is_new = self.told.insert(told.event, told.time) != Some(told.time);
        let is_news = is_new && (sight == Sight::Changed || Some(told.time) >= recent);
        let has_records = matches!(self.status(Source::Records), Status::Works | Status::Waiting);
        if !is_news || (has_records && TOLD_OTHERWISE.contains(&&*told.reason)) {
            return;
        }
        let what = if told.is_warning { What::Warning } else { What::Told };
        let row = Row::new(told.time.min(now), &told.about, what, format!("{}: {}", told.reason, told.note));
        self.add(sight, Source::Events, row);
    }

    fn lease(&mut self, held: Option<Held>, now: Timestamp) {
        // While it could not be read, its holder could not renew it either, or has done so unseen.
        let was_read = self.is_current(Source::Lease);
        self.works(Source::Lease);
        self.leader = held.map(|held| {
            let same = self.leader.as_ref().filter(|leader| was_read && leader.held == held);
            Leader { renewed: same.map_or(now, |leader| leader.renewed), read: now, held }
        });
    }

    /// How many nodes there are, and how many of them are ready.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.nodes.len(), self.nodes.values().filter(|seen| seen.node.is_ready).count())
    }

    /// The sources that fail, with since when and why the first of them does. The others may fail for other reasons.
    pub(super) fn failing(&self) -> Option<(Vec<Source>, Timestamp, &str)> {
        let is_failing = |source: &Source| matches!(self.status(*source), Status::Failing { .. });
        let failing: Vec<Source> = Source::ALL.into_iter().filter(is_failing).collect();
        match self.status(*failing.first()?) {
            Status::Failing { since, why } => Some((failing, *since, why)),
            Status::Waiting | Status::Works | Status::Denied => None,
        }
    }

    /// Whether what is known of a source is what it says now.
    pub(super) fn is_current(&self, source: Source) -> bool {
        *self.status(source) == Status::Works
    }

    /// The sources that the user may not read.
    pub(super) fn denied(&self) -> Vec<Source> {
        Source::ALL.into_iter().filter(|source| *self.status(*source) == Status::Denied).collect()
    }
}

/// A duration in its largest unit, as `kubectl` shows ages.
pub(super) fn age(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A short duration, with tenths of a second.
fn precisely(duration: SignedDuration) -> String {
    match duration.as_millis().max(0) {
        tenths @ 0..60_000 => format!("{}.{} s", tenths / 1000, tenths % 1000 / 100),
        _ => age(duration),
    }
}
