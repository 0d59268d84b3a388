//! Which of the keys of a migration are copies, and which of them others set.

use std::time::Duration;

use super::{Planner, Removal, StoredNode};
use crate::api::policy::MigrationPhase;
use crate::api::state::Owned;
use crate::decide::view::View;
use crate::keys::Field;
use crate::set::PolicySet;
use crate::set::migration::Ownership;

/// Masks the old keys that the webhook copied from new ones, and shows the copies that others have made their own.
pub(super) fn mask_originals<'a>(view: &mut View<'a>, stored: &StoredNode<'a>, first_sight: bool) {
    let set = view.set();
    let (node, claims) = (stored.node, stored.claims);
    let before = stored.saved.owned.as_ref().filter(|_| !first_sight);
    for (_, migration) in set.migrating_rules().filter(|(_, migration)| !migration.is_cut_over()) {
        let (old, new) = (migration.from.as_str(), migration.to.as_str());
        for key in [old, new] {
            if before.is_some_and(|before| is_anothers(set, stored, before, key)) {
                view.mask_label(key, node.label(key));
            }
        }
        // Another webhook may have set the old key: nobody claims that either. It is a copy if the node joined with the new
        // key only, or if it has another value than the one that was copied from it before.
        let joined = first_sight && stored.registered;
        let changed =
            before.is_some_and(|before| before.copies.contains(new) && before.labels.get(new) != node.label(new));
        let is_unclaimed = !claims.has_label(old) && claims.others_have_label(new);
        let is_equal = node.label(old).is_some() && node.label(old) == view.base_label(new);
        if (joined || changed) && is_unclaimed && is_equal {
            view.mask_label(old, None);
        }
    }
}

/// Whether an owned label that no rule gives leaves ownership and stays.
pub(super) fn is_given_up(set: &PolicySet, stored: &StoredNode<'_>, before: &Owned, key: &str) -> bool {
    let became_new_key = before.copies.contains(key) && set.replacement(key).is_some();
    let counts_again = before.taken_over.contains(key) && set.counts_still(key);
    became_new_key || counts_again || is_anothers(set, stored, before, key)
}

/// Whether someone has set the copy and removed the key that it was copied from.
///
/// Claims do not prove that for keys that a kubelet may not set: it can claim any key when its node is created.
fn is_anothers(set: &PolicySet, stored: &StoredNode<'_>, before: &Owned, key: &str) -> bool {
    let Some((migration, source)) = set.moved(key) else { return false };
    !migration.is_cut_over()
        && before.copies.contains(key)
        && before.labels.get(key) == stored.node.label(key)
        && stored.node.label(source.as_str()).is_none()
        && stored.claims.others_have_label(key)
        && !set.is_beyond_kubelets(key)
}

/// Keeps what is recorded about the origin of an owned label.
pub(super) fn keep_origin(before: &Owned, key: &str, kept: &mut Owned) {
    let sets = [(&before.copies, &mut kept.copies), (&before.taken_over, &mut kept.taken_over)];
    for (recorded, kept) in sets {
        if recorded.contains(key) {
            kept.insert(key.into());
        }
    }
}

impl Planner<'_> {
    /// Whether nodegate becomes the owner of a label that has the desired value, although it is claimed.
    pub(super) fn is_taken(&self, before: &Owned, key: &str, ownership: Ownership) -> bool {
        match ownership {
            Ownership::TakenOver => true,
            // The new key was a copy before cutover, unless others claim it.
            Ownership::Copied => {
                let source = self.set.moved(key).map(|(_, source)| source.as_str());
                source.is_some_and(|source| before.taken_over.contains(source))
                    && !self.stored.claims.others_have_label(key)
            }
            Ownership::Usual | Ownership::Given => false,
        }
    }

    /// Whether others set the old key of a migration that is cut over.
    pub(super) fn is_original(&self, before: &Owned, old: &str) -> bool {
        if before.labels.contains_key(old) || self.stored.node.label(old).is_none() {
            return before.taken_over.contains(old) && self.stored.node.label(old).is_some();
        }
        let is_source = |new: &str| before.copies.contains(new);
        self.stored.claims.others_have_label(old) || self.set.moved(old).is_some_and(|(_, new)| is_source(new.as_str()))
    }

    /// Whether this is the old key of a migration that is done, on a node that has the new key.
    pub(super) fn is_retired(&self, key: &str) -> bool {
        let new = self.set.replaced(key).filter(|(_, migration)| migration.phase == MigrationPhase::Done);
        new.is_some_and(|(_, migration)| self.stored.node.label(migration.to.as_str()).is_some())
    }

    /// Removes the old keys of migrations that are done: whoever set them, once the node has the new key, and without a
    /// grace period.
    pub(super) fn retire(&self, removals: &mut Vec<Removal>) {
        let node = self.stored.node;
        for (_, migration) in self.set.migrating_rules().filter(|(_, one)| one.phase == MigrationPhase::Done) {
            let old = migration.from.as_str();
            if node.label(old).is_some() && self.is_retired(old) {
                removals.retain(|removal| removal.field != Field::Label || removal.key != old);
                removals.push(Removal { field: Field::Label, key: old.to_owned(), after: Duration::ZERO });
            }
        }
    }
}
