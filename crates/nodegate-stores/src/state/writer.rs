//! The single writer of saved state. It reads a ConfigMap before it writes it, and never overwrites concurrent
//! changes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Resource as _, ResourceExt as _};

use super::Identity;
use super::configmaps::{ConfigMaps, data};
use super::error::{WriteError, code};
use super::index::{DocumentLocation, Read};
use super::layout::{name_for, parse};
use super::merge::{is_based_on, merged};
use nodegate_base::traces::Ended;
use nodegate_policy::api::state::{Change, SavedState};

/// How often a write is retried if the ConfigMap has changed concurrently.
const TRIES: usize = 5;

/// The result of writing a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Whether anything was written. Nothing is written if nothing differs.
    pub wrote: bool,
    /// How many records of other machines and unreadable texts were dropped to make room.
    pub dropped: usize,
}

impl Ended for Written {
    fn error_type(&self) -> Option<String> {
        None
    }
}

/// Writes documents of saved state.
#[derive(Clone)]
pub struct StateWriter {
    maps: ConfigMaps,
    parameters: PostParams,
}

impl StateWriter {
    /// Writes to `maps`, whose readers see each write at once; `manager` is the field manager.
    pub fn new(maps: ConfigMaps, manager: &str) -> Self {
        Self { maps, parameters: PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() } }
    }

    /// Records `state`, which was computed from `base`, and appends `changes` to its history. Writes nothing if
    /// nothing differs.
    ///
    /// # Guarantees
    /// Other data of the ConfigMap stays. An unreadable document, or one of another machine, is kept beside it. If
    /// another writer has written or deleted it since `base`, its record is not lost and does not come back: readers
    /// learn of it, and this fails.
    ///
    /// # Errors
    /// Returns an error if the API server refuses, or if `base` is not the stored record; nothing is changed then.
    pub async fn write(
        &self,
        base: &SavedState,
        state: &SavedState,
        changes: &[Change],
    ) -> Result<Written, WriteError> {
        let key = Identity::key(state);
        let place = self.maps.place(&key).or_else(|| {
            // Written before its identity was stored, or by the label operator: adopted in place.
            let unidentified = SavedState { node_name: state.node_name.clone(), ..SavedState::default() };
            self.maps.place(&Identity::key(&unidentified))
        });
        let name = place.map_or_else(|| self.free_name(&state.node_name, &key), |place| place.config_map);
        for _ in 0..TRIES {
            if let Some(wrote) = self.try_write(base, state, changes, &name).await? {
                return Ok(wrote);
            }
        }
        Err(WriteError::Changed(name))
    }

    /// The name for a new ConfigMap. If a ConfigMap with the plain name contains no document of this node, it belongs
    /// to another node (whose own name was too long), and is not used.
    fn free_name(&self, node: &str, identity: &str) -> String {
        name_for(node, identity, self.maps.is_of_another(&name_for(node, identity, false), node))
    }

    /// `None` if the ConfigMap changed concurrently.
    async fn try_write(
        &self,
        base: &SavedState,
        state: &SavedState,
        changes: &[Change],
        name: &str,
    ) -> Result<Option<Written>, WriteError> {
        let api = &self.maps.api;
        let known = self.maps.known_version(name);
        let existing =
            if known.is_some() { api.get_opt(name).await.map_err(|error| WriteError::api(name, error))? } else { None };
        let before = existing.as_ref().map(data).unwrap_or_default();
        // Also if it was deleted: whoever did that does not want it back as it was.
        if !is_based_on(&before, base, state) {
            match &existing {
                Some(existing) => drop(self.maps.take_up(existing, Read::Answered { known }, &mut |_| {})),
                None => self.maps.is_gone(name, known),
            }
            return Err(WriteError::Changed(name.to_owned()));
        }
        let Some((after, dropped)) = merged(&before, state, changes)? else { return Ok(Some(Written::default())) };
        let is_new = existing.is_none();
        let written = match existing {
            Some(existing) => {
                let config_map = ConfigMap { data: Some(after), ..existing };
                api.replace(name, &self.parameters, &config_map).await
            }
            None => {
                let labels = BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), "nodegate".to_owned())]);
                let metadata =
                    ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
                api.create(&self.parameters, &ConfigMap { metadata, data: Some(after), ..ConfigMap::default() }).await
            }
        };
        match written {
            Ok(config_map) => {
                self.maps.take_up(&config_map, Read::Answered { known }, &mut |_| {});
                Ok(Some(Written { wrote: true, dropped }))
            }
            // When creating, "not found" is about the namespace.
            Err(error) if code(&error) == 409 || (code(&error) == 404 && !is_new) => {
                // It was created, changed or deleted concurrently: read it again before deciding what to write.
                let known = self.maps.known_version(name);
                if let Ok(Some(config_map)) = api.get_opt(name).await {
                    self.maps.take_up(&config_map, Read::Answered { known }, &mut |_| {});
                }
                Ok(None)
            }
            Err(error) => Err(WriteError::api(name, error)),
        }
    }

    /// Deletes the state of a node that is gone, unless it was written concurrently.
    ///
    /// # Errors
    /// Returns an error if the API server refuses or cannot be reached.
    pub async fn delete(&self, state: &SavedState) -> Result<(), WriteError> {
        let Some(DocumentLocation { config_map: name, data_key }) = self.maps.place(&Identity::key(state)) else {
            return Ok(());
        };
        let api = &self.maps.api;
        let Some(existing) = api.get_opt(&name).await.map_err(|error| WriteError::api(&name, error))? else {
            return Ok(());
        };
        let mut rest = data(&existing);
        let unchanged = rest.remove(&data_key).and_then(|text| parse(&text).ok()).is_some_and(|there| {
            SavedState { history: Vec::new(), ..there } == SavedState { history: Vec::new(), ..state.clone() }
        });
        if !unchanged {
            return Ok(());
        }
        let outcome = if rest.is_empty() {
            let preconditions =
                Preconditions { resource_version: existing.resource_version(), uid: existing.meta().uid.clone() };
            let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            api.delete(&name, &parameters).await.map(drop)
        } else {
            api.replace(&name, &self.parameters, &ConfigMap { data: Some(rest), ..existing }).await.map(drop)
        };
        match outcome {
            Err(error) if !matches!(code(&error), 404 | 409) => Err(WriteError::api(&name, error)),
            _ => Ok(()),
        }
    }
}
