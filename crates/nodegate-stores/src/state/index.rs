//! Which ConfigMap has the record of which machine.
//!
//! Of several ConfigMaps with a record of one machine, one has it and the others are copies. The record stays where it is while that
//! ConfigMap has it. Where nothing is known yet, as in a first listing, the order is that of [`Precedence`], so that all replicas
//! agree. When the record is deleted, the first of its copies becomes the record.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::layout::{NAME_PREFIX, UnusedDocument};
use super::{Identity, SavedStates};
use nodegate_policy::api::state::{SavedState, SharedText};

/// Where a ConfigMap was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// In an event of the watch.
    Watched,
    /// In a listing that began in this phase. It replaces what was known before, whatever its version says: after etcd was
    /// restored from a backup, versions are older than what is remembered.
    Listed,
    /// In an answer of the API server to a request that was sent when this version was known. Such an answer is never older
    /// than the stored state was then.
    Answered {
        /// The version, if there was one.
        known: Option<u64>,
    },
}

/// The location of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DocumentLocation {
    pub(super) config_map: String,
    pub(super) data_key: String,
}

/// The order of ConfigMaps that have a record of the same machine: the oldest is first, because copies are made later. Of those that
/// were created in the same second, as when they are restored from a backup, the one that is named after the node is first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    created: Option<Time>,
    has_other_name: bool,
    config_map: Arc<str>,
}

impl Precedence {
    /// That of a ConfigMap with a record of `node`.
    pub fn of(config_map: &ConfigMap, node: &str) -> Self {
        Self::named(config_map.name_any().into(), config_map, node)
    }

    /// That of a ConfigMap with this name.
    fn named(name: Arc<str>, config_map: &ConfigMap, node: &str) -> Self {
        let has_other_name = name.strip_prefix(NAME_PREFIX) != Some(node);
        Self { created: config_map.creation_timestamp(), has_other_name, config_map: name }
    }

    /// The ConfigMap.
    pub fn config_map(&self) -> &str {
        &self.config_map
    }
}

/// What is known about one ConfigMap.
#[derive(Clone, Debug, Default)]
struct Known {
    version: u64,
    keys: Box<[Arc<str>]>,
    /// The listing in or after which it was read.
    listing: u64,
}

/// The place of a record.
#[derive(Debug)]
struct Place {
    precedence: Precedence,
    data_key: SharedText,
    /// The listing in or after which it was chosen.
    listing: u64,
}

/// What is in another ConfigMap.
#[derive(Debug)]
struct Copied {
    data_key: SharedText,
    state: Arc<SavedState>,
}

/// Which ConfigMap has which record. There is an entry for each node, so each name and each identity is there once.
#[derive(Debug, Default)]
pub(super) struct Index {
    config_maps: HashMap<Arc<str>, Known>,
    /// How many listings have begun.
    listings: u64,
    /// The last one that was complete.
    complete: u64,
    places: HashMap<Arc<str>, Place>,
    copies: HashMap<Arc<str>, BTreeMap<Precedence, Copied>>,
}

impl Index {
    /// A listing begins.
    pub(super) fn begin_listing(&mut self) {
        self.listings += 1;
    }

    /// The listing is complete, and what is not in it is forgotten.
    pub(super) fn end_listing(&mut self) {
        self.complete = self.listings;
    }

    /// Whether what is known about a ConfigMap stays although it was read.
    pub(super) fn is_kept(&self, config_map: &ConfigMap, read: Read) -> bool {
        let known = self.config_maps.get(&*config_map.name_any());
        known.is_some_and(|known| known.is_kept(version(config_map), read, self.listings))
    }

    /// Processes a ConfigMap with these documents, each with its data key. Returns which of them, or of those that were known, are
    /// copies.
    pub(super) fn take_up(
        &mut self,
        states: &SavedStates,
        config_map: &ConfigMap,
        documents: Vec<(String, SavedState)>,
        read: Read,
    ) -> Vec<UnusedDocument> {
        let name = own_key(&self.config_maps, &config_map.name_any());
        let keys: Box<[_]> = documents.iter().map(|(_, state)| own_key(&self.places, &Identity::key(state))).collect();
        let known = Known { version: version(config_map), keys: keys.clone(), listing: self.listings };
        let before = self.config_maps.insert(name.clone(), known).unwrap_or_default();
        for gone in before.keys.iter().filter(|key| !keys.contains(key)) {
            self.withdraw(states, &name, gone);
        }
        let enter = |((data_key, state), key): ((String, SavedState), Arc<str>)| {
            let precedence = Precedence::named(name.clone(), config_map, &state.node_name);
            let data_key = data_key.as_str().into();
            self.enter(states, key, precedence, Copied { data_key, state: Arc::new(state) }, read)
        };
        documents.into_iter().zip(keys).filter_map(enter).collect()
    }

    /// Takes up one document. Returns a copy that this shows.
    fn enter(
        &mut self,
        states: &SavedStates,
        key: Arc<str>,
        precedence: Precedence,
        document: Copied,
        read: Read,
    ) -> Option<UnusedDocument> {
        self.drop_copy(&precedence.config_map, &key);
        let node = document.state.node_name.clone();
        let Some(place) = self.places.get(&key) else {
            self.put(states, key, precedence, document, self.listings);
            return None;
        };
        if place.precedence.config_map == precedence.config_map {
            let listing = place.listing;
            self.put(states, key, precedence, document, listing);
            return None;
        }
        let is_first = read == Read::Listed && place.listing > self.complete && precedence < place.precedence;
        let record = if is_first { &precedence } else { &place.precedence }.config_map.to_string();
        let (copy, document) = match (is_first, states.by_key(&key)) {
            (true, Some(state)) => {
                let other = Copied { data_key: place.data_key.clone(), state };
                let other_precedence = place.precedence.clone();
                self.put(states, key.clone(), precedence, document, self.listings);
                (other_precedence, other)
            }
            (true, None) | (false, _) => (precedence, document),
        };
        let config_map = copy.config_map.to_string();
        self.copies.entry(key).or_default().insert(copy, document);
        Some(UnusedDocument::copy_of(record, config_map, &node))
    }

    fn put(&mut self, states: &SavedStates, key: Arc<str>, precedence: Precedence, document: Copied, listing: u64) {
        let Copied { data_key, state } = document;
        self.places.insert(key, Place { precedence, data_key, listing });
        states.put(state);
    }

    /// Forgets a document that was in the ConfigMap `name`. If it was the record, a copy of it becomes the record.
    fn withdraw(&mut self, states: &SavedStates, name: &str, key: &Arc<str>) {
        self.drop_copy(name, key);
        if self.places.get(key).is_none_or(|place| *place.precedence.config_map != *name) {
            return;
        }
        let mut copies = self.copies.remove(key).unwrap_or_default();
        let Some((precedence, document)) = copies.pop_first() else {
            self.places.remove(key);
            states.remove(key);
            return;
        };
        if !copies.is_empty() {
            self.copies.insert(key.clone(), copies);
        }
        tracing::warn!(
            node = document.state.node_name,
            config_map = &*precedence.config_map,
            "the record in ConfigMap {name} is gone; its copy is the record now"
        );
        self.put(states, key.clone(), precedence, document, self.listings);
    }

    fn drop_copy(&mut self, name: &str, key: &str) {
        let Some(copies) = self.copies.get_mut(key) else { return };
        copies.retain(|copy, _| *copy.config_map != *name);
        if copies.is_empty() {
            self.copies.remove(key);
        }
    }

    /// Forgets a ConfigMap.
    pub(super) fn forget(&mut self, states: &SavedStates, name: &str) {
        let known = self.config_maps.remove(name).unwrap_or_default();
        known.keys.iter().for_each(|key| self.withdraw(states, name, key));
    }

    /// The known ConfigMaps that were not listed.
    pub(super) fn all_but(&self, listed: &[String]) -> Vec<String> {
        let listed: HashSet<&str> = listed.iter().map(String::as_str).collect();
        self.config_maps.keys().filter(|name| !listed.contains(&***name)).map(|name| name.to_string()).collect()
    }

    /// The version of a ConfigMap that is known now, for [`Read::Answered`].
    pub(super) fn version(&self, name: &str) -> Option<u64> {
        self.config_maps.get(name).map(|known| known.version)
    }

    /// The location of the record with this key, if there is one.
    pub(super) fn place(&self, key: &str) -> Option<DocumentLocation> {
        let Place { precedence, data_key, listing: _ } = self.places.get(key)?;
        Some(DocumentLocation { config_map: precedence.config_map.to_string(), data_key: data_key.to_string() })
    }

    /// Whether a ConfigMap with this name contains only documents of other nodes.
    pub(super) fn is_of_another(&self, states: &SavedStates, name: &str, node: &str) -> bool {
        let keys = self.config_maps.get(name).map(|known| &*known.keys).unwrap_or_default();
        let states: Vec<_> = keys.iter().filter_map(|key| states.by_key(key)).collect();
        !states.is_empty() && states.iter().all(|state| state.node_name != node)
    }
}

impl Known {
    /// Whether this stays although `version` was read.
    fn is_kept(&self, version: u64, read: Read, listings: u64) -> bool {
        // A version that is not a number counts as the newest.
        let is_older = self.version < version || version == u64::MAX;
        match read {
            Read::Listed if self.listing < listings => false,
            Read::Answered { known: Some(known) } if known > version && self.version >= known => false,
            Read::Listed | Read::Answered { .. } | Read::Watched => !is_older,
        }
    }
}

/// The key of a map that is this text, or a new one.
fn own_key<V>(map: &HashMap<Arc<str>, V>, text: &str) -> Arc<str> {
    map.get_key_value(text).map_or_else(|| text.into(), |(key, _)| key.clone())
}

/// Resource versions increase (KEP-5504); one that is not a number counts as the newest.
fn version(config_map: &ConfigMap) -> u64 {
    config_map.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::layout::STATE_KEY;
    use super::*;

    #[test]
    fn its_maps_share_their_keys_also_after_a_change() {
        let (mut index, states) = (Index::default(), SavedStates::default());
        for version in ["1", "2"] {
            let metadata = json!({"name": "node-labels-n1", "resourceVersion": version});
            let config_map = serde_json::from_value(json!({"metadata": metadata})).unwrap();
            let state = serde_json::from_value(json!({"nodeName": "n1"})).unwrap();
            index.take_up(&states, &config_map, vec![(STATE_KEY.to_owned(), state)], Read::Watched);
            let (name, known) = index.config_maps.get_key_value("node-labels-n1").unwrap();
            let (key, place) = index.places.get_key_value("name=n1").unwrap();
            assert!(Arc::ptr_eq(name, &place.precedence.config_map) && Arc::ptr_eq(key, &known.keys[0]), "{version}");
        }
    }
}
