//! Saved state in ConfigMaps: `node-labels-<node>` with the document under `state.json`, compatible with the label
//! operator.
//!
//! A record is in the ConfigMap that has its own name: `node-labels-<node>` or, if that is too long or used by another
//! node's document, with a hash behind it. A machine that is found by its ID alone keeps its record under any name. Copies
//! are reported and left alone ([`Index`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;

use super::index::{DocumentLocation, Index, Read};
use super::stored_map::StoredMap;
use super::{Identity, Machine, SavedStates};
use crate::touched::Touched;
use nodegate_base::kube_error::{in_words, is_expired};
use nodegate_base::object_watch::watch_objects_within;
use nodegate_base::telemetry::brief;
use nodegate_base::text::on_a_line;
use nodegate_policy::api::state::SavedState;

/// The prefix of the names of nodegate's ConfigMaps.
pub const NAME_PREFIX: &str = "node-labels-";
/// The data key of the current document.
pub const STATE_KEY: &str = "state.json";
/// The prefix of the data keys of kept documents of other machines with the same name.
const ASIDE_PREFIX: &str = "state-";
/// The prefix of the data keys of unreadable texts.
const CORRUPT_PREFIX: &str = "corrupt-";
/// Maximum length of a ConfigMap's name (a DNS subdomain).
const NAME_MAX: usize = 253;
/// The length of a hash in a name.
const HASH_LENGTH: usize = 16;

/// A document that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The ConfigMap.
    pub config_map: String,
    /// The node, according to the ConfigMap's name; for a copy, according to its document.
    pub node: String,
    /// The reason.
    pub why: Unused,
}

impl Problem {
    /// A copy of the record of `node`, which is in a ConfigMap with the usual name.
    pub fn copy(config_map: String, node: &str) -> Self {
        let record = name_for(node, &format!("name={node}"), false);
        Self::copy_of(record, config_map, node)
    }

    /// A copy of the record of `node`, which is in the ConfigMap `record`.
    pub fn copy_of(record: String, config_map: String, node: &str) -> Self {
        Self { config_map, node: node.to_owned(), why: Unused::Copy { node: node.to_owned(), record } }
    }

    /// The reason and the note of the event about it.
    pub fn event(&self) -> (&'static str, String) {
        let (reason, note) = match &self.why {
            Unused::Unreadable(why) => {
                let note = format!("it is unreadable: {why}; nodegate treats it as empty and keeps a copy of its text");
                ("UnreadableState", note)
            }
            copy @ Unused::Copy { .. } => ("CopiedState", copy.to_string()),
        };
        (reason, format!("ConfigMap {}: {note}", self.config_map))
    }
}

/// Why a document is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unused {
    /// It cannot be read.
    #[error("it is unreadable: {0}")]
    Unreadable(String),
    /// It is a copy of the record of a node, under another name.
    #[error("it is a copy, because the record of node {node} is ConfigMap {record}; delete the copy")]
    Copy {
        /// The node.
        node: String,
        /// The ConfigMap of the record.
        record: String,
    },
}

impl Unused {
    /// Says that a document cannot be read, and which field manager wrote it last, if the API server knows that.
    pub fn unreadable(why: &str, config_map: &ConfigMap, key: &str) -> Self {
        let field = format!("f:{key}");
        let writes = |entry: &&ManagedFieldsEntry| {
            let data = entry.fields_v1.as_ref().and_then(|fields| fields.0.get("f:data"));
            data.is_some_and(|data| data.get(&field).is_some())
        };
        let writers = config_map.metadata.managed_fields.iter().flatten().filter(writes);
        let last = writers.max_by(|one, other| one.time.cmp(&other.time)).and_then(|entry| entry.manager.as_deref());
        let by = last.map(|manager| format!("; its last writer is {}", on_a_line(manager)));
        Self::Unreadable(why.to_owned() + &by.unwrap_or_default())
    }
}

/// The ConfigMaps of one namespace, mirrored in [`SavedStates`].
#[derive(Clone)]
pub struct ConfigMaps {
    pub(super) api: Api<ConfigMap>,
    pub(super) states: Arc<SavedStates>,
    /// Complete after every update, so a panic elsewhere leaves it usable.
    index: Arc<Mutex<Index>>,
    touched: Arc<Touched>,
}

impl ConfigMaps {
    /// The ConfigMaps of `namespace`.
    pub fn new(client: Client, namespace: &str, states: Arc<SavedStates>) -> Self {
        Self { api: Api::namespaced(client, namespace), states, index: Arc::default(), touched: Arc::default() }
    }

    /// The documents in the ConfigMaps.
    pub fn states(&self) -> &SavedStates {
        &self.states
    }

    /// The names of nodes whose documents others change.
    pub fn touched(&self) -> &Touched {
        &self.touched
    }

    /// Updates the states from the ConfigMaps; runs until dropped. What fails is tried again after `longest` at the latest.
    ///
    /// Calls `synced` once after the first complete listing, and `report` for every document that cannot be read,
    /// which counts as empty.
    pub async fn follow(&self, longest: Duration, synced: impl FnOnce(), mut report: impl FnMut(Problem)) {
        let mut synced = Some(synced);
        let mut listed: Vec<String> = Vec::new();
        let stream = watch_objects_within(self.api.clone(), watcher::Config::default(), longest);
        let mut stream = std::pin::pin!(stream);
        let mut failing: Option<String> = None;
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => {
                    listed.clear();
                    self.index.lock().begin_listing();
                }
                Ok(Event::InitApply(config_map)) => {
                    listed.push(config_map.name_any());
                    self.apply(&config_map, Read::Listed, &mut report);
                }
                Ok(Event::InitDone) => {
                    self.forget_all_but(&listed);
                    self.index.lock().end_listing();
                    failing = None;
                    if let Some(synced) = synced.take() {
                        synced();
                    }
                }
                Ok(Event::Apply(config_map)) => self.apply(&config_map, Read::Watched, &mut report),
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
        self.index.lock().begin_listing();
        loop {
            let page = self.api.list(&next).await?;
            for config_map in &page.items {
                self.apply(config_map, Read::Listed, report);
                each(config_map);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => next = next.continue_token(&token),
                None => break,
            }
        }
        self.index.lock().end_listing();
        Ok(())
    }

    /// Processes a ConfigMap that may have been written by others.
    fn apply(&self, config_map: &ConfigMap, read: Read, report: &mut impl FnMut(Problem)) {
        if let Some(node) = self.take_up(config_map, read, report) {
            self.touched.tell([node.into()]);
        }
    }

    /// Processes a ConfigMap unless this or a newer version is known already. Returns the nodes it belongs to.
    pub(super) fn take_up(
        &self,
        config_map: &ConfigMap,
        read: Read,
        report: &mut impl FnMut(Problem),
    ) -> Option<String> {
        let name = config_map.name_any();
        let node = name.strip_prefix(NAME_PREFIX)?;
        let mut index = self.index.lock();
        if index.is_kept(config_map, read) {
            return None;
        }
        let (documents, mut problems) = documents(config_map, node);
        problems.extend(index.take_up(&self.states, config_map, documents, read));
        drop(index);
        problems.into_iter().for_each(report);
        Some(node.to_owned())
    }

    /// The version of a ConfigMap that is known now, for [`Read::Answered`].
    pub(super) fn known_version(&self, name: &str) -> Option<u64> {
        self.index.lock().version(name)
    }

    /// Processes that a ConfigMap does not exist, unless another version than `known` has been seen meanwhile.
    pub(super) fn is_gone(&self, name: &str, known: Option<u64>) {
        if known.is_some() && self.known_version(name) == known {
            self.forget(name);
        }
    }

    fn forget(&self, name: &str) {
        self.index.lock().forget(&self.states, name);
        self.touched.tell([name.strip_prefix(NAME_PREFIX).unwrap_or(name).into()]);
    }

    fn forget_all_but(&self, listed: &[String]) {
        let gone = self.index.lock().all_but(listed);
        gone.iter().for_each(|name| self.forget(name));
    }

    /// The location of the document with this key, if there is one.
    pub(super) fn place(&self, key: &str) -> Option<DocumentLocation> {
        self.index.lock().place(key)
    }

    /// Whether a ConfigMap with this name contains only documents of other nodes.
    pub(super) fn is_of_another(&self, name: &str, node: &str) -> bool {
        self.index.lock().is_of_another(&self.states, name, node)
    }
}

/// All documents of a ConfigMap with their data keys, without the history, which only the writer and `history` need.
fn documents(config_map: &ConfigMap, node: &str) -> (Vec<(String, SavedState)>, Vec<Problem>) {
    let mut found = Vec::new();
    let mut problems = Vec::new();
    for (key, text) in config_map.data.iter().flatten() {
        if key != STATE_KEY && !is_aside(key) {
            continue;
        }
        let name = config_map.name_any();
        match parse(text) {
            Ok(state) if is_record(&name, &state) => {
                found.push((key.clone(), SavedState { history: Vec::new(), ..state }));
            }
            Ok(SavedState { node_name, .. }) => problems.push(Problem::copy(name, &node_name)),
            Err(why) => {
                let why = Unused::unreadable(&why, config_map, key);
                problems.push(Problem { config_map: name, node: node.to_owned(), why });
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
    let head: String = plain.chars().take(NAME_MAX - HASH_LENGTH - 1).collect();
    format!("{}-{hash}", head.trim_end_matches(['.', '-']))
}

/// Whether a document in a ConfigMap with this name can be the record of its node. A machine that is found by its ID alone keeps its
/// record when its node gets another name. Of several such ConfigMaps, [`super::Precedence`] says which has the record.
pub fn is_record(config_map: &str, state: &SavedState) -> bool {
    is_record_of(config_map, &state.node_name) || Identity::is_without_name(state)
}

/// Whether a ConfigMap with this name can be the record of a node: the name is the usual one, or that with a hash of any
/// identity. All others are copies.
fn is_record_of(name: &str, node: &str) -> bool {
    let plain = format!("{NAME_PREFIX}{node}");
    let head: String = plain.chars().take(NAME_MAX - HASH_LENGTH - 1).collect();
    let is_hash =
        |text: &str| text.len() == HASH_LENGTH && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    let hash = name.strip_prefix(head.trim_end_matches(['.', '-'])).and_then(|rest| rest.strip_prefix('-'));
    name == plain || hash.is_some_and(is_hash)
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
mod tests;
