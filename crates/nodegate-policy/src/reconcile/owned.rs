//! The keys of a stored node that nodegate owns: those that stay, and those that no rule assigns anymore.

use std::time::Duration;

use super::record::{is_ownable, own};
use super::{Planner, Removal, moved};
use crate::api::state::Owned;
use crate::keys::Field;
use crate::set::migration::Ownership;
use crate::set::rule::{REMOVE_AFTER, Rule, Strength};

impl Planner<'_> {
    /// The owned keys that are kept, and those to remove.
    pub(super) fn owned(&self) -> (Owned, Vec<Removal>) {
        let node = self.stored.node;
        let decision = &self.builder.decision;
        let mut kept = Owned::default();
        let mut removals = Vec::new();
        let none = Owned::default();
        let before = if self.first_sight { &none } else { self.stored.saved.owned.as_ref().unwrap_or(&none) };
        let grace =
            |key: &str| before.remove_after.get(key).map_or(REMOVE_AFTER, |seconds| Duration::from_secs(*seconds));
        let mut unwanted = |field, key: String, unknown: bool, kept: &mut Owned| {
            if let Some(seconds) = before.remove_after.get(&*key) {
                kept.remove_after.insert(key.as_str().into(), *seconds);
            }
            if !unknown {
                removals.push(Removal { field, after: grace(&key), key });
            }
        };
        for (key, value) in before.labels.iter() {
            if decision.labels.contains_key(key) || node.label(key) != Some(value) {
                continue;
            }
            if moved::is_given_up(self.set, self.stored, before, key) {
                continue;
            }
            moved::keep_origin(before, key, &mut kept);
            kept.labels.insert(key, value);
            // A copy is needed as long as its source may be given again.
            let source = self.set.moved(key).map(|(_, other)| other.as_str());
            let may_give =
                |rule: &Rule| rule.may_write_label(key) || source.is_some_and(|source| rule.may_write_label(source));
            unwanted(Field::Label, key.to_owned(), self.evaluation.may_still_give(may_give), &mut kept);
        }
        for (key, value) in before.annotations.iter() {
            if decision.annotations.contains_key(key) || node.annotation(key) != Some(value) {
                continue;
            }
            kept.annotations.insert(key, value);
            unwanted(
                Field::Annotation,
                key.to_owned(),
                self.evaluation.may_still_give(|rule| rule.may_write_annotation(key)),
                &mut kept,
            );
        }
        for taint in &before.taints {
            let Ok(id) = taint.id() else { continue };
            if decision.taints.contains_key(&id) || node.taint(&taint.key, id.effect) != Some(&taint.value) {
                continue;
            }
            kept.taints.push(taint.clone());
            unwanted(
                Field::Taint,
                id.to_string(),
                self.evaluation.may_still_give(|rule| rule.may_write_taint(&id)),
                &mut kept,
            );
        }
        self.found(before, &mut kept);
        self.retire(&mut removals);
        (kept, removals)
    }

    /// Desired keys that are already present: owned if they were before, or if nobody claims them.
    fn found(&self, before: &Owned, kept: &mut Owned) {
        let (node, claims, decision) = (self.stored.node, self.stored.claims, &self.builder.decision);
        let kept_values = |strength: Strength| strength.is_kept();
        let adopt = self.stored.adopt;
        for (key, desired) in decision.labels.iter().filter(|(_, desired)| is_ownable(desired)) {
            let there = node.label(key) == Some(&desired.value);
            let adopt = adopt || self.is_taken(before, key, desired.ownership);
            // A kubelet may send a protected label with the desired value to claim it permanently, so such a claim is ignored.
            let unclaimable = self.first_sight && self.stored.registered && self.set.is_protected(key);
            // A change that was made says in managedFields that nodegate made it, whatever the record says.
            let is_ours = before.labels.contains_key(key) || adopt || unclaimable || !claims.others_have_label(key);
            if there && is_ours {
                own(kept, decision, Field::Label, key, &desired.value);
            } else if let Some(value) = before.labels.get(key) {
                // Until the change is made, nodegate owns what is there.
                own(kept, decision, Field::Label, key, value);
            }
            if desired.ownership == Ownership::TakenOver && self.is_original(before, key) {
                kept.taken_over.insert(key.as_str().into());
            }
        }
        for (key, desired) in decision.annotations.iter().filter(|(_, desired)| kept_values(desired.strength)) {
            let there = node.annotation(key) == Some(&desired.value);
            if before.annotations.contains_key(key) || (there && (adopt || !claims.has_annotation(key))) {
                own(kept, decision, Field::Annotation, key, &desired.value);
            }
        }
        for (id, desired) in decision.taints.iter().filter(|(_, desired)| kept_values(desired.strength)) {
            let there = node.taint(id.key.as_str(), id.effect) == Some(&desired.value);
            let was = before.taints.iter().any(|taint| taint.id().as_ref() == Ok(id));
            // Taints have no individual claims. At first sight of a node that admission handled, a desired taint is owned;
            // later, one that a patch added.
            let id = id.to_string();
            let admitted = (self.first_sight && self.stored.registered) || self.stored.patched_taints.contains(&id);
            if was || (there && (adopt || admitted)) {
                own(kept, decision, Field::Taint, &id, &desired.value);
            }
        }
    }
}
