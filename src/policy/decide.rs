//! `decide`: what a node should have, and what of it one request carries.

use std::collections::BTreeMap;

use super::decision::{ChangeBuilder, Decision, Desired, Field, Note, Strength};
use super::evaluate::{Evaluation, Sources};
use super::guard::Guard;
use super::limits::fit;
use super::request::{Circumstances, Operation, Write};
use super::restriction::{is_own, is_restricted};
use super::set::PolicySet;
use super::view::{Givers, View};
use crate::api::names::{LabelKey, TaintEffect, TaintId};
use crate::api::state::SavedState;

/// What this requester's request may carry (NodeRestriction judges our patch as his own).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carries {
    /// Anyone but a kubelet.
    Everything,
    /// A kubelet's CREATE: taints, and labels that are not restricted.
    Joining,
    /// A kubelet's UPDATE: labels that are neither restricted nor held (see [`Guard`]).
    Living,
}

impl Carries {
    fn of(write: &Write<'_>) -> Self {
        match (write.requester.is_kubelet(), write.operation) {
            (false, _) => Self::Everything,
            (true, Operation::Create) => Self::Joining,
            (true, Operation::Update) => Self::Living,
        }
    }

    fn taints(self) -> bool {
        self != Self::Living
    }
}

/// Decides what the node in `write` should have, and splits the change into what this request
/// carries and what is deferred.
///
/// # Guarantees
/// - Pure: no I/O, no clock; the same arguments give the same decision.
/// - Applying `change` to the object and deciding again gives no further `change`.
/// - Nothing is removed but what a kubelet may not assert.
/// - The API server takes the object with `change` if it takes it without: what does not fit is left out (see [`fit`]).
/// - With `change`, a kubelet's UPDATE leaves every label that it may not change as it is stored, also where a rule gives
///   another value: that is deferred.
pub fn decide<'a>(set: &'a PolicySet, write: &'a Write<'a>, circumstances: &Circumstances<'a>) -> Decision {
    let guard = Guard::of(set, write, circumstances);
    let asserted = guard.as_ref().map(Guard::asserted).unwrap_or_default();
    let view = view(set, write, circumstances, &asserted);
    let created = write.operation == Operation::Create;
    let initial = write.is_initial();
    // The write that makes a provider ID known may be the first to tell which machine this is.
    let restores = |saved: &&SavedState| created || (initial && !is_of(saved, write));
    let occasion =
        Occasion { sources: Sources { defaults: initial, saved: circumstances.saved.filter(restores) }, initial };
    let (mut split, _) = Split::run(set, write, view, occasion, guard);
    split.correct(&asserted);
    // What is stamped is nodegate's own key, which no kubelet's UPDATE may change.
    if circumstances.stamps && split.carries != Carries::Living {
        split.stamp(circumstances);
    }
    split.finish(circumstances)
}

/// What counts when a decision is made.
#[derive(Clone, Copy)]
pub(super) struct Occasion<'a> {
    /// Which sources of values count.
    pub(super) sources: Sources<'a>,
    /// Whether nothing can be on the node yet that NoExecute would evict.
    pub(super) initial: bool,
}

/// What rules may match on: the object, without what nodegate itself put there and without what
/// this requester may not assert.
fn view<'a>(
    set: &'a PolicySet,
    write: &'a Write<'a>,
    circumstances: &Circumstances<'a>,
    asserted: &BTreeMap<&'a str, Option<&'a str>>,
) -> View<'a> {
    let mut view = View::new(set, &write.node, write.old.as_ref()).within(circumstances.budget);
    for (key, stored) in asserted {
        view.set_label_aside(key, *stored);
    }
    view.set_pending_aside(circumstances.pending_taint);
    if let Some(saved) = circumstances.saved.filter(|saved| is_of(saved, write)) {
        set_owned_aside(&mut view, saved);
        view.remember_publishers(&saved.publishers);
    }
    view
}

/// Whether what is owned is owned on this very node object, and not on one of its name before.
fn is_of(saved: &SavedState, write: &Write<'_>) -> bool {
    let uid = write.old.as_ref().and_then(|old| old.uid.as_deref()).or(write.node.uid.as_deref());
    match (saved.node_uid.as_deref(), uid) {
        (Some(recorded), Some(uid)) => recorded == uid,
        (Some(_), None) => false,
        (None, _) => true,
    }
}

/// Has what nodegate owns not count.
pub(super) fn set_owned_aside<'a>(view: &mut View<'a>, saved: &'a SavedState) {
    let Some(owned) = &saved.owned else { return };
    for (key, value) in &owned.labels {
        if view.base_label(key) == Some(value) {
            view.set_label_aside(key, None);
        }
    }
    for taint in &owned.taints {
        view.set_taint_aside(&taint.key, &taint.effect);
    }
}

/// A decision under construction.
pub(super) struct Split<'a> {
    pub(super) set: &'a PolicySet,
    pub(super) write: &'a Write<'a>,
    carries: Carries,
    /// Against the kubelet that sends the write.
    guard: Option<Guard<'a>>,
    pub(super) decision: Decision,
    pub(super) change: ChangeBuilder,
    deferred: ChangeBuilder,
}

impl<'a> Split<'a> {
    /// Evaluates all rules on `view`, and splits what the node lacks.
    pub(super) fn run(
        set: &'a PolicySet,
        write: &'a Write<'a>,
        view: View<'a>,
        occasion: Occasion<'a>,
        guard: Option<Guard<'a>>,
    ) -> (Self, Evaluation<'a>) {
        let evaluation = Evaluation::run(set, view, occasion.sources);
        let mut split = Self {
            set,
            write,
            carries: Carries::of(write),
            guard,
            decision: Decision::default(),
            change: ChangeBuilder::default(),
            deferred: ChangeBuilder::default(),
        };
        split.labels(&evaluation.view);
        split.annotations(&evaluation.view);
        split.taints(&evaluation.view, occasion.initial);
        split.decision.notes.extend(evaluation.notes());
        (split, evaluation)
    }

    fn labels(&mut self, view: &View<'_>) {
        for (key, givers) in &view.labels {
            let desired = desired(self.set, givers, view.base_label(key), Field::Label, key, &mut self.decision.notes);
            let Some(desired) = desired else { continue };
            let actual = self.write.node.label(key);
            let stored = self.write.old.as_ref().map(|old| old.label(key));
            if self.guard.as_ref().is_some_and(|guard| guard.keeps_as_stored(key)) {
                self.keep_as_stored(key, actual, stored.flatten(), &desired);
            } else if actual != Some(&desired.value) {
                self.note_revert(Field::Label, key, stored, actual, &desired);
                let carried = self.carries == Carries::Everything || !is_restricted(key);
                let part = if carried { &mut self.change } else { &mut self.deferred };
                part.labels.insert(key.to_string(), Some(desired.value.clone()));
            }
            self.decision.labels.insert(key.to_string(), desired);
        }
    }

    /// A label that this write leaves as it is stored: a new value is for the controller to give.
    fn keep_as_stored(&mut self, key: &str, actual: Option<&str>, stored: Option<&str>, desired: &Desired) {
        if stored != Some(&desired.value) {
            self.deferred.labels.insert(key.to_owned(), Some(desired.value.clone()));
        }
        if actual == stored {
            return;
        }
        if stored == Some(&desired.value) {
            self.note_revert(Field::Label, key, Some(stored), actual, desired);
        } else {
            self.decision.notes.push(Note::put_back(Field::Label, key, stored));
        }
        self.change.labels.insert(key.to_owned(), stored.map(str::to_owned));
    }

    fn annotations(&mut self, view: &View<'_>) {
        for (key, givers) in &view.annotations {
            let actual = self.write.node.annotation(key);
            let desired = desired(self.set, givers, actual, Field::Annotation, key, &mut self.decision.notes);
            let Some(desired) = desired else { continue };
            if actual != Some(&desired.value) {
                let old = self.write.old.as_ref().map(|old| old.annotation(key));
                self.note_revert(Field::Annotation, key, old, actual, &desired);
                self.change.annotations.insert(key.to_string(), Some(desired.value.clone()));
            }
            self.decision.annotations.insert(key.to_string(), desired);
        }
    }

    fn taints(&mut self, view: &View<'_>, initial: bool) {
        for ((key, effect), givers) in &view.taints {
            let Ok(label_key) = key.parse::<LabelKey>() else { continue };
            let id = TaintId { key: label_key, effect: *effect };
            let actual = self.write.node.taint(key, *effect);
            let name = id.to_string();
            let desired = desired(self.set, givers, actual, Field::Taint, &name, &mut self.decision.notes);
            let Some(desired) = desired else { continue };
            if actual != Some(&desired.value) {
                let may_evict = initial || givers.first().is_some_and(|given| self.set.rule(given.rule).evict);
                let old = self.write.old.as_ref().map(|old| old.taint(key, *effect));
                if *effect == TaintEffect::NoExecute && !may_evict && old.flatten().is_none() {
                    self.decision.notes.push(Note::Withheld { taint: id, by: desired.by });
                    continue;
                }
                self.note_revert(Field::Taint, &name, old, actual, &desired);
                let part = if self.carries.taints() { &mut self.change } else { &mut self.deferred };
                part.taints.insert(id.clone(), Some(desired.value.clone()));
            }
            self.decision.taints.insert(id, desired);
        }
    }

    /// A requester who changed a key to something else than the desired value is told so.
    fn note_revert(
        &mut self,
        field: Field,
        key: &str,
        old: Option<Option<&str>>,
        actual: Option<&str>,
        desired: &Desired,
    ) {
        let requested = match old {
            None => actual.is_some(),
            Some(old) => old != actual,
        };
        if requested && desired.strength == Strength::Enforced {
            let note =
                Note::Reverted { field, key: key.to_owned(), value: desired.value.clone(), by: desired.by.clone() };
            self.decision.notes.push(note);
        }
    }

    /// Sets back what a kubelet may not assert, where no rule has said already what it is to be.
    fn correct(&mut self, asserted: &BTreeMap<&str, Option<&str>>) {
        if self.guard.is_none() {
            return;
        }
        for (key, stored) in asserted {
            match self.decision.label(key) {
                // Restricted labels arrive only where NodeRestriction is off; there the API server takes this patch too.
                Some(desired) if self.carries == Carries::Joining && self.write.node.label(key) != Some(desired) => {}
                Some(_) => continue,
                None => self.decision.notes.push(Note::put_back(Field::Label, key, *stored)),
            }
            self.change.labels.entry((*key).to_owned()).or_insert_with(|| stored.map(str::to_owned));
        }
        let (node, old) = (&self.write.node, self.write.old.as_ref());
        let stored = |key: &str| old.and_then(|old| old.annotation(key));
        let there = node.annotations().chain(old.into_iter().flat_map(|old| old.annotations()));
        for (key, _) in there.filter(|(key, _)| is_own(key) && node.annotation(key) != stored(key)) {
            if self.change.annotations.insert(key.to_owned(), stored(key).map(str::to_owned)).is_none() {
                self.decision.notes.push(Note::put_back(Field::Annotation, key, stored(key)));
            }
        }
    }

    fn finish(mut self, circumstances: &Circumstances<'_>) -> Decision {
        self.decision.deferred = self.deferred.build();
        if let (Some(deferred), Carries::Joining) = (&self.decision.deferred, self.carries) {
            match circumstances.pending_taint {
                Some(taint) => {
                    self.decision.pending = true;
                    if self.write.node.taint(taint.key.as_str(), taint.effect).is_none() {
                        self.change.taints.insert(taint.clone(), Some(String::new()));
                    }
                }
                None => self
                    .decision
                    .notes
                    .push(Note::DeferredUnmarked { keys: deferred.labels().keys().cloned().collect() }),
            }
        }
        if let Some(change) = self.change.build() {
            let (change, left_out) = fit(&self.write.node, change);
            self.decision.change = change;
            self.decision.notes.splice(0..0, left_out.into_iter().map(Note::LeftOut));
        }
        self.decision
    }
}

/// The winner among the givers of one key, with conflicts noted; `None` if the value that is there
/// already comes before all of them.
fn desired(
    set: &PolicySet,
    givers: &Givers<'_>,
    base: Option<&str>,
    field: Field,
    key: &str,
    notes: &mut Vec<Note>,
) -> Option<Desired> {
    let winner = givers.first()?;
    let rivals = givers.iter().skip(1).filter(|given| given.strength == winner.strength && given.value != winner.value);
    notes.extend(rivals.map(|rival| Note::Conflict {
        field,
        key: key.to_owned(),
        winner: set.rule(winner.rule).id.clone(),
        loser: set.rule(rival.rule).id.clone(),
    }));
    if winner.strength == Strength::Default && base.is_some_and(|own| own != winner.value) {
        return None;
    }
    let rule = set.rule(winner.rule);
    Some(Desired {
        value: winner.value.to_string(),
        strength: winner.strength,
        by: rule.id.clone(),
        remove_after: rule.remove_after,
    })
}
