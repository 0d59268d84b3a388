//! `keep`: what a living node needs so that it has, and goes on having, what it should.
//!
//! The controller's half of deciding: the same rules as [`super::decide`], for a node as it is stored, with what is
//! recorded of it. Pure like that.

use std::collections::BTreeSet;
use std::time::Duration;

mod capture;
mod record;
#[cfg(test)]
mod tests;
mod unseen;

use capture::Captured;
pub use capture::{SAVED_LABELS_MAX, SAVED_TAINTS_MAX};
use record::own;
pub use unseen::Unseen;

use super::claims::Claims;
use super::decide::{Occasion, Split, set_owned_aside};
use super::decision::{ChangeBuilder, Decision, Field, Note, Strength};
use super::evaluate::{Evaluation, Sources};
use super::facts::NodeFacts;
use super::request::{Operation, Requester, Write};
use super::restriction::is_own;
use super::rule::REMOVE_AFTER;
use super::set::PolicySet;
use super::view::{self, View};
use crate::api::names::TaintId;
use crate::api::state::{Owned, SavedState};

/// A node as it is stored, and what is known of its past.
#[derive(Clone, Copy, Debug)]
pub struct Living<'a> {
    /// The node.
    pub node: &'a NodeFacts<'a>,
    /// Who claims which of its keys.
    pub claims: &'a Claims,
    /// What is recorded of it; empty when nothing is.
    pub saved: &'a SavedState,
    /// Whether the node was created after the mutating webhook was registered, so that admission should have seen it.
    pub registered: bool,
    /// Whether it is known what machine this is. If not, nothing is restored yet and its uid is not recorded.
    pub identified: bool,
    /// Pending taints to lift.
    pub pending: &'a [TaintId],
    /// Whether keys that are there with the desired value become ours, whoever claims them.
    pub adopt: bool,
    /// Taints (`key:Effect`) that came by a webhook's patch since the node was last recorded.
    pub patched_taints: &'a BTreeSet<String>,
}

/// A key that nodegate put on the node and no rule gives any more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Removal {
    /// Which part of the node.
    pub field: Field,
    /// The key; for a taint `key:Effect`.
    pub key: String,
    /// How long it must have been so before it is removed.
    pub after: Duration,
}

/// What a living node needs.
#[derive(Clone, Debug)]
pub struct Keep {
    /// What it should have.
    pub decision: Decision,
    /// Whether this node object was not recorded before.
    pub first_sight: bool,
    /// Owned keys to remove once their grace has passed.
    pub removals: Vec<Removal>,
    /// Protected keys that a kubelet brought while the webhook was away, to be removed now.
    pub forged: Vec<String>,
    /// Whether a pending taint is lifted.
    pub lifts_pending: bool,
    /// What was admitted although nobody was asked, as far as one look can tell.
    pub unseen: Option<Unseen>,
    /// How many persisted labels and taints are not saved, because the node has too many.
    pub not_saved: usize,
    additions: ChangeBuilder,
    kept: Owned,
    base: SavedState,
    restores: bool,
    recorded_uid: Option<String>,
    captured: Captured,
}

/// Decides what a living node needs.
///
/// # Guarantees
/// - Pure: no I/O, no clock.
/// - Once [`Keep::change`] is made and [`Keep::record`] kept, asking again gives no change and the same record.
pub fn keep(set: &PolicySet, living: &Living<'_>) -> Keep {
    let uid = living.node.uid.as_deref();
    let first_sight = living.saved.node_uid.as_deref() != uid || uid.is_none();
    let write = Write {
        operation: Operation::Update,
        status: false,
        dry_run: false,
        requester: Requester::default(),
        node: living.node.clone(),
        old: None,
    };
    // A machine that is not known yet is seen for the first time again and again: what came since is not its kubelet's.
    let suspects: Vec<&str> = if first_sight && living.registered && living.identified {
        // What has the value that was saved is what it had before, and nothing that its kubelet could make up.
        let is_saved = |key: &str, value: &str| living.saved.labels.get(key).is_some_and(|saved| saved == value);
        let set_aside = |key: &str, value: &str| (set.is_protected(key) || is_own(key)) && !is_saved(key, value);
        living.node.labels().filter(|(key, value)| set_aside(key, value)).map(|(key, _)| key).collect()
    } else {
        Vec::new()
    };
    let mut keeper = Keeper::run(set, living, &write, first_sight, &suspects);
    // A key with the desired value that nobody claims is the mark of our webhook: it was there, so what a kubelet
    // may not assert is gone already, and the rest is somebody's who may.
    if !suspects.is_empty() && (keeper.was_admitted_by_us() || keeper.split.decision.labels.is_empty()) {
        keeper = Keeper::run(set, living, &write, first_sight, &[]);
    }
    keeper.finish()
}

struct Keeper<'a> {
    set: &'a PolicySet,
    living: &'a Living<'a>,
    first_sight: bool,
    /// Sorted, as labels are.
    suspects: Vec<&'a str>,
    split: Split<'a>,
    evaluation: Evaluation<'a>,
}

impl<'a> Keeper<'a> {
    fn run(
        set: &'a PolicySet,
        living: &'a Living<'a>,
        write: &'a Write<'a>,
        first_sight: bool,
        suspects: &[&'a str],
    ) -> Self {
        let mut view = View::new(set, living.node, None);
        view.set_pending_aside(living.pending);
        if !first_sight {
            set_owned_aside(&mut view, living.saved);
            view.remember_publishers(&living.saved.publishers);
        }
        for key in suspects {
            view.set_label_aside(key, None);
        }
        let saved = (first_sight && living.identified).then_some(living.saved);
        let sources = Sources { defaults: first_sight, saved };
        let (split, evaluation) = Split::run(set, write, view, Occasion { sources, initial: false }, None);
        Self { set, living, first_sight, suspects: suspects.to_vec(), split, evaluation }
    }

    /// Whether a desired key is there with its value and claimed by nobody.
    fn was_admitted_by_us(&self) -> bool {
        let node = self.living.node;
        let decision = &self.split.decision;
        decision
            .labels
            .iter()
            .any(|(key, desired)| node.label(key) == Some(&desired.value) && !self.living.claims.has_label(key))
    }

    fn finish(mut self) -> Keep {
        let unseen = self.unseen();
        let forged = self.forged();
        let (kept, removals) = self.owned();
        let lifts_pending = self.lift_pending();
        let captured = self.captured();
        let base = self.base();
        let additions = std::mem::take(&mut self.split.change);
        let strong = |strength: Strength| strength != Strength::Enforced;
        let decision = self.split.decision;
        let restores = additions.labels.keys().any(|key| decision.labels.get(key).is_some_and(|d| strong(d.strength)))
            || additions.taints.keys().any(|id| decision.taints.get(id).is_some_and(|d| strong(d.strength)));
        Keep {
            decision,
            first_sight: self.first_sight,
            removals,
            forged,
            lifts_pending,
            unseen,
            not_saved: captured.left_out,
            additions,
            kept,
            base,
            restores,
            recorded_uid: self.living.saved.node_uid.clone(),
            captured,
        }
    }

    /// Protected keys that are neither desired nor saved, on a node that came while the webhook was away.
    fn forged(&mut self) -> Vec<String> {
        let decision = &self.split.decision;
        let forged: Vec<String> = self
            .suspects
            .iter()
            .filter(|key| !decision.labels.contains_key(**key))
            .map(|key| (*key).to_owned())
            .collect();
        for key in &forged {
            self.split.change.labels.insert(key.clone(), None);
            self.split.decision.notes.push(Note::Stripped { field: Field::Label, key: key.clone() });
        }
        forged
    }

    fn lift_pending(&mut self) -> bool {
        let mut lifts = false;
        for id in self.living.pending {
            let wanted = self.split.decision.taints.contains_key(id);
            if !wanted && self.living.node.taint(id.key.as_str(), id.effect).is_some() {
                self.split.change.taints.insert(id.clone(), None);
                lifts = true;
            }
        }
        lifts
    }

    /// What is owned and stays so, and what is owned and no longer wanted.
    fn owned(&self) -> (Owned, Vec<Removal>) {
        let node = self.living.node;
        let decision = &self.split.decision;
        let mut kept = Owned::default();
        let mut removals = Vec::new();
        let none = Owned::default();
        let before = if self.first_sight { &none } else { self.living.saved.owned.as_ref().unwrap_or(&none) };
        let grace =
            |key: &str| before.remove_after.get(key).map_or(REMOVE_AFTER, |seconds| Duration::from_secs(*seconds));
        let mut unwanted = |field, key: String, unknown: bool, kept: &mut Owned| {
            if let Some(seconds) = before.remove_after.get(&key) {
                kept.remove_after.insert(key.clone(), *seconds);
            }
            if !unknown {
                removals.push(Removal { field, after: grace(&key), key });
            }
        };
        for (key, value) in &before.labels {
            if decision.labels.contains_key(key) || node.label(key) != Some(value) {
                continue;
            }
            kept.labels.insert(key.clone(), value.clone());
            unwanted(
                Field::Label,
                key.clone(),
                self.evaluation.may_still_give(|rule| rule.may_write_label(key)),
                &mut kept,
            );
        }
        for (key, value) in &before.annotations {
            if decision.annotations.contains_key(key) || node.annotation(key) != Some(value) {
                continue;
            }
            kept.annotations.insert(key.clone(), value.clone());
            unwanted(
                Field::Annotation,
                key.clone(),
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
        (kept, removals)
    }

    /// Desired keys that are there already: ours if they were, or if nobody claims them.
    fn found(&self, before: &Owned, kept: &mut Owned) {
        let (node, claims, decision) = (self.living.node, self.living.claims, &self.split.decision);
        let enforced = |strength| strength == Strength::Enforced;
        let adopt = self.living.adopt;
        for (key, desired) in decision.labels.iter().filter(|(_, desired)| enforced(desired.strength)) {
            let there = node.label(key) == Some(&desired.value);
            // Its kubelet can have claimed a protected label that it sent with the right value, to keep it for ever.
            let unclaimable = self.first_sight && self.living.registered && self.set.is_protected(key);
            if before.labels.contains_key(key) || (there && (adopt || unclaimable || !claims.has_label(key))) {
                own(kept, decision, Field::Label, key, &desired.value);
            }
        }
        for (key, desired) in decision.annotations.iter().filter(|(_, desired)| enforced(desired.strength)) {
            let there = node.annotation(key) == Some(&desired.value);
            if before.annotations.contains_key(key) || (there && (adopt || !claims.has_annotation(key))) {
                own(kept, decision, Field::Annotation, key, &desired.value);
            }
        }
        for (id, desired) in decision.taints.iter().filter(|(_, desired)| enforced(desired.strength)) {
            let there = node.taint(id.key.as_str(), id.effect) == Some(&desired.value);
            let was = before.taints.iter().any(|taint| taint.id().as_ref() == Ok(id));
            // Taints carry no claims. At first sight of a node that admission saw, a desired one is ours; later, one that
            // came by a patch.
            let id = id.to_string();
            let admitted = (self.first_sight && self.living.registered) || self.living.patched_taints.contains(&id);
            if was || (there && (adopt || admitted)) {
                own(kept, decision, Field::Taint, &id, &desired.value);
            }
        }
    }

    /// The record without what the node's keys decide.
    fn base(&self) -> SavedState {
        let saved = self.living.saved;
        let mut publishers = view::publishers(self.living.node);
        if !self.first_sight {
            publishers.extend(saved.publishers.iter().cloned());
            publishers.sort_unstable();
            publishers.dedup();
        }
        SavedState {
            node_name: self.living.node.name.to_string(),
            node_uid: self.living.identified.then(|| self.living.node.uid.as_deref().map(str::to_owned)).flatten(),
            publishers,
            deleted_at: None,
            ..saved.clone()
        }
    }
}
