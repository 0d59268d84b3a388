//! The one writer of saved state: ConfigMaps, read before they are written, never written over what changed meanwhile.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Resource as _, ResourceExt as _};

use super::configmaps::{ConfigMaps, Place, aside_key, corrupt_key, data, name_for, parse};
use super::{Identity, STATE_KEY};
use crate::api::state::{Change, SavedState};

/// How many changes of a node are remembered.
const HISTORY_MAX: usize = 50;
/// How often a write is tried again when the ConfigMap has changed meanwhile.
const TRIES: usize = 5;
/// Largest document, in bytes; the API server takes objects of 1 MiB.
const DOCUMENT_MAX: usize = 512 * 1024;

/// Saved state could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The API server refused or could not be asked.
    #[error("ConfigMap {config_map}: {error}")]
    Api {
        /// The ConfigMap.
        config_map: String,
        /// Why.
        error: Box<kube::Error>,
    },
    /// Somebody else has changed it: what was to be recorded is to be thought over.
    #[error("ConfigMap {0} was changed by somebody else")]
    Changed(String),
    /// It would not fit.
    #[error("the state of node {node} has {size} bytes; a ConfigMap takes {DOCUMENT_MAX}")]
    TooLarge {
        /// The node.
        node: String,
        /// Its size.
        size: usize,
    },
}

impl WriteError {
    fn api(config_map: &str, error: kube::Error) -> Self {
        Self::Api { config_map: config_map.to_owned(), error: Box::new(error) }
    }
}

fn code(error: &kube::Error) -> u16 {
    if let kube::Error::Api(status) = error { status.code } else { 0 }
}

/// Writes documents of saved state.
#[derive(Clone)]
pub struct StateWriter {
    maps: ConfigMaps,
    parameters: PostParams,
}

impl StateWriter {
    /// Writes to `maps`, whose readers see it at once; `manager` is the field manager.
    pub fn new(maps: ConfigMaps, manager: &str) -> Self {
        Self { maps, parameters: PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() } }
    }

    /// Records `state`, which was thought of on the ground of `base`, and appends `changes` to its history. Writes
    /// nothing when nothing differs.
    ///
    /// # Guarantees
    /// Other data of the ConfigMap stays. A document that cannot be read, or of another machine, is kept beside it.
    /// What another writer has recorded since `base` is not lost: readers see it then, and this fails.
    ///
    /// # Errors
    /// If the API server does not take it, or `base` is not what is there; nothing is changed then.
    pub async fn write(&self, base: &SavedState, state: &SavedState, changes: &[Change]) -> Result<bool, WriteError> {
        let key = Identity::key(state);
        let place = self.maps.place(&key).or_else(|| {
            // Written before its identity was kept, or by the label operator: adopted where it stands.
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

    /// The name for a ConfigMap that is not there yet. A ConfigMap of the plain name that holds no document of
    /// this node is another node's (whose own name was too long) and stays so.
    fn free_name(&self, node: &str, identity: &str) -> String {
        name_for(node, identity, self.maps.is_of_another(&name_for(node, identity, false), node))
    }

    /// `None` when the ConfigMap changed meanwhile.
    async fn try_write(
        &self,
        base: &SavedState,
        state: &SavedState,
        changes: &[Change],
        name: &str,
    ) -> Result<Option<bool>, WriteError> {
        let api = &self.maps.api;
        let existing = if self.maps.exists(name) {
            api.get_opt(name).await.map_err(|error| WriteError::api(name, error))?
        } else {
            None
        };
        let before = existing.as_ref().map(data).unwrap_or_default();
        if let Some(existing) = existing.as_ref().filter(|_| !stands_on(&before, base, state)) {
            self.maps.apply(existing, &mut |_| {});
            return Err(WriteError::Changed(name.to_owned()));
        }
        let Some(after) = merged(&before, state, changes)? else { return Ok(Some(false)) };
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
                self.maps.apply(&config_map, &mut |_| {});
                Ok(Some(true))
            }
            Err(error) if code(&error) == 409 || code(&error) == 404 => {
                // It was made, changed or deleted since: look again before deciding what to write.
                if let Ok(Some(config_map)) = api.get_opt(name).await {
                    self.maps.apply(&config_map, &mut |_| {});
                }
                Ok(None)
            }
            Err(error) => Err(WriteError::api(name, error)),
        }
    }

    /// Deletes the state of a node that is gone for good, unless it was written meanwhile.
    ///
    /// # Errors
    /// If the API server does not do it.
    pub async fn delete(&self, state: &SavedState) -> Result<(), WriteError> {
        let Some(Place { config_map: name, data_key }) = self.maps.place(&Identity::key(state)) else { return Ok(()) };
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

/// The document of the machine that `state` is of.
fn document_of(data: &BTreeMap<String, String>, state: &SavedState) -> Option<SavedState> {
    let read = |key: &str| data.get(key).and_then(|text| parse(text).ok());
    let in_force = read(STATE_KEY).filter(|known| !is_another_machine(known, state));
    in_force.or_else(|| read(&aside_key(&Identity::key(state))))
}

/// Whether what is there is what `state` was thought of on the ground of.
fn stands_on(data: &BTreeMap<String, String>, base: &SavedState, state: &SavedState) -> bool {
    let plain = |state: SavedState| SavedState { history: Vec::new(), ..state };
    plain(document_of(data, state).unwrap_or_default()) == plain(base.clone())
}

/// The data of a ConfigMap with `state` in force in it, or `None` when nothing differs.
fn merged(
    before: &BTreeMap<String, String>,
    state: &SavedState,
    changes: &[Change],
) -> Result<Option<BTreeMap<String, String>>, WriteError> {
    let mut after = before.clone();
    let mut state = state.clone();
    let own_aside = aside_key(&Identity::key(&state));
    after.remove(&own_aside);
    let there = document_of(before, &state);
    match before.get(STATE_KEY).map(|text| (text, parse(text))) {
        Some((text, Ok(known))) if is_another_machine(&known, &state) => {
            after.insert(aside_key(&Identity::key(&known)), text.clone());
        }
        Some((text, Err(_))) => {
            after.insert(corrupt_key(text), text.clone());
        }
        Some((_, Ok(_))) | None => {}
    }
    state.history = there.as_ref().map(|known| known.history.clone()).unwrap_or_default();
    let last = state.history.last().map_or(0, |change| change.id);
    state.history.extend((last + 1..).zip(changes).map(|(id, change)| Change { id, ..change.clone() }));
    let surplus = state.history.len().saturating_sub(HISTORY_MAX);
    state.history.drain(..surplus);
    let same = |known: &SavedState| *known == SavedState { captured_at: known.captured_at.clone(), ..state.clone() };
    if !before.contains_key(&own_aside) && there.as_ref().is_some_and(same) {
        return Ok(None);
    }
    let text = serde_json::to_string_pretty(&state).unwrap_or_default();
    if text.len() > DOCUMENT_MAX {
        return Err(WriteError::TooLarge { node: state.node_name, size: text.len() });
    }
    after.insert(STATE_KEY.to_owned(), text);
    Ok(Some(after))
}

fn is_another_machine(known: &SavedState, state: &SavedState) -> bool {
    known.identity.is_some() && known.identity != state.identity
        || known.node_name != state.node_name && known.identity.is_none()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn state(node: &str, identity: Option<&str>) -> SavedState {
        SavedState { node_name: node.to_owned(), identity: identity.map(str::to_owned), ..SavedState::default() }
    }

    fn data_of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_cannot_be_read_and_what_is_others_stays() {
        let before = data_of(&[("state.json", "{nonsense"), ("notes", "mine")]);
        let after = merged(&before, &state("n1", None), &[]).unwrap().unwrap();
        assert_eq!(after["notes"], "mine");
        assert_eq!(after[&corrupt_key("{nonsense")], "{nonsense");
        assert_eq!(parse(&after["state.json"]).unwrap().node_name, "n1");
    }

    #[test]
    fn another_machine_of_the_name_is_kept_aside_and_comes_back() {
        let (one, two) = (state("n1", Some("name=n1,systemUUID=1")), state("n1", Some("name=n1,systemUUID=2")));
        let first = merged(&BTreeMap::new(), &one, &[]).unwrap().unwrap();
        let second = merged(&first, &two, &[]).unwrap().unwrap();
        assert_eq!(parse(&second["state.json"]).unwrap().identity, two.identity);
        assert_eq!(parse(&second[&aside_key("name=n1,systemUUID=1")]).unwrap().identity, one.identity);
        let third = merged(&second, &one, &[]).unwrap().unwrap();
        assert_eq!(parse(&third["state.json"]).unwrap().identity, one.identity);
        assert!(!third.contains_key(&aside_key("name=n1,systemUUID=1")));
    }

    #[test]
    fn history_is_bounded_and_nothing_is_written_when_nothing_differs() {
        let change = Change { key: "a".to_owned(), ..Change::default() };
        let many = vec![change; HISTORY_MAX + 3];
        let after = merged(&BTreeMap::new(), &state("n1", None), &many).unwrap().unwrap();
        let history = parse(&after["state.json"]).unwrap().history;
        assert_eq!((history.len(), history.last().unwrap().id), (HISTORY_MAX, HISTORY_MAX as u64 + 3));
        assert_eq!(merged(&after, &state("n1", None), &[]).unwrap(), None);
    }
}
