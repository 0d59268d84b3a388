//! The one writer of saved state: ConfigMaps, read before they are written, never written over what changed meanwhile.

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Resource as _, ResourceExt as _};

use super::configmaps::{ConfigMaps, Place, aside_key, corrupt_key, data, is_aside, is_corrupt, name_for, parse};
use super::{Identity, STATE_KEY};
use crate::api::state::{Change, SavedState};

/// How many changes of a node are remembered.
const HISTORY_MAX: usize = 50;
/// How often a write is tried again when the ConfigMap has changed meanwhile.
const TRIES: usize = 5;
/// Largest document, in bytes.
const DOCUMENT_MAX: usize = 512 * 1024;
/// Largest ConfigMap, in bytes of its data; the API server takes 1 MiB.
const DATA_MAX: usize = 900 * 1024;
/// So many records of other machines of a name are kept aside, the latest…
const ASIDE_MAX: usize = 3;
/// …and so many texts that could not be read.
const CORRUPT_MAX: usize = 3;
/// Longest text of a change in the history: a key of a taint with its effect fits.
const TEXT_MAX: usize = 512;

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

    /// Whether the same record would be refused again: it is not to be waited for.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Api { error, .. } => matches!(code(error), 400 | 403 | 404 | 405 | 413 | 422),
            Self::TooLarge { .. } => true,
            Self::Changed(_) => false,
        }
    }
}

/// What became of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Whether anything was written: nothing is when nothing differs.
    pub wrote: bool,
    /// How many records of other machines, or texts that could not be read, made room.
    pub dropped: usize,
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
    pub async fn write(
        &self,
        base: &SavedState,
        state: &SavedState,
        changes: &[Change],
    ) -> Result<Written, WriteError> {
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
    ) -> Result<Option<Written>, WriteError> {
        let api = &self.maps.api;
        let existing = if self.maps.exists(name) {
            api.get_opt(name).await.map_err(|error| WriteError::api(name, error))?
        } else {
            None
        };
        let before = existing.as_ref().map(data).unwrap_or_default();
        if let Some(existing) = existing.as_ref().filter(|_| !stands_on(&before, base, state)) {
            self.maps.take_up(existing, &mut |_| {});
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
                self.maps.take_up(&config_map, &mut |_| {});
                Ok(Some(Written { wrote: true, dropped }))
            }
            // For one that is made, "not found" is about its namespace.
            Err(error) if code(&error) == 409 || (code(&error) == 404 && !is_new) => {
                // It was made, changed or deleted since: look again before deciding what to write.
                if let Ok(Some(config_map)) = api.get_opt(name).await {
                    self.maps.take_up(&config_map, &mut |_| {});
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

/// The data of a ConfigMap, and how many records had to make room in it.
type Merged = (BTreeMap<String, String>, usize);

/// The data of a ConfigMap with `state` in force in it; `None` when nothing differs.
fn merged(
    before: &BTreeMap<String, String>,
    state: &SavedState,
    changes: &[Change],
) -> Result<Option<Merged>, WriteError> {
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
    state.history.extend((last + 1..).zip(changes).map(|(id, change)| bounded(Change { id, ..change.clone() })));
    let surplus = state.history.len().saturating_sub(HISTORY_MAX);
    state.history.drain(..surplus);
    let same = |known: &SavedState| *known == SavedState { captured_at: known.captured_at.clone(), ..state.clone() };
    if !before.contains_key(&own_aside) && there.as_ref().is_some_and(same) {
        return Ok(None);
    }
    after.insert(STATE_KEY.to_owned(), text_of(state)?);
    let dropped = make_room(&mut after);
    Ok(Some((after, dropped)))
}

/// The text of a document. Its history gives way first where it would not fit.
fn text_of(mut state: SavedState) -> Result<String, WriteError> {
    loop {
        let text = serde_json::to_string_pretty(&state).unwrap_or_default();
        if text.len() <= DOCUMENT_MAX {
            return Ok(text);
        }
        if state.history.is_empty() {
            return Err(WriteError::TooLarge { node: state.node_name, size: text.len() });
        }
        let half = state.history.len().div_ceil(2);
        state.history.drain(..half);
    }
}

/// A change whose texts are no longer than history keeps them.
fn bounded(mut change: Change) -> Change {
    let shorten = |text: &mut String| {
        if text.len() > TEXT_MAX {
            let end = (0..=TEXT_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
            text.push('…');
        }
    };
    let Change { id: _, time: _, by, how: _, field: _, key, old, new } = &mut change;
    [by, key].into_iter().chain(old).chain(new).for_each(shorten);
    change
}

/// Drops what is kept beside the document in force and is too much: the oldest records of other machines, and texts
/// that could not be read. Answers how many.
fn make_room(data: &mut BTreeMap<String, String>) -> usize {
    let captured_at = |text: &String| parse(text).ok().and_then(|state| state.captured_at).unwrap_or_default();
    let mut asides: Vec<(String, String)> =
        data.iter().filter(|(key, _)| is_aside(key)).map(|(key, text)| (captured_at(text), key.clone())).collect();
    // Times in RFC 3339 and UTC sort as texts. The oldest is first.
    asides.sort_unstable();
    let mut asides: VecDeque<String> = asides.into_iter().map(|(_, key)| key).collect();
    let mut corrupt: VecDeque<String> = data.keys().filter(|key| is_corrupt(key)).cloned().collect();
    let mut dropped = 0;
    loop {
        let size: usize = data.iter().map(|(key, text)| key.len() + text.len()).sum();
        let gone = if corrupt.len() > CORRUPT_MAX {
            corrupt.pop_front()
        } else if asides.len() > ASIDE_MAX {
            asides.pop_front()
        } else if size > DATA_MAX {
            corrupt.pop_front().or_else(|| asides.pop_front())
        } else {
            None
        };
        let Some(gone) = gone else { return dropped };
        data.remove(&gone);
        dropped += 1;
    }
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
        let (after, _) = merged(&before, &state("n1", None), &[]).unwrap().unwrap();
        assert_eq!(after["notes"], "mine");
        assert_eq!(after[&corrupt_key("{nonsense")], "{nonsense");
        assert_eq!(parse(&after["state.json"]).unwrap().node_name, "n1");
    }

    #[test]
    fn another_machine_of_the_name_is_kept_aside_and_comes_back() {
        let (one, two) = (state("n1", Some("name=n1,systemUUID=1")), state("n1", Some("name=n1,systemUUID=2")));
        let (first, _) = merged(&BTreeMap::new(), &one, &[]).unwrap().unwrap();
        let (second, _) = merged(&first, &two, &[]).unwrap().unwrap();
        assert_eq!(parse(&second["state.json"]).unwrap().identity, two.identity);
        assert_eq!(parse(&second[&aside_key("name=n1,systemUUID=1")]).unwrap().identity, one.identity);
        let (third, dropped) = merged(&second, &one, &[]).unwrap().unwrap();
        assert_eq!(dropped, 0);
        assert_eq!(parse(&third["state.json"]).unwrap().identity, one.identity);
        assert!(!third.contains_key(&aside_key("name=n1,systemUUID=1")));
    }

    #[test]
    fn history_is_bounded_and_nothing_is_written_when_nothing_differs() {
        let change = Change { key: "a".to_owned(), ..Change::default() };
        let many = vec![change; HISTORY_MAX + 3];
        let (after, _) = merged(&BTreeMap::new(), &state("n1", None), &many).unwrap().unwrap();
        let history = parse(&after["state.json"]).unwrap().history;
        assert_eq!((history.len(), history.last().unwrap().id), (HISTORY_MAX, HISTORY_MAX as u64 + 3));
        assert_eq!(merged(&after, &state("n1", None), &[]).unwrap(), None);
    }

    #[test]
    fn of_many_machines_of_one_name_the_latest_few_are_kept_and_what_is_others_stays() {
        let mut data = data_of(&[("notes", "mine")]);
        let machine = |at: usize| SavedState {
            captured_at: Some(format!("2026-11-21T10:{at:02}:00Z")),
            labels: (0..100).map(|key| (format!("persist.demo/{key}"), "x".repeat(60))).collect(),
            ..state("n1", Some(&format!("name=n1,systemUUID={at}")))
        };
        for at in 0..60 {
            (data, _) = merged(&data, &machine(at), &[]).unwrap().unwrap();
        }
        let mut kept: Vec<String> = data.values().filter_map(|text| parse(text).ok()?.captured_at).collect();
        kept.sort();
        assert_eq!(
            kept,
            ["2026-11-21T10:56:00Z", "2026-11-21T10:57:00Z", "2026-11-21T10:58:00Z", "2026-11-21T10:59:00Z"]
        );
        assert_eq!(data["notes"], "mine");
    }

    #[test]
    fn a_config_map_never_grows_beyond_what_the_api_server_takes() {
        let large = |at: usize| SavedState {
            captured_at: Some(format!("2026-11-21T10:{at:02}:00Z")),
            labels: (0..900).map(|key| (format!("persist.demo/{key:0>240}"), "x".repeat(63))).collect(),
            ..state("n1", Some(&format!("name=n1,systemUUID={at}")))
        };
        let mut data = data_of(&[("state.json", &"{".repeat(600 * 1024))]);
        let mut gone = Vec::new();
        for at in 0..5 {
            let (after, dropped) = merged(&data, &large(at), &[]).unwrap().unwrap();
            assert!(after.values().map(String::len).sum::<usize>() <= DATA_MAX);
            gone.push(dropped);
            data = after;
        }
        assert_eq!(gone, [0, 1, 0, 1, 1], "the text that cannot be read goes first, then the oldest of three");
        let more = SavedState {
            labels: (0..5200).map(|key| (format!("persist.demo/{key:0>60}"), "x".repeat(63))).collect(),
            ..state("n1", None)
        };
        assert!(matches!(merged(&data, &more, &[]), Err(WriteError::TooLarge { .. })));
    }

    #[test]
    fn long_texts_of_changes_are_cut_and_the_history_gives_way_to_the_record() {
        let long = "ä".repeat(200_000);
        let change = Change { key: "a".to_owned(), by: long.clone(), new: Some(long), ..Change::default() };
        let (after, _) = merged(&BTreeMap::new(), &state("n1", None), &vec![change; HISTORY_MAX]).unwrap().unwrap();
        let read = parse(&after["state.json"]).unwrap();
        assert_eq!(read.history.len(), HISTORY_MAX);
        assert!(read.history.iter().all(|change| change.by.len() <= TEXT_MAX + '…'.len_utf8()));
        let full = SavedState {
            labels: (0..1500).map(|key| (format!("persist.demo/{key:0>240}"), "x".repeat(63))).collect(),
            history: read.history,
            ..state("n1", None)
        };
        assert!(parse(&text_of(full).unwrap()).unwrap().history.len() < HISTORY_MAX);
    }
}
