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
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};

use super::cache::{InventoryCache, SHARDS, Shard};
use crate::kube_error::{in_words, is_expired};
use crate::telemetry::brief;
use nodegate_policy::{InventoryAnswers, InventoryLabels, InventoryQuestion};

/// The prefix of the names of the ConfigMaps; a number of two digits follows.
pub const NAME_PREFIX: &str = "nodegate-inventory-";
/// The label of the ConfigMaps.
const LABEL: (&str, &str) = ("nodegate.dev/content", "inventory");
/// The data key.
const KEY: &str = "answers.json.gz";
/// Maximum size of the compressed answers of a shard, in bytes; a ConfigMap holds 1 MiB.
const COMPRESSED_MAX: usize = 900 * 1024;
/// Maximum size of the answers of a shard, in bytes.
const TEXT_MAX: u64 = 256 * 1024 * 1024;
/// The entry among the labels of an answer that holds the hash of the question. No inventory can give a key of this prefix.
const QUESTION: &str = "nodegate.dev/question";
/// How long changes are gathered before they are written.
const GATHER: Duration = Duration::from_millis(250);
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

/// The answers in a ConfigMap. What is not valid is left out: the leader asks again.
fn content(config_map: &ConfigMap) -> Shard {
    let bytes = config_map.binary_data.as_ref().and_then(|data| data.get(KEY));
    let document: Option<Document> = bytes.and_then(|bytes| {
        let mut text = String::new();
        GzDecoder::new(&*bytes.0).take(TEXT_MAX).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    });
    let mut ids: HashSet<Arc<str>> = HashSet::new();
    let mut shard = Shard::new();
    for (node, written) in document.into_iter().flatten() {
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
    shard
}

/// The bytes of a shard. Nodes that do not fit are left out; how many is returned.
fn bytes(shard: &Shard) -> io::Result<(Vec<u8>, usize)> {
    let entry = |labels: &InventoryLabels| -> BTreeMap<String, String> {
        let question = labels.question().map(|question| (QUESTION.to_owned(), question.to_string()));
        labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).chain(question).collect()
    };
    let mut document: Document = shard
        .iter()
        .map(|(node, answers)| {
            (node.to_string(), answers.iter().map(|(id, labels)| (id.to_string(), entry(labels))).collect())
        })
        .collect();
    loop {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&serde_json::to_vec(&document)?)?;
        let bytes = encoder.finish()?;
        if bytes.len() <= COMPRESSED_MAX {
            return Ok((bytes, shard.len() - document.len()));
        }
        let half = document.len() / 2;
        document = document.into_iter().take(half).collect();
    }
}

/// The label selector of the ConfigMaps.
pub fn selector() -> String {
    format!("{}={}", LABEL.0, LABEL.1)
}

/// Reads the answers once.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub async fn read(client: &Client, namespace: &str, cache: &InventoryCache) -> Result<(), kube::Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    for config_map in api.list(&ListParams::default().labels(&selector())).await? {
        if let Some(at) = shard_of(&config_map) {
            cache.take_stored(at, content(&config_map));
        }
    }
    Ok(())
}

/// Keeps the cache equal to the ConfigMaps while another replica writes them; runs until dropped. Calls `synced` once after
/// the first complete listing.
pub async fn follow(client: Client, namespace: &str, cache: &InventoryCache, synced: impl FnOnce()) {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let stream = watcher::watcher(api, watcher::Config::default().labels(&selector())).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let mut synced = Some(synced);
    let mut listed = HashSet::new();
    let mut failing: Option<String> = None;
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(config_map)) => {
                if let Some(at) = shard_of(&config_map) {
                    listed.insert(at);
                    cache.take_stored(at, content(&config_map));
                }
            }
            Ok(Event::InitDone) => {
                let gone = (0..SHARDS).filter(|at| !listed.contains(at) && !cache.shard(*at).is_empty());
                gone.for_each(|at| cache.take_stored(at, Shard::new()));
                failing = None;
                if let Some(synced) = synced.take() {
                    synced();
                }
            }
            Ok(Event::Apply(config_map)) => {
                if let Some(at) = shard_of(&config_map) {
                    cache.take_stored(at, content(&config_map));
                }
            }
            Ok(Event::Delete(config_map)) => {
                if let Some(at) = shard_of(&config_map) {
                    cache.take_stored(at, Shard::new());
                }
            }
            Err(error) if is_expired(&error) => {}
            Err(error) => {
                let error = brief(in_words(&error));
                if failing.as_ref() != Some(&error) {
                    tracing::warn!(%error, "the watch of inventories' answers failed; retrying");
                    failing = Some(error);
                }
            }
        }
    }
}

/// Keeps the ConfigMaps equal to the cache; runs until dropped. Only the leader runs this, and it writes only what differs.
pub(super) async fn keep(client: Client, namespace: &str, cache: &InventoryCache) {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    loop {
        let changed = cache.changed().await;
        let mut failed = None;
        for (at, nodes) in changed {
            if let Err(error) = write(&api, at, &cache.shard(at)).await {
                cache.mark(at);
                failed = Some(error);
            }
            // If an answer cannot be stored, it is used all the same.
            cache.tell(nodes);
        }
        if let Some(error) = &failed {
            let error = in_words(error);
            tracing::warn!(error, "could not store the answers of inventories; retrying");
        }
        tokio::time::sleep(if failed.is_some() { RETRY } else { GATHER }).await;
    }
}

async fn write(api: &Api<ConfigMap>, at: usize, shard: &Shard) -> Result<(), kube::Error> {
    let name = name_of(at);
    let there = api.get_opt(&name).await?;
    if there.is_none() && shard.is_empty() {
        return Ok(());
    }
    let (bytes, left_out) = bytes(shard).map_err(|error| kube::Error::Service(error.into()))?;
    if left_out > 0 {
        tracing::warn!(
            config_map = name,
            nodes = left_out,
            "the answers about these nodes do not fit into the ConfigMap; after a restart they are unknown until the inventory answers again"
        );
    }
    let mut wanted = there.clone().unwrap_or_default();
    wanted.data = None;
    wanted.binary_data = Some(BTreeMap::from([(KEY.to_owned(), ByteString(bytes))]));
    wanted.labels_mut().insert(LABEL.0.to_owned(), LABEL.1.to_owned());
    let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match there {
        Some(there) if there == wanted => Ok(()),
        // The resource version is the one that was read, so a concurrent write makes this one fail.
        Some(_) => api.replace(&name, &parameters, &wanted).await.map(drop),
        None => {
            wanted.metadata = ObjectMeta { name: Some(name), labels: wanted.metadata.labels, ..ObjectMeta::default() };
            api.create(&parameters, &wanted).await.map(drop)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shard(nodes: usize, value: impl Fn(usize) -> String) -> Shard {
        let id: Arc<str> = "fleet/cmdb".into();
        let labels = |number| {
            let entries = BTreeMap::from([("rack.example.com/row".to_owned(), value(number))]);
            Some(Arc::new(InventoryLabels::checked(entries).0))
        };
        let node =
            |number| (format!("node-{number}").into(), Arc::new(InventoryAnswers::default().with(&id, labels(number))));
        (0..nodes).map(node).collect()
    }

    fn config_map(bytes: Vec<u8>) -> ConfigMap {
        ConfigMap { binary_data: Some(BTreeMap::from([(KEY.to_owned(), ByteString(bytes))])), ..ConfigMap::default() }
    }

    #[test]
    fn a_shard_is_read_as_it_was_written_and_written_in_one_way() {
        let written = shard(500, |number| format!("row-{number}"));
        let (stored, left_out) = bytes(&written).unwrap();
        assert_eq!(left_out, 0);
        assert_eq!(content(&config_map(stored.clone())), written);
        assert_eq!(bytes(&content(&config_map(stored.clone()))).unwrap().0, stored);
    }

    #[test]
    fn unreadable_answers_are_none_and_invalid_labels_are_left_out() {
        assert!(content(&ConfigMap::default()).is_empty());
        assert!(content(&config_map(b"no".to_vec())).is_empty());
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(br#"{"n": {"p/i": {"a b": "c", "nodegate.dev/x": "y", "ok": "yes"}}}"#).unwrap();
        let read = content(&config_map(encoder.finish().unwrap()));
        let answer = read["n"].of("p/i").unwrap();
        assert_eq!((answer.iter().collect::<Vec<_>>(), answer.question()), (vec![("ok", "yes")], None));
    }

    #[test]
    fn the_question_of_an_answer_is_stored_with_it() {
        let id: Arc<str> = "fleet/cmdb".into();
        let question = InventoryQuestion::parse("00ab12cd34ef5678");
        let answer = InventoryLabels::checked(BTreeMap::from([("rack".to_owned(), "7".to_owned())])).0.to(question);
        assert!(question.is_some());
        let answers = InventoryAnswers::default().with(&id, Some(Arc::new(answer)));
        let written = Shard::from([("n1".into(), Arc::new(answers))]);
        assert_eq!(content(&config_map(bytes(&written).unwrap().0)), written);
    }

    #[test]
    fn a_name_is_that_of_a_shard_or_of_nothing() {
        let named = |name: &str| {
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            shard_of(&ConfigMap { metadata, ..ConfigMap::default() })
        };
        assert_eq!(named("nodegate-inventory-07"), Some(7));
        for name in ["nodegate-inventory-7", "nodegate-inventory-99", "nodegate-inventory-", "nodegate-in-force"] {
            assert_eq!(named(name), None, "{name}");
        }
    }
}
