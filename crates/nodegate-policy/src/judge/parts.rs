//! The keys of a node in parts. A writer may send any number of keys, and what is found about a key takes many times the
//! bytes of the key, so one part is judged after the other.

use super::changes::KeyChange;
use crate::facts::NodeFacts;
use crate::facts::json::borrow::Entries;
use crate::facts::request::Write;
use crate::keys::Field;

/// The number of keys of one kind in a part.
const KEYS: usize = 4_096;

/// A range of keys, of labels, annotations and taints alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part<'a> {
    /// The first key; `None` before all keys.
    from: Option<&'a str>,
    /// The first key behind it; `None` behind all keys.
    to: Option<&'a str>,
}

impl<'a> Part<'a> {
    /// Parts with all keys of a write, in order. Nearly every write has one.
    pub(super) fn of(write: &'a Write<'a>, changes: &[KeyChange<'a>]) -> Vec<Self> {
        let mut bounds: Vec<&'a str> = Vec::new();
        for node in std::iter::once(&write.node).chain(&write.old) {
            bounds.extend(every(NodeFacts::labels(node).map(|(key, _)| key)));
            bounds.extend(every(NodeFacts::annotations(node).map(|(key, _)| key)));
        }
        let taints = changes.iter().filter(|change| change.place.field == Field::Taint);
        bounds.extend(every(taints.map(|change| change.place.key)));
        bounds.sort_unstable();
        bounds.dedup();
        let ends = bounds.iter().copied().map(Some).chain([None]);
        std::iter::once(None)
            .chain(bounds.iter().copied().map(Some))
            .zip(ends)
            .map(|(from, to)| Self { from, to })
            .collect()
    }

    /// Whether this is the first part.
    pub(super) fn is_first(self) -> bool {
        self.from.is_none()
    }

    /// The entries of it.
    pub(super) fn entries<'e>(self, entries: Option<&'e Entries<'_>>) -> impl Iterator<Item = (&'e str, &'e str)> {
        entries.into_iter().flat_map(move |entries| entries.range(self.from, self.to))
    }

    /// Whether a key is in it.
    pub(super) fn has(self, key: &str) -> bool {
        self.from.is_none_or(|from| key >= from) && self.to.is_none_or(|to| key < to)
    }
}

fn every<'a>(keys: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    keys.skip(KEYS).step_by(KEYS)
}
