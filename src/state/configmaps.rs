//! Saved state in ConfigMaps: `node-labels-<node>` with the document under `state.json`, compatible with the label
//! operator.
//!
//! The name of a ConfigMap does not matter: a document is found by its identity or `nodeName`. If the usual name is
//! too long, or used by another node's document, the ConfigMap gets another name.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::broadcast;

use super::stored_map::StoredMap;
use super::{Identity, Machine, SavedStates};
use crate::kube_error::{in_words, is_expired};
use crate::object_watch::watch_objects;
use crate::telemetry::brief;
use nodegate_policy::api::state::SavedState;

/// The prefix of the names of nodegate's ConfigMaps.
pub const NAME_PREFIX: &str = "node-labels-";
/// The data key of the current document.
pub const STATE_KEY: &str = "state.json";
/// The prefix of the data keys of kept documents of other machines with the same name.
const ASIDE_PREFIX: &str = "state-";
/// The prefix of the data keys of unreadable texts.
const CORRUPT_PREFIX: &str = "corrupt-";
/// How many names of changed nodes are buffered for a slow receiver.
const TOUCHED_MAX: usize = 4096;
/// Maximum length of a ConfigMap's name (a DNS subdomain).
const NAME_MAX: usize = 253;

/// A document that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The ConfigMap.
    pub config_map: String,
    /// The node, according to the ConfigMap's name.
    pub node: String,
    /// The reason.
    pub why: String,
}

/// The location of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DocumentLocation {
    pub(super) config_map: String,
    pub(super) data_key: String,
}

/// What is known about one ConfigMap.
#[derive(Clone, Debug, Default)]
struct Known {
    version: u64,
    keys: Vec<String>,
}

#[derive(Debug, Default)]
struct Index {
    config_maps: HashMap<String, Known>,
    places: HashMap<String, DocumentLocation>,
}

/// The ConfigMaps of one namespace, mirrored in [`SavedStates`].
#[derive(Clone)]
pub struct ConfigMaps {
    pub(super) api: Api<ConfigMap>,
    pub(super) states: Arc<SavedStates>,
    index: Arc<Mutex<Index>>,
    touched: broadcast::Sender<String>,
}

impl ConfigMaps {
    /// The ConfigMaps of `namespace`.
    pub fn new(client: Client, namespace: &str, states: Arc<SavedStates>) -> Self {
        let (touched, _) = broadcast::channel(TOUCHED_MAX);
        Self { api: Api::namespaced(client, namespace), states, index: Arc::default(), touched }
    }

    /// The documents in the ConfigMaps.
    pub fn states(&self) -> &SavedStates {
        &self.states
    }

    /// The names of nodes whose documents others changed. A slow receiver loses names.
    pub fn touched(&self) -> broadcast::Receiver<String> {
        self.touched.subscribe()
    }

    /// Updates the states from the ConfigMaps; runs until dropped.
    ///
    /// Calls `synced` once after the first complete listing, and `report` for every document that cannot be read,
    /// which counts as empty.
    pub async fn follow(&self, synced: impl FnOnce(), mut report: impl FnMut(Problem)) {
        let mut synced = Some(synced);
        let mut listed: Vec<String> = Vec::new();
        let stream = watch_objects(self.api.clone(), watcher::Config::default());
        let mut stream = std::pin::pin!(stream);
        let mut failing: Option<String> = None;
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(config_map)) => {
                    listed.push(config_map.name_any());
                    self.apply(&config_map, &mut report);
                }
                Ok(Event::InitDone) => {
                    self.forget_all_but(&listed);
                    failing = None;
                    if let Some(synced) = synced.take() {
                        synced();
                    }
                }
                Ok(Event::Apply(config_map)) => self.apply(&config_map, &mut report),
                Ok(Event::Delete(config_map)) => self.forget(&config_map.name_any()),
                Err(error) if is_expired(&error) => {}
                Err(error) => {
                    let error = brief(in_words(&error));
                    if failing.as_ref() != Some(&error) {
                        tracing::warn!(%error, "the watch of saved state failed; retrying");
                        failing = Some(error);
                    }
                }
            }
        }
    }

    /// Reads all ConfigMaps once.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub async fn read(&self, mut report: impl FnMut(Problem)) -> Result<(), kube::Error> {
        self.read_each(&mut report, |_| {}).await
    }

    /// The document of a node that is known by now, with its history, which the states do not have.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub async fn with_history(&self, node: Machine<'_>) -> Result<Option<SavedState>, kube::Error> {
        let Some(state) = self.states.get(node) else { return Ok(None) };
        let Some(DocumentLocation { config_map, data_key }) = self.place(&Identity::key(&state)) else {
            return Ok(Some((*state).clone()));
        };
        let stored = self.api.get_opt(&config_map).await?;
        let whole = stored.and_then(|map| parse(map.data?.get(&data_key)?).ok());
        Ok(Some(whole.unwrap_or_else(|| (*state).clone())))
    }

    /// Reads all ConfigMaps once, and returns those that hold saved state.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub async fn stored(&self) -> Result<Vec<StoredMap>, kube::Error> {
        let mut stored = Vec::new();
        self.read_each(&mut drop, |config_map| stored.extend(StoredMap::of(config_map))).await?;
        Ok(stored)
    }

    /// Reads one ConfigMap, if it holds saved state.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub async fn stored_as(&self, name: &str) -> Result<Option<StoredMap>, kube::Error> {
        Ok(self.api.get_opt(name).await?.as_ref().and_then(StoredMap::of))
    }

    async fn read_each(
        &self,
        report: &mut impl FnMut(Problem),
        mut each: impl FnMut(&ConfigMap),
    ) -> Result<(), kube::Error> {
        let mut next = kube::api::ListParams::default().limit(500);
        loop {
            let page = self.api.list(&next).await?;
            for config_map in &page.items {
                self.apply(config_map, report);
                each(config_map);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => next = next.continue_token(&token),
                None => return Ok(()),
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Index> {
        // Every update of the index is complete, so a panic elsewhere leaves it usable.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes a ConfigMap that may have been written by others.
    fn apply(&self, config_map: &ConfigMap, report: &mut impl FnMut(Problem)) {
        if let Some(node) = self.take_up(config_map, report) {
            // There may be no receiver: only the leader has one.
            let _ = self.touched.send(node);
        }
    }

    /// Processes a ConfigMap unless this or a newer version is known already. Returns the nodes it belongs to.
    pub(super) fn take_up(&self, config_map: &ConfigMap, report: &mut impl FnMut(Problem)) -> Option<String> {
        let name = config_map.name_any();
        let node = name.strip_prefix(NAME_PREFIX)?;
        let version = version(config_map);
        let mut index = self.lock();
        if index.config_maps.get(&name).is_some_and(|known| known.version >= version && version < u64::MAX) {
            return None;
        }
        let (documents, problems) = documents(config_map, node);
        let keys: Vec<String> = documents.iter().map(|(_, state)| Identity::key(state)).collect();
        let before = index.config_maps.insert(name.clone(), Known { version, keys: keys.clone() }).unwrap_or_default();
        for gone in before.keys.iter().filter(|key| !keys.contains(key)) {
            index.places.remove(gone);
            self.states.remove(gone);
        }
        for ((data_key, state), key) in documents.into_iter().zip(keys) {
            // Another ConfigMap may have the same node. The first one stays, so that the result does not depend on
            // the order.
            let place = DocumentLocation { config_map: name.clone(), data_key };
            let taken = index.places.get(&key).is_some_and(|known| known.config_map < place.config_map);
            if !taken {
                index.places.insert(key, place);
                self.states.put(state);
            }
        }
        drop(index);
        problems.into_iter().for_each(report);
        Some(node.to_owned())
    }

    fn forget(&self, name: &str) {
        let mut index = self.lock();
        let known = index.config_maps.remove(name).unwrap_or_default();
        for key in known.keys {
            index.places.remove(&key);
            self.states.remove(&key);
        }
        drop(index);
        let _ = self.touched.send(name.strip_prefix(NAME_PREFIX).unwrap_or(name).to_owned());
    }

    fn forget_all_but(&self, listed: &[String]) {
        let listed: std::collections::HashSet<&str> = listed.iter().map(String::as_str).collect();
        let gone: Vec<String> =
            self.lock().config_maps.keys().filter(|name| !listed.contains(name.as_str())).cloned().collect();
        gone.iter().for_each(|name| self.forget(name));
    }

    /// The location of the document with this key, if there is one.
    pub(super) fn place(&self, key: &str) -> Option<DocumentLocation> {
        self.lock().places.get(key).cloned()
    }

    /// Whether a ConfigMap with this name contains only documents of other nodes.
    pub(super) fn is_of_another(&self, name: &str, node: &str) -> bool {
        let index = self.lock();
        let keys = index.config_maps.get(name).map(|known| known.keys.as_slice()).unwrap_or_default();
        let states: Vec<_> = keys.iter().filter_map(|key| self.states.by_key(key)).collect();
        !states.is_empty() && states.iter().all(|state| state.node_name != node)
    }

    /// The version of a ConfigMap that is known.
    pub(super) fn known_version(&self, name: &str) -> Option<u64> {
        self.lock().config_maps.get(name).map(|known| known.version)
    }

    /// Processes that a ConfigMap does not exist, unless another version than `known` has been seen meanwhile.
    pub(super) fn is_gone(&self, name: &str, known: Option<u64>) {
        if known.is_some() && self.known_version(name) == known {
            self.forget(name);
        }
    }
}

/// Resource versions increase (KEP-5504); one that is not a number counts as the newest.
fn version(config_map: &ConfigMap) -> u64 {
    config_map.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(u64::MAX)
}

/// All documents of a ConfigMap with their data keys, without the history, which only the writer and `history` need.
fn documents(config_map: &ConfigMap, node: &str) -> (Vec<(String, SavedState)>, Vec<Problem>) {
    let mut found = Vec::new();
    let mut problems = Vec::new();
    for (key, text) in config_map.data.iter().flatten() {
        if key != STATE_KEY && !is_aside(key) {
            continue;
        }
        match parse(text) {
            Ok(state) => found.push((key.clone(), SavedState { history: Vec::new(), ..state })),
            Err(why) => {
                problems.push(Problem { config_map: config_map.name_any(), node: node.to_owned(), why });
            }
        }
    }
    (found, problems)
}

/// Parses one document.
pub(super) fn parse(text: &str) -> Result<SavedState, String> {
    let state: SavedState = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if state.node_name.is_empty() { Err("nodeName is empty".to_owned()) } else { Ok(state) }
}

/// The name for a new ConfigMap: `node-labels-<node>`, or with a hash if that is too long or `taken`.
pub(super) fn name_for(node: &str, identity: &str, taken: bool) -> String {
    let plain = format!("{NAME_PREFIX}{node}");
    if !taken && plain.len() <= NAME_MAX {
        return plain;
    }
    let hash = hash(identity);
    let head: String = plain.chars().take(NAME_MAX - hash.len() - 1).collect();
    format!("{}-{hash}", head.trim_end_matches(['.', '-']))
}

/// The data key of the kept document of another machine.
pub(super) fn aside_key(identity: &str) -> String {
    format!("{ASIDE_PREFIX}{}.json", hash(identity))
}

/// The data key of an unreadable text.
pub(super) fn corrupt_key(text: &str) -> String {
    format!("{CORRUPT_PREFIX}{}.txt", hash(text))
}

/// Whether a data key is that of a kept document.
pub(super) fn is_aside(key: &str) -> bool {
    key.starts_with(ASIDE_PREFIX) && key.ends_with(".json")
}

/// Whether a data key is that of an unreadable text.
pub(super) fn is_corrupt(key: &str) -> bool {
    key.starts_with(CORRUPT_PREFIX) && key.ends_with(".txt")
}

/// FNV-1a: stable across versions and processes, as names require.
fn hash(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

/// All data of a ConfigMap, as a map.
pub(super) fn data(config_map: &ConfigMap) -> BTreeMap<String, String> {
    config_map.data.clone().unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_label_operator_if_possible() {
        assert_eq!(name_for("kind-worker", "name=kind-worker", false), "node-labels-kind-worker");
        let taken = name_for("kind-worker", "name=kind-worker", true);
        assert!(taken.starts_with("node-labels-kind-worker-") && taken.len() == 40, "{taken}");
        let long = format!("{}.{}", "a".repeat(63), "b".repeat(180));
        let name = name_for(&long, "x", false);
        assert!(name.len() <= NAME_MAX && name != name_for(&long, "y", false), "{name}");
    }

    #[test]
    fn documents_of_the_label_operator_are_readable() {
        let text = r#"{"nodeName": "kind-worker", "labels": {"persist.demo/type": "expensive"}, "capturedAt": "2026-01-14T17:00:00Z"}"#;
        let state = parse(text).unwrap();
        assert_eq!(
            (state.node_name.as_str(), state.labels["persist.demo/type"].as_str()),
            ("kind-worker", "expensive")
        );
        assert!(parse("{").is_err() && parse(r#"{"nodeName": ""}"#).is_err());
    }
}
