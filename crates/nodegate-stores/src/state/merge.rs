//! Merges a document into the data of a ConfigMap, without I/O.

use std::collections::{BTreeMap, VecDeque};

use super::error::{DOCUMENT_MAX, WriteError};
use super::layout::{aside_key, corrupt_key, is_aside, is_corrupt, parse};
use super::{Identity, STATE_KEY};
use nodegate_base::text;
use nodegate_policy::api::state::{Change, SavedState};

/// How many changes of a node are kept.
const HISTORY_MAX: usize = 50;
/// Maximum size of a ConfigMap's data, in bytes; the API server accepts 1 MiB.
const DATA_MAX: usize = 900 * 1024;
/// How many records of other machines with the same name are kept, the latest…
const ASIDE_MAX: usize = 3;
/// …and how many unreadable texts.
const CORRUPT_MAX: usize = 3;
/// Maximum length of a text of a change in the history, in bytes: a taint's key with its effect fits.
const TEXT_MAX: usize = 512;

/// The document of the machine that `state` belongs to.
fn document_of(data: &BTreeMap<String, String>, state: &SavedState) -> Option<SavedState> {
    let read = |key: &str| data.get(key).and_then(|text| parse(text).ok());
    let in_force = read(STATE_KEY).filter(|known| !is_another_machine(known, state));
    in_force.or_else(|| read(&aside_key(&Identity::key(state))))
}

/// Whether the stored record is the one that `state` was computed from.
pub(super) fn is_based_on(data: &BTreeMap<String, String>, base: &SavedState, state: &SavedState) -> bool {
    let plain = |state: SavedState| SavedState { history: Vec::new(), ..state };
    plain(document_of(data, state).unwrap_or_default()) == plain(base.clone())
}

/// The data of a ConfigMap, and how many records were dropped to make room.
pub(super) type Merged = (BTreeMap<String, String>, usize);

/// The data of a ConfigMap with `state` as the current record; `None` if nothing differs. The record of a machine that is gone does
/// not take the place of one that lives.
pub(super) fn merged(
    before: &BTreeMap<String, String>,
    state: &SavedState,
    changes: &[Change],
) -> Result<Option<Merged>, WriteError> {
    let mut after = before.clone();
    let mut state = state.clone();
    let own_aside = aside_key(&Identity::key(&state));
    after.remove(&own_aside);
    let there = document_of(before, &state);
    let mut place = STATE_KEY;
    match before.get(STATE_KEY).map(|text| (text, parse(text))) {
        Some((text, Ok(known))) if is_another_machine(&known, &state) => {
            if state.deleted_at.is_some() && known.deleted_at.is_none() {
                place = &own_aside;
            } else {
                after.insert(aside_key(&Identity::key(&known)), text.clone());
            }
        }
        Some((text, Err(_))) => {
            after.insert(corrupt_key(text), text.clone());
        }
        Some((_, Ok(_))) | None => {}
    }
    state.history = there.as_ref().map(|known| known.history.clone()).unwrap_or_default();
    let last = state.history.last().map_or(0, |change| change.id);
    let new = not_recorded(&state.history, changes.iter().cloned().map(bounded).collect());
    state.history.extend((last + 1..).zip(new).map(|(id, change)| Change { id, ..change }));
    let surplus = state.history.len().saturating_sub(HISTORY_MAX);
    state.history.drain(..surplus);
    let same = |known: &SavedState| {
        let (captured_at, revision) = (known.captured_at.clone(), known.revision);
        *known == SavedState { captured_at, revision, ..state.clone() }
    };
    let stays = before.contains_key(&own_aside) == (place == own_aside);
    if stays && there.as_ref().is_some_and(same) {
        return Ok(None);
    }
    state.revision = there.map_or(0, |known| known.revision) + 1;
    after.insert(place.to_owned(), text_of(state)?);
    let dropped = make_room(&mut after);
    Ok(Some((after, dropped)))
}

/// The text of a document. If it is too large, its history is dropped first.
fn text_of(mut state: SavedState) -> Result<String, WriteError> {
    loop {
        let text = serde_json::to_string_pretty(&state)
            .map_err(|error| WriteError::Unwritable { node: state.node_name.clone(), error })?;
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

/// A change with its texts truncated for the history.
fn bounded(mut change: Change) -> Change {
    let Change { id: _, time: _, by, by_requester: _, how: _, rule, field: _, key, old, new } = &mut change;
    [by, rule, key].into_iter().chain(old).chain(new).for_each(|text| text::cut(text, TEXT_MAX));
    change
}

/// The changes without those at their beginning with which the history ends: of a write whose answer is lost or comes late, the same
/// changes are given once more. A change alone may well be there already, if a value goes to and fro within a second.
fn not_recorded(history: &[Change], mut changes: Vec<Change>) -> Vec<Change> {
    let is_same = |(known, change): (&Change, &Change)| *known == Change { id: known.id, ..change.clone() };
    let ends_with = |count: &usize| history[history.len() - count..].iter().zip(&changes).all(is_same);
    let recorded = (1..=changes.len().min(history.len())).rev().find(ends_with).unwrap_or_default();
    changes.split_off(recorded)
}

/// Drops kept records that exceed the limits: the oldest ones of other machines, and unreadable texts. Returns how
/// many.
fn make_room(data: &mut BTreeMap<String, String>) -> usize {
    let captured_at = |text: &String| parse(text).ok().and_then(|state| state.captured_at).unwrap_or_default();
    let mut asides: Vec<(String, String)> =
        data.iter().filter(|(key, _)| is_aside(key)).map(|(key, text)| (captured_at(text), key.clone())).collect();
    // Times in RFC 3339 and UTC can be sorted as texts. The oldest is first.
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
    fn unreadable_texts_and_data_of_others_stay() {
        let before = data_of(&[("state.json", "{nonsense"), ("notes", "mine")]);
        let (after, _) = merged(&before, &state("n1", None), &[]).unwrap().unwrap();
        assert_eq!(after["notes"], "mine");
        assert_eq!(after[&corrupt_key("{nonsense")], "{nonsense");
        assert_eq!(parse(&after["state.json"]).unwrap().node_name, "n1");
    }

    #[test]
    fn the_record_of_another_machine_with_the_name_is_kept_and_restored() {
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
    fn the_record_of_a_machine_that_is_gone_does_not_displace_one_that_lives() {
        let (one, two) = (state("n1", Some("name=n1,systemUUID=1")), state("n1", Some("name=n1,systemUUID=2")));
        let gone =
            |state: &SavedState| SavedState { deleted_at: Some("2026-11-21T10:00:00Z".to_owned()), ..state.clone() };
        let (first, _) = merged(&BTreeMap::new(), &one, &[]).unwrap().unwrap();
        let (second, _) = merged(&first, &two, &[]).unwrap().unwrap();
        // The deletion of the first one is recorded late.
        let (third, _) = merged(&second, &gone(&one), &[]).unwrap().unwrap();
        assert_eq!(parse(&third["state.json"]).unwrap().identity, two.identity);
        assert_eq!(parse(&third[&aside_key("name=n1,systemUUID=1")]).unwrap().deleted_at, gone(&one).deleted_at);
        assert_eq!(merged(&third, &gone(&one), &[]).unwrap(), None);
        // Of two that are gone, the one that was written last is the current one.
        let (fourth, _) = merged(&third, &gone(&two), &[]).unwrap().unwrap();
        let (fifth, _) = merged(&fourth, &gone(&one), &[]).unwrap().unwrap();
        assert_eq!(parse(&fifth["state.json"]).unwrap().identity, one.identity);
    }

    #[test]
    fn the_history_is_bounded_and_nothing_is_written_if_nothing_differs() {
        let change = Change { key: "a".to_owned(), ..Change::default() };
        let many = vec![change; HISTORY_MAX + 3];
        let (after, _) = merged(&BTreeMap::new(), &state("n1", None), &many).unwrap().unwrap();
        let history = parse(&after["state.json"]).unwrap().history;
        assert_eq!((history.len(), history.last().unwrap().id), (HISTORY_MAX, HISTORY_MAX as u64 + 3));
        assert_eq!(merged(&after, &state("n1", None), &[]).unwrap(), None);
    }

    #[test]
    fn changes_that_are_recorded_once_more_are_told_once() {
        let change = |key: &str, time: &str| Change { key: key.into(), time: time.into(), ..Change::default() };
        let [first, second] = [change("a", "2026-11-30T04:00:00Z"), change("a", "2026-11-30T04:00:01Z")];
        let (once, _) = merged(&BTreeMap::new(), &state("n1", None), std::slice::from_ref(&first)).unwrap().unwrap();
        assert_eq!(merged(&once, &state("n1", None), std::slice::from_ref(&first)).unwrap(), None);
        let (twice, _) = merged(&once, &state("n1", None), &[first.clone(), second.clone()]).unwrap().unwrap();
        let told = parse(&twice["state.json"]).unwrap().history;
        assert_eq!(told, [Change { id: 1, ..first.clone() }, Change { id: 2, ..second }]);
        let back = Change { new: Some("x".into()), ..first.clone() };
        let (to_and_fro, _) = merged(&once, &state("n1", None), &[back.clone(), first.clone()]).unwrap().unwrap();
        let told = parse(&to_and_fro["state.json"]).unwrap().history;
        assert_eq!(told, [Change { id: 1, ..first.clone() }, Change { id: 2, ..back }, Change { id: 3, ..first }]);
    }

    #[test]
    fn of_many_machines_with_one_name_the_latest_few_are_kept_and_data_of_others_stays() {
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
    fn a_config_map_never_exceeds_the_size_that_the_api_server_accepts() {
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
        assert_eq!(gone, [0, 1, 0, 1, 1], "the unreadable text is dropped first, then the oldest of three");
        let more = SavedState {
            labels: (0..5200).map(|key| (format!("persist.demo/{key:0>60}"), "x".repeat(63))).collect(),
            ..state("n1", None)
        };
        assert!(matches!(merged(&data, &more, &[]), Err(WriteError::TooLarge { .. })));
    }

    #[test]
    fn long_texts_of_changes_are_truncated_and_the_history_is_dropped_before_the_record() {
        let long = "ä".repeat(200_000);
        let change = Change { key: "a".to_owned(), by: long.clone(), new: Some(long), ..Change::default() };
        let (after, _) = merged(&BTreeMap::new(), &state("n1", None), &vec![change; HISTORY_MAX]).unwrap().unwrap();
        let read = parse(&after["state.json"]).unwrap();
        assert_eq!(read.history.len(), HISTORY_MAX);
        assert!(read.history.iter().all(|change| change.by.len() <= TEXT_MAX));
        let full = SavedState {
            labels: (0..1500).map(|key| (format!("persist.demo/{key:0>240}"), "x".repeat(63))).collect(),
            history: read.history,
            ..state("n1", None)
        };
        assert!(parse(&text_of(full).unwrap()).unwrap().history.len() < HISTORY_MAX);
    }
}
