//! The value that a migration copies from one of its keys to the other.

use crate::api::names::LabelKey;
use crate::api::policy::MigrationPhase;
use crate::decide::decision::Note;
use crate::decide::view::View;
use crate::decide::{DecisionBuilder, PatchScope};
use crate::set::kleene::Kleene;
use crate::set::migration::Migration;

/// A label that a migration sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copied<'a> {
    pub(crate) key: &'a LabelKey,
    pub(crate) value: String,
}

impl Migration {
    /// Whether it applies to the node without the values that it sets itself, and the label that it then sets.
    ///
    /// The key that counts is never set while it is there. So nodegate never owns both keys, which would make both
    /// disappear, because rules do not see what nodegate owns.
    pub(crate) fn evaluate<'a>(&'a self, view: &View<'_>) -> (Kleene, Option<Copied<'a>>) {
        let (leader, follower) = self.leader_and_follower();
        let copy = |key: &'a LabelKey, value: &str| Some(Copied { key, value: value.to_owned() });
        match (seen(view, leader), seen(view, follower)) {
            (LabelState::Value(_), _) if self.phase == MigrationPhase::Done => (Kleene::True, None),
            (LabelState::Value(value), _) => (Kleene::True, copy(follower, value)),
            (LabelState::PublisherGone, _) | (LabelState::Absent, LabelState::PublisherGone) => (Kleene::Unknown, None),
            (LabelState::Absent, LabelState::Value(value)) => (Kleene::True, copy(leader, value)),
            (LabelState::Absent, LabelState::Absent) => {
                let awaited = [leader, follower].into_iter().any(|key| view.awaited(key.as_str()).is_some());
                (if awaited { Kleene::Unknown } else { Kleene::False }, None)
            }
        }
    }
}

impl DecisionBuilder<'_> {
    /// Removes the old keys of migrations that are done from a node that joins with the new key, or gets it in the same write.
    ///
    /// If the controller removed them later, kubelets that still send the old key would exhaust the limit on removals.
    pub(crate) fn retire(&mut self) {
        if self.scope != PatchScope::KubeletCreate {
            return;
        }
        for (rule, migration) in self.set.migrating_rules().filter(|(_, one)| one.phase == MigrationPhase::Done) {
            let (old, new) = (migration.from.as_str(), migration.to.as_str());
            let joins_with = |key: &str| match self.change.labels.get(key) {
                Some(change) => change.is_some(),
                None => self.write.node.label(key).is_some(),
            };
            if joins_with(old) && joins_with(new) {
                self.change.labels.insert(old.to_owned(), None);
                let note = Note::Retired { key: old.to_owned(), new: new.to_owned(), by: rule.id.clone() };
                self.decision.notes.push(note);
            }
        }
    }
}

/// A label as rules see it.
enum LabelState<'v> {
    Value(&'v str),
    Absent,
    /// It is absent, like all others of its publisher, which may have just restarted.
    PublisherGone,
}

fn seen<'v>(view: &'v View<'_>, key: &LabelKey) -> LabelState<'v> {
    match view.label(key.as_str()) {
        Some(value) => LabelState::Value(value),
        None if view.away(key.as_str()).is_some() => LabelState::PublisherGone,
        None => LabelState::Absent,
    }
}
