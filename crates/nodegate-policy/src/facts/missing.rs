//! Which publishers of labels a node lacks.

use crate::api::state::{SavedState, SharedText};
use crate::facts::Readiness;
use crate::facts::publishers::{ALL, Publisher, Publishers};

/// What is remembered of publishers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory<'a> {
    /// Those that have published on this node object, by their names in its record.
    seen: &'a [SharedText],
    /// Those that have published on an earlier object of the node.
    before: [&'a [SharedText]; 2],
    /// Those that publish on other nodes.
    elsewhere: Publishers,
}

impl<'a> Memory<'a> {
    /// What a record says, which is of this node object or of an earlier one, and what other nodes show.
    pub(crate) fn of(record: Option<&'a SavedState>, is_of_this_object: bool, elsewhere: Publishers) -> Self {
        let Some(SavedState { publishers, publishers_before, .. }) = record else {
            return Self { elsewhere, ..Self::default() };
        };
        if is_of_this_object {
            Self { seen: publishers, before: [publishers_before, &[]], elsewhere }
        } else {
            Self { seen: &[], before: [publishers, publishers_before], elsewhere }
        }
    }
}

/// Which publishers a node lacks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Missing {
    /// Those that have published on this node object.
    pub(crate) here: Publishers,
    /// Those of them that are away, and those that come through one that is.
    pub(crate) away: Publishers,
    /// Those whose labels cannot be told from being absent: the ones that are away, and on a node that starts also those of an
    /// earlier object of it.
    pub(crate) awaited: Publishers,
    /// Those that may still come: they publish on this node or on others.
    pub(crate) expected: Publishers,
}

impl Missing {
    /// The publishers that a node lacks. `old`: those of its labels before this write. `present`: those of its labels now.
    pub(crate) fn on(
        readiness: Readiness,
        old: Publishers,
        memory: &Memory<'_>,
        present: impl FnOnce() -> Publishers,
    ) -> Self {
        let here = Publishers::named(memory.seen).and(old);
        let before = memory.before.into_iter().map(Publishers::named).fold(Publishers::default(), Publishers::and);
        // A machine that joins again gets its labels again, but another one may have taken its name.
        let known = if readiness == Readiness::Starting { here.and(before) } else { here };
        let missing = Self { here, expected: here.and(before).and(memory.elsewhere), ..Self::default() };
        if known == Publishers::default() {
            return missing;
        }
        let present = present();
        let lacking = |known: Publishers| {
            let is_gone = |publisher: Publisher| known.contains(publisher) && !present.contains(publisher);
            let is_away = |publisher: &Publisher| is_gone(*publisher) || publisher.through().is_some_and(is_gone);
            ALL.into_iter().filter(is_away).collect()
        };
        Self { away: lacking(here), awaited: lacking(known), ..missing }
    }
}
