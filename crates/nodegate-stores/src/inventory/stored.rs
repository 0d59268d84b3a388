//! The answers in ConfigMaps, so that every replica has them, and a new leader does not begin without them.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use futures_util::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use tokio::time::Instant;

use super::cache::{InventoryCache, SHARDS, Shard};
use super::source::Living;
use nodegate_base::kube_error::in_words;
use nodegate_base::metrics::InventoryMetrics;
use nodegate_base::object_watch::{WatchFailures, watch_objects};
use nodegate_policy::{InventoryAnswers, InventoryLabels, InventoryQuestion};

/// The prefix of the names of the ConfigMaps; a number of two digits follows.
pub const NAME_PREFIX: &str = "nodegate-inventory-";
/// The label of the ConfigMaps.
const LABEL: (&str, &str) = ("nodegate.dev/content", "inventory");
/// The data key.
const KEY: &str = "answers.json.gz";
/// Maximum size of the compressed answers of a shard, in bytes; a ConfigMap holds 1 MiB.
const COMPRESSED_MAX: usize = 900 * 1024;
/// Maximum size of the answers of a shard, in bytes. Every replica holds all shards, so whoever may write the ConfigMaps must not be
/// able to fill its memory. 100,000 nodes with ten labels each need half of it.
const TEXT_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of texts in the answers of a shard: names, keys and values.
const TEXTS_MAX: usize = 100_000;
/// The entry among the labels of an answer that holds the hash of the question. No inventory can give a key of this prefix.
const QUESTION: &str = "nodegate.dev/question";
/// How long changes are gathered before they are written: as long as the last writes took, so many times, within these limits. So a
/// single answer is stored at once, and while a fleet is asked for the first time, most of its answers share a write.
const GATHER: (u32, Duration, Duration) = (9, Duration::from_millis(250), Duration::from_secs(5));
/// How soon a failed write is retried.
const RETRY: Duration = Duration::from_secs(5);
/// The field manager of nodegate's writes.
const FIELD_MANAGER: &str = "nodegate";

/// The answers of a shard: by node, by inventory, by key.
type Document = BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>;

fn name_of(at: usize) -> String {
    format!("{NAME_PREFIX}{at:02}")
}

/// The shard of a ConfigMap; `None` if it is none.
fn shard_of(config_map: &ConfigMap) -> Option<usize> {
    let at = config_map.metadata.name.as_deref()?.strip_prefix(NAME_PREFIX)?.parse().ok()?;
    (at < SHARDS && config_map.name_any() == name_of(at)).then_some(at)
}

/// Whether the answers of a shard are within the limits. Every entry of JSON has a key, and every text has two quotation marks.
fn is_bounded(text: &[u8]) -> bool {
    text.len() <= TEXT_MAX && text.iter().filter(|byte| **byte == b'"').count() / 2 <= TEXTS_MAX
}

/// The answers in a ConfigMap. Labels that are not valid are left out: the leader asks again.
///
/// # Errors
/// Returns a sentence if the answers cannot be read. This says nothing about nodes.
fn content(config_map: &ConfigMap) -> Result<Shard, String> {
    let bytes = config_map.binary_data.as_ref().and_then(|data| data.get(KEY));
    let bytes = bytes.ok_or_else(|| format!("it has no {KEY:?} in binaryData"))?;
    let mut text = String::new();
    let read = GzDecoder::new(&*bytes.0).take(TEXT_MAX as u64 + 1).read_to_string(&mut text);
    read.map_err(|error| format!("{KEY:?} is not compressed text: {error}"))?;
    if !is_bounded(text.as_bytes()) {
        return Err(format!("{KEY:?} has more than {} MiB, or more than {TEXTS_MAX} texts", TEXT_MAX >> 20));
    }
    // The message of the parser could repeat the text.
    let document: Document =
        serde_json::from_str(&text).map_err(|error| format!("{KEY:?} has no answers in line {}", error.line()))?;
    let mut ids: HashSet<Arc<str>> = HashSet::new();
    let mut shard = Shard::new();
    for (node, written) in document {
        let mut answers = InventoryAnswers::default();
        for (id, mut labels) in written {
            let question = labels.remove(QUESTION).and_then(|text| InventoryQuestion::parse(&text));
            let id = ids.get(&*id).cloned().unwrap_or_else(|| {
                let id: Arc<str> = id.into();
                ids.insert(id.clone());
                id
            });
            answers = answers.with(&id, Some(Arc::new(InventoryLabels::checked(labels).0.to(question))));
        }
        shard.insert(node.into(), Arc::new(answers));
    }
    Ok(shard)
}

/// The bytes of a shard of at most `most` bytes, and the number of nodes that do not fit. Nodes that do not exist are left out first.
fn bytes(shard: &Shard, lives: impl Fn(&str) -> bool, most: usize) -> io::Result<(Vec<u8>, usize)> {
    let entry = |labels: &InventoryLabels| -> BTreeMap<String, String> {
        let question = labels.question().map(|question| (QUESTION.to_owned(), question.to_string()));
        labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).chain(question).collect()
    };
    let mut nodes: Vec<(&Arc<str>, &Arc<InventoryAnswers>)> = shard.iter().collect();
    nodes.sort_unstable_by_key(|(node, _)| (!lives(node), *node));
    // `None` if they do not fit.
    let first = |count: usize| -> io::Result<Option<Vec<u8>>> {
        let answers =
            |answers: &InventoryAnswers| answers.iter().map(|(id, labels)| (id.to_string(), entry(labels))).collect();
        let document: Document = nodes[..count].iter().map(|(node, all)| (node.to_string(), answers(all))).collect();
        let text = serde_json::to_vec(&document)?;
        if !is_bounded(&text) {
            return Ok(None);
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&text)?;
        Ok(Some(encoder.finish()?).filter(|bytes| bytes.len() <= most))
    };
    if let Some(all) = first(nodes.len())? {
        return Ok((all, 0));
    }
    // As many as fit: `fits` nodes do, and `exceeds` do not.
    let (mut fits, mut exceeds) = (0, nodes.len());
    let mut fitting = first(0)?.unwrap_or_default();
    while exceeds - fits > 1 {
        let count = fits.midpoint(exceeds);
        match first(count)? {
            Some(bytes) => (fits, fitting) = (count, bytes),
            None => exceeds = count,
        }
    }
    Ok((fitting, nodes.len() - fits))
}

/// The label selector of the ConfigMaps.
pub fn selector() -> String {
    format!("{}={}", LABEL.0, LABEL.1)
}

/// A ConfigMap whose answers cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableAnswers {
    /// Its name.
    pub config_map: String,
    /// The reason, as a sentence.
    pub why: String,
}

/// Reads the answers once. Returns the ConfigMaps that cannot be read; the cache keeps what it knows about their nodes.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub async fn read(
    client: &Client,
    namespace: &str,
    cache: &InventoryCache,
) -> Result<Vec<UnreadableAnswers>, kube::Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mut unreadable = Vec::new();
    for config_map in api.list(&ListParams::default().labels(&selector())).await? {
        let Some(at) = shard_of(&config_map) else { continue };
        match content(&config_map) {
            Ok(shard) => cache.replace(at, shard),
            Err(why) => unreadable.push(UnreadableAnswers { config_map: name_of(at), why }),
        }
    }
    Ok(unreadable)
}

/// Reads the answers until that works. A watch may lag behind what the last leader wrote.
pub(super) async fn read_at_last(client: &Client, namespace: &str, cache: &InventoryCache) {
    while let Err(error) = read(client, namespace, cache).await {
        let error = in_words(&error);
        tracing::warn!(error, "could not read the stored answers of inventories; retrying");
        tokio::time::sleep(RETRY).await;
    }
}

/// Takes over what a watch shows, and reports what cannot be read.
struct Follower<'a> {
    cache: &'a InventoryCache,
    metrics: &'a InventoryMetrics,
    unreadable: HashSet<usize>,
}

impl Follower<'_> {
    fn take(&mut self, at: usize, config_map: &ConfigMap) {
        match content(config_map) {
            Ok(shard) => {
                self.unreadable.remove(&at);
                self.cache.take_stored(at, shard);
            }
            Err(why) => {
                if self.unreadable.insert(at) {
                    tracing::warn!(
                        config_map = name_of(at),
                        why,
                        "stored answers of inventories cannot be read; the last ones stay in force, and the leader stores its own"
                    );
                }
                self.cache.refuse_stored(at);
            }
        }
        self.metrics.set_unreadable(self.unreadable.len());
    }

    fn is_gone(&mut self, at: usize) {
        self.unreadable.remove(&at);
        self.metrics.set_unreadable(self.unreadable.len());
        self.cache.take_stored(at, Shard::new());
    }
}

/// Keeps the cache equal to the ConfigMaps while another replica writes them; runs until dropped. Calls `synced` once after
/// the first complete listing.
pub async fn follow(
    client: Client,
    namespace: &str,
    cache: &InventoryCache,
    metrics: &InventoryMetrics,
    synced: impl FnOnce(),
) {
    let mut follower = Follower { cache, metrics, unreadable: HashSet::new() };
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let stream = watch_objects(api, watcher::Config::default().labels(&selector()));
    let mut stream = std::pin::pin!(stream);
    let mut synced = Some(synced);
    let mut listed = HashSet::new();
    let mut failing = WatchFailures::default();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(config_map)) => {
                if let Some(at) = shard_of(&config_map) {
                    listed.insert(at);
                    follower.take(at, &config_map);
                }
            }
            Ok(Event::InitDone) => {
                let gone = (0..SHARDS).filter(|at| !listed.contains(at) && !cache.shard(*at).is_empty());
                gone.for_each(|at| follower.is_gone(at));
                failing.works();
                if let Some(synced) = synced.take() {
                    synced();
                }
            }
            Ok(Event::Apply(config_map)) => {
                if let Some(at) = shard_of(&config_map) {
                    follower.take(at, &config_map);
                }
            }
            Ok(Event::Delete(config_map)) => {
                if let Some(at) = shard_of(&config_map) {
                    follower.is_gone(at);
                }
            }
            Err(error) => {
                if let Some(error) = failing.news(&error) {
                    tracing::warn!(%error, "the watch of inventories' answers failed; retrying");
                }
            }
        }
    }
}

/// Keeps the ConfigMaps equal to the cache; runs until dropped. Only the leader runs this, and it writes only what differs.
pub(super) async fn keep(
    client: Client,
    namespace: &str,
    cache: &InventoryCache,
    living: Living<'_>,
    metrics: &InventoryMetrics,
) {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let mut unstored = [0; SHARDS];
    // The last leader, or this one in an earlier session, may have ended before it wrote everything.
    (0..SHARDS).for_each(|at| cache.mark(at));
    loop {
        let changed = cache.changed().await;
        let (began, mut failed) = (Instant::now(), None);
        let living: HashSet<Arc<str>> = living().into_iter().map(|node| node.name).collect();
        for (at, nodes) in changed {
            match write(&api, at, &cache.shard(at), |node| living.contains(node)).await {
                Ok(left_out) => {
                    unstored[at] = left_out;
                    metrics.set_unstored(unstored.iter().sum());
                }
                Err(error) => {
                    cache.mark(at);
                    failed = Some(error);
                }
            }
            // If an answer cannot be stored, it is used all the same.
            cache.tell(nodes);
        }
        if let Some(error) = &failed {
            let error = in_words(error);
            tracing::warn!(error, "could not store the answers of inventories; retrying");
        }
        let (times, shortest, longest) = GATHER;
        let gather = (began.elapsed() * times).clamp(shortest, longest);
        tokio::time::sleep(if failed.is_some() { RETRY } else { gather }).await;
    }
}

/// Writes a shard if it differs from what is stored. Returns the number of nodes whose answers do not fit.
async fn write(
    api: &Api<ConfigMap>,
    at: usize,
    shard: &Shard,
    lives: impl Fn(&str) -> bool,
) -> Result<usize, kube::Error> {
    let name = name_of(at);
    let there = api.get_opt(&name).await?;
    if there.is_none() && shard.is_empty() {
        return Ok(0);
    }
    let (bytes, left_out) = bytes(shard, lives, COMPRESSED_MAX).map_err(|error| kube::Error::Service(error.into()))?;
    let mut wanted = there.clone().unwrap_or_default();
    wanted.data = None;
    wanted.binary_data = Some(BTreeMap::from([(KEY.to_owned(), ByteString(bytes))]));
    wanted.labels_mut().insert(LABEL.0.to_owned(), LABEL.1.to_owned());
    let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match there {
        Some(there) if there == wanted => return Ok(left_out),
        // The resource version is the one that was read, so a concurrent write makes this one fail.
        Some(_) => api.replace(&name, &parameters, &wanted).await.map(drop)?,
        None => {
            let labels = wanted.metadata.labels;
            wanted.metadata = ObjectMeta { name: Some(name.clone()), labels, ..ObjectMeta::default() };
            api.create(&parameters, &wanted).await.map(drop)?;
        }
    }
    if left_out > 0 {
        tracing::warn!(
            config_map = name,
            nodes = left_out,
            "the answers about these nodes do not fit into the ConfigMap; after a restart they are unknown until the inventory answers again"
        );
    }
    Ok(left_out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
