//! Saved state in ConfigMaps, [laid out](super::layout) as the label operator did.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;

use super::error::code;
use super::index::{DocumentLocation, Index, Read};
use super::layout::{NAME_PREFIX, STATE_KEY, Unused, UnusedDocument, is_aside, is_record, parse};
use super::stored_map::{Deletion, StoredMap};
use super::{Identity, Machine, POOLS_NAME, SavedStates};
use crate::touched::Touched;
use nodegate_base::object_watch::{WatchFailures, watch_objects_within};
use nodegate_base::pages::next_page;
use nodegate_policy::api::state::SavedState;

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
    pub async fn follow(&self, longest: Duration, synced: impl FnOnce(), mut report: impl FnMut(UnusedDocument)) {
        let mut synced = Some(synced);
        let mut listed: Vec<String> = Vec::new();
        let stream = watch_objects_within(self.api.clone(), watcher::Config::default(), longest);
        let mut stream = std::pin::pin!(stream);
        let mut failing = WatchFailures::default();
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
                    failing.works();
                    if let Some(synced) = synced.take() {
                        synced();
                    }
                }
                Ok(Event::Apply(config_map)) => self.apply(&config_map, Read::Watched, &mut report),
                Ok(Event::Delete(config_map)) => self.forget(&config_map.name_any()),
                Err(error) => {
                    if let Some(error) = failing.news(&error) {
                        tracing::warn!(%error, "the watch of saved state failed; retrying");
                    }
                }
            }
        }
    }

    /// Reads all ConfigMaps once.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub async fn read(&self, mut report: impl FnMut(UnusedDocument)) -> Result<(), kube::Error> {
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
        report: &mut impl FnMut(UnusedDocument),
        mut each: impl FnMut(&ConfigMap),
    ) -> Result<(), kube::Error> {
        let mut next = Some(ListParams::default().limit(500));
        self.index.lock().begin_listing();
        while let Some(parameters) = next {
            let page = self.api.list(&parameters).await?;
            next = next_page(parameters, &page.metadata);
            for config_map in &page.items {
                self.apply(config_map, Read::Listed, report);
                each(config_map);
            }
        }
        self.index.lock().end_listing();
        Ok(())
    }

    /// Processes a ConfigMap that may have been written by others.
    fn apply(&self, config_map: &ConfigMap, read: Read, report: &mut impl FnMut(UnusedDocument)) {
        if let Some(node) = self.take_up(config_map, read, report) {
            self.touched.tell([node.into()]);
        }
    }

    /// Processes a ConfigMap unless this or a newer version is known already. Returns the nodes it belongs to.
    pub(super) fn take_up(
        &self,
        config_map: &ConfigMap,
        read: Read,
        report: &mut impl FnMut(UnusedDocument),
    ) -> Option<String> {
        if self.take_up_pools(config_map) {
            return None;
        }
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
        if name == POOLS_NAME {
            return self.states.pools_are_gone();
        }
        self.index.lock().forget(&self.states, name);
        self.touched.tell([name.strip_prefix(NAME_PREFIX).unwrap_or(name).into()]);
    }

    fn forget_all_but(&self, listed: &[String]) {
        let gone = self.index.lock().all_but(listed);
        gone.iter().for_each(|name| self.forget(name));
        if !listed.iter().any(|name| name == POOLS_NAME) {
            self.forget(POOLS_NAME);
        }
    }

    /// The location of the document with this key, if there is one.
    pub(super) fn place(&self, key: &str) -> Option<DocumentLocation> {
        self.index.lock().place(key)
    }

    /// Whether a ConfigMap with this name contains only documents of other nodes.
    pub(super) fn is_of_another(&self, name: &str, node: &str) -> bool {
        self.index.lock().is_of_another(&self.states, name, node)
    }

    /// The identity under which the record of a node is stored.
    pub fn identity_of(&self, node: Machine<'_>) -> Option<String> {
        self.states.get(node).map(|state| Identity::key(&state))
    }

    /// Deletes a ConfigMap with saved state, or only nodegate's data if it holds other data, unless it was changed since
    /// it was read.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub async fn delete(&self, map: &StoredMap, manager: &str) -> Result<Deletion, kube::Error> {
        let outcome = if map.has_others() {
            let patch = Patch::Json::<()>(map.without_own_data());
            let parameters = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
            self.api.patch(&map.name, &parameters, &patch).await.map(drop)
        } else {
            let parameters = DeleteParams { preconditions: Some(map.preconditions()), ..DeleteParams::default() };
            self.api.delete(&map.name, &parameters).await.map(drop)
        };
        match outcome {
            Err(error) if code(&error) == 404 => Ok(Deletion::Done),
            // If a `remove` operation fails before the version is compared, the API server answers 422.
            Err(error) if matches!(code(&error), 409 | 422) => Ok(Deletion::Changed),
            outcome => outcome.map(|()| Deletion::Done),
        }
    }
}

/// All documents of a ConfigMap with their data keys, without the history, which only the writer and `history` need.
fn documents(config_map: &ConfigMap, node: &str) -> (Vec<(String, SavedState)>, Vec<UnusedDocument>) {
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
            Ok(SavedState { node_name, .. }) => problems.push(UnusedDocument::copy(name, &node_name)),
            Err(why) => {
                let why = Unused::unreadable(&why, config_map, key);
                problems.push(UnusedDocument { config_map: name, node: node.to_owned(), why });
            }
        }
    }
    (found, problems)
}

/// All data of a ConfigMap, as a map.
pub(super) fn data(config_map: &ConfigMap) -> BTreeMap<String, String> {
    config_map.data.clone().unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
