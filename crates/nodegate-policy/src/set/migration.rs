//! Compiled migrations: labels that move from one key to another.

use crate::api::names::LabelKey;
use crate::api::policy::MigrationPhase;

/// One migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Migration {
    /// The old key.
    pub(crate) from: LabelKey,
    /// The new key.
    pub(crate) to: LabelKey,
    pub(crate) phase: MigrationPhase,
    /// Index of the document in [`crate::set::governance::Governance::documents`].
    pub(crate) document: usize,
}

/// A migration in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationInForce<'a> {
    /// The policy that contains it.
    pub policy: &'a str,
    /// The old key.
    pub from: &'a str,
    /// The new key.
    pub to: &'a str,
    /// Its phase.
    pub phase: MigrationPhase,
}

/// How nodegate owns a value that it assigns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// nodegate owns it if it wrote it, or if nobody claims it.
    #[default]
    Usual,
    /// The same. The record also says that a migration copied it, because ownership ends when the key becomes the new key
    /// of a migration that is cut over.
    Copied,
    /// nodegate owns it, whoever wrote it: the old key after cutover, which follows the new one and is removed at the end.
    TakenOver,
    /// nodegate does not own it: the new key after cutover, which stays when the migration is deleted.
    Given,
}

impl Migration {
    /// The key whose value counts, and the key that follows it.
    pub(crate) fn leader_and_follower(&self) -> (&LabelKey, &LabelKey) {
        match self.phase {
            MigrationPhase::DualWrite => (&self.from, &self.to),
            MigrationPhase::Cutover | MigrationPhase::Done => (&self.to, &self.from),
        }
    }

    /// Whether the new key is the one that counts.
    pub(crate) fn is_cut_over(&self) -> bool {
        match self.phase {
            MigrationPhase::DualWrite => false,
            MigrationPhase::Cutover | MigrationPhase::Done => true,
        }
    }

    /// The other one of its keys; `None` if this is neither of them.
    pub(crate) fn other(&self, key: &str) -> Option<&LabelKey> {
        match (key == self.from.as_str(), key == self.to.as_str()) {
            (true, _) => Some(&self.to),
            (_, true) => Some(&self.from),
            (false, false) => None,
        }
    }

    /// The keys that it may set.
    pub(crate) fn written(&self) -> impl Iterator<Item = &LabelKey> {
        let old = (self.phase != MigrationPhase::Done).then_some(&self.from);
        old.into_iter().chain([&self.to])
    }

    /// How nodegate owns a key that it sets.
    pub(crate) fn ownership(&self, key: &str) -> Ownership {
        match (self.is_cut_over(), key == self.from.as_str()) {
            (false, _) => Ownership::Copied,
            (true, true) => Ownership::TakenOver,
            (true, false) => Ownership::Given,
        }
    }
}
