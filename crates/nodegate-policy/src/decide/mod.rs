//! `decide`: what a node should have, and which part of that one request carries.

mod another_pool;
pub(crate) mod answers;
pub(crate) mod decision;
pub(crate) mod evaluate;
pub(crate) mod evidence;
pub(crate) mod forbidden;
pub(crate) mod gates;
pub(crate) mod left_at_join;
pub(crate) mod limits;
pub(crate) mod marks;
mod matching;
pub(crate) mod migrate;
pub(crate) mod patch;
mod pending;
pub(crate) mod sources;
pub(crate) mod view;

use std::collections::BTreeMap;

use crate::api::names::{LabelKey, TaintEffect, TaintId};
use crate::api::state::SavedState;
use crate::decide::decision::{ChangeBuilder, Decision, Desired, Note};
use crate::decide::evaluate::Evaluation;
use crate::decide::forbidden::ForbiddenKeys;
use crate::decide::limits::fit;
use crate::decide::sources::{Defaults, Recalled, Sources};
use crate::decide::view::{AssignedValues, View};
use crate::facts::missing::Memory;
use crate::facts::request::{DecideContext, Operation, Write};
use crate::keys::Field;
use crate::keys::restriction::is_restricted;
use crate::set::PolicySet;
use crate::set::migration::Ownership;
use crate::set::rule::{RuleId, Strength};

/// What a request may carry. NodeRestriction checks nodegate's patch as the requester's own change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchScope {
    /// Anyone but a kubelet.
    Everything,
    /// A kubelet's CREATE: taints, and labels that are not restricted.
    KubeletCreate,
    /// A kubelet's UPDATE: labels that are neither restricted nor [forbidden](ForbiddenKeys).
    KubeletUpdate,
}

impl PatchScope {
    fn of(write: &Write<'_>) -> Self {
        match (write.requester.is_kubelet(), write.operation) {
            (false, _) => Self::Everything,
            (true, Operation::Create) => Self::KubeletCreate,
            (true, Operation::Update) => Self::KubeletUpdate,
        }
    }

    fn taints(self) -> bool {
        self != Self::KubeletUpdate
    }
}

/// Decides what the node in `write` should have, and splits the change into what this request
/// carries and what is deferred.
///
/// # Guarantees
/// - Pure: no I/O, no clock; the same arguments give the same decision.
/// - Applying `change` to the object and deciding again gives no further `change`.
/// - Only keys that a kubelet may not set are removed, and from a node that joins the old keys of migrations that are done.
/// - If the API server accepts the object without `change`, it accepts it with `change`: keys that do not fit are omitted
///   (see [`fit`]).
/// - With `change`, a kubelet's UPDATE keeps the stored value of every label that it may not change, even if a rule assigns
///   another value: that is deferred.
pub fn decide(set: &PolicySet, write: &Write<'_>, context: &DecideContext<'_>) -> Decision {
    let restored = context.saved.filter(|_| is_new(context.saved, write));
    let same_pool = restored.and_then(|saved| set.saved_of_same_pool(saved, &write.node.name, write.evidence.as_ref()));
    decide_on(set, write, &DecideContext { saved: same_pool.as_ref().or(context.saved), ..*context })
}

fn decide_on<'a>(set: &'a PolicySet, write: &'a Write<'a>, context: &DecideContext<'a>) -> Decision {
    let forbidden = ForbiddenKeys::of(set, write, context);
    let asserted = forbidden.as_ref().map(ForbiddenKeys::asserted).unwrap_or_default();
    let view = view(set, write, context, &asserted);
    let initial = write.is_initial();
    let is_new = is_new(context.saved, write);
    let saved = context.saved.filter(|_| is_new);
    let pools = context.pools.filter(|_| is_new).map(|memory| Recalled { memory, stored: None });
    let defaults = if initial { Defaults::All } else { Defaults::None };
    let eval = EvalContext { sources: Sources { defaults, saved, pools }, initial };
    let (mut builder, evaluation) = DecisionBuilder::run(set, write, view, eval, forbidden);
    if builder.scope == PatchScope::KubeletCreate {
        builder.decision.gates = gates::closed(set, &evaluation.view);
    }
    builder.correct(&asserted);
    builder.retire();
    builder.leave_evidence();
    builder.leave_admission_mark(context);
    // The annotation is reserved for nodegate, so no kubelet's UPDATE may change it.
    if context.records_last_change && builder.scope != PatchScope::KubeletUpdate {
        builder.record_last_change(context);
    }
    builder.finish(context)
}

/// The settings of an evaluation.
#[derive(Clone, Copy)]
pub(crate) struct EvalContext<'a> {
    /// The sources of values.
    pub(crate) sources: Sources<'a>,
    /// Whether the node cannot have pods yet that NoExecute would evict.
    pub(crate) initial: bool,
}

/// The facts that rules match on: the object without the keys that nodegate owns and without those
/// that this requester may not set.
fn view<'a>(
    set: &'a PolicySet,
    write: &'a Write<'a>,
    context: &DecideContext<'a>,
    asserted: &BTreeMap<&'a str, Option<&'a str>>,
) -> View<'a> {
    let mut view = View::new(set, &write.node, write.old.as_ref(), write.evidence.as_ref());
    view = view.within(context.budget).told(context.inventory).with_devices(context.devices);
    for (key, stored) in asserted {
        view.mask_label(key, *stored);
    }
    view.mask_pending(context.pending_taints);
    let of_this_object = context.saved.filter(|saved| is_of(saved, write));
    if let Some(saved) = of_this_object {
        mask_owned(&mut view, saved);
    }
    view.remember(Memory::of(context.saved, of_this_object.is_some(), context.elsewhere));
    view
}

/// Whether saved state describes this node object, not an earlier one of the same name.
fn is_of(saved: &SavedState, write: &Write<'_>) -> bool {
    let uid = write.old.as_ref().and_then(|old| old.uid.as_deref()).or(write.node.uid.as_deref());
    match (saved.node_uid.as_deref(), uid) {
        (Some(recorded), Some(uid)) => recorded == uid,
        (Some(_), None) => false,
        (None, _) => true,
    }
}

/// Whether this write gives what is saved or remembered: the node is created, or was never processed. The write that sets the
/// provider ID may be the first that identifies the machine.
fn is_new(saved: Option<&SavedState>, write: &Write<'_>) -> bool {
    let is_recorded = || saved.is_some_and(|saved| is_of(saved, write));
    write.operation == Operation::Create || (write.is_initial() && !is_recorded())
}

/// Masks the keys that nodegate owns, except labels that an inventory may have given that has not answered (again): its last
/// answer stays in force for the rules that read them, too.
pub(crate) fn mask_owned<'a>(view: &mut View<'a>, saved: &'a SavedState) {
    let Some(owned) = &saved.owned else { return };
    view.own_labels(&owned.labels);
    for (key, value) in owned.labels.iter() {
        // A migration would take its own copy for the value to copy.
        let is_awaited = !owned.copies.contains(key) && view.answers.awaited(key).is_some();
        // The new key of a migration counts from cutover on, whoever wrote it. An old key that others set counts again if
        // the phase goes back.
        let counts =
            view.set().replacement(key).is_some() || (owned.taken_over.contains(key) && view.set().counts_still(key));
        if view.base_label(key) == Some(value) && !counts && !is_awaited {
            view.mask_label(key, None);
        }
    }
    for taint in &owned.taints {
        view.mask_taint(&taint.key, &taint.effect);
    }
}

/// A decision under construction.
pub(crate) struct DecisionBuilder<'a> {
    pub(crate) set: &'a PolicySet,
    pub(crate) write: &'a Write<'a>,
    pub(crate) scope: PatchScope,
    /// What a kubelet may not change, if one sends the write.
    forbidden: Option<ForbiddenKeys<'a>>,
    pub(crate) decision: Decision,
    pub(crate) change: ChangeBuilder,
    deferred: ChangeBuilder,
}

impl<'a> DecisionBuilder<'a> {
    /// Evaluates all rules on `view`, and splits the missing values into change and deferred.
    pub(crate) fn run(
        set: &'a PolicySet,
        write: &'a Write<'a>,
        view: View<'a>,
        eval: EvalContext<'a>,
        forbidden: Option<ForbiddenKeys<'a>>,
    ) -> (Self, Evaluation<'a>) {
        let evaluation = Evaluation::run(set, view, eval.sources);
        let mut builder = Self {
            set,
            write,
            scope: PatchScope::of(write),
            forbidden,
            decision: Decision::default(),
            change: ChangeBuilder::default(),
            deferred: ChangeBuilder::default(),
        };
        builder.labels(&evaluation.view);
        builder.annotations(&evaluation.view);
        builder.taints(&evaluation.view, eval.initial);
        builder.decision.notes.extend(evaluation.notes());
        (builder, evaluation)
    }

    fn labels(&mut self, view: &View<'_>) {
        for (key, values) in &view.labels {
            if self.set.is_retired(key) {
                continue;
            }
            let desired = desired(self.set, values, view.base_label(key), Field::Label, key, &mut self.decision.notes);
            let Some(desired) = desired else { continue };
            let actual = self.write.node.label(key);
            let stored = self.write.old.as_ref().map(|old| old.label(key));
            if self.forbidden.as_ref().is_some_and(|forbidden| forbidden.keeps_as_stored(key)) {
                self.keep_as_stored(key, actual, stored.flatten(), &desired);
            } else if actual != Some(&desired.value) && !self.is_left_to_judge(key, &desired) {
                self.note_revert(Field::Label, key, stored, actual, &desired);
                let carried = self.scope == PatchScope::Everything || !is_restricted(key);
                let part = if carried { &mut self.change } else { &mut self.deferred };
                part.labels.insert(key.to_string(), Some(desired.value.clone()));
            }
            self.decision.labels.insert(key.to_string(), desired);
        }
    }

    /// Whether the requester sets the old key of a migration that is cut over. Then neither key is corrected, so that `judge`
    /// refuses the write and names the new key. A correction might not be noticed.
    fn is_left_to_judge(&self, key: &str, desired: &Desired) -> bool {
        let old_key = match desired.ownership {
            Ownership::Usual | Ownership::Copied => None,
            Ownership::TakenOver => Some(key),
            Ownership::Given => self.set.replacement(key).map(|migration| migration.from.as_str()),
        };
        let Some(old_key) = old_key else { return false };
        let actual = self.write.node.label(old_key);
        let stored = self.write.old.as_ref().map(|old| old.label(old_key));
        let is_written = match (self.scope, self.write.operation) {
            (PatchScope::KubeletCreate, _) => false,
            (_, Operation::Create) => true,
            // Without a stored object, the controller plans for a stored node.
            (_, Operation::Update) => stored.is_some_and(|stored| stored != actual),
        };
        is_written && actual.is_some()
    }

    /// Keeps the stored value of a label in this write; the controller sets a new value.
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
            let by = self.forbidden.as_ref().map_or_else(|| RuleId::own("persisted"), |forbidden| forbidden.rule(key));
            self.decision.notes.push(Note::put_back(Field::Label, key, stored, by));
        }
        self.change.labels.insert(key.to_owned(), stored.map(str::to_owned));
    }

    fn annotations(&mut self, view: &View<'_>) {
        for (key, values) in &view.annotations {
            let actual = self.write.node.annotation(key);
            let desired = desired(self.set, values, actual, Field::Annotation, key, &mut self.decision.notes);
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
        for ((key, effect), values) in &view.taints {
            let Ok(label_key) = key.parse::<LabelKey>() else { continue };
            let id = TaintId { key: label_key, effect: *effect };
            let actual = self.write.node.taint(key, *effect);
            let name = id.to_string();
            let desired = desired(self.set, values, actual, Field::Taint, &name, &mut self.decision.notes);
            let Some(desired) = desired else { continue };
            if actual != Some(&desired.value) {
                let may_evict = initial || values.first().is_some_and(|given| self.set.rule(given.rule).evict);
                let old = self.write.old.as_ref().map(|old| old.taint(key, *effect));
                if *effect == TaintEffect::NoExecute && !may_evict && old.flatten().is_none() {
                    self.decision.notes.push(Note::Withheld { taint: id, by: desired.by });
                    continue;
                }
                self.note_revert(Field::Taint, &name, old, actual, &desired);
                let part = if self.scope.taints() { &mut self.change } else { &mut self.deferred };
                part.taints.insert(id.clone(), Some(desired.value.clone()));
            }
            self.decision.taints.insert(id, desired);
        }
    }

    /// Notes the revert if the requester changed a key to another value than the desired one.
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
        if requested && desired.strength.is_kept() {
            let note =
                Note::Reverted { field, key: key.to_owned(), value: desired.value.clone(), by: desired.by.clone() };
            self.decision.notes.push(note);
        }
    }

    /// Resets the keys that a kubelet may not change, unless a rule already assigns their values.
    fn correct(&mut self, asserted: &BTreeMap<&str, Option<&str>>) {
        let Some(forbidden) = &self.forbidden else { return };
        for (key, stored) in asserted {
            match self.decision.label(key) {
                // Restricted labels arrive only if NodeRestriction is disabled; then the API server accepts this patch, too.
                Some(desired)
                    if self.scope == PatchScope::KubeletCreate && self.write.node.label(key) != Some(desired) => {}
                Some(_) => continue,
                None => self.decision.notes.push(Note::put_back(Field::Label, key, *stored, forbidden.rule(key))),
            }
            self.change.labels.entry((*key).to_owned()).or_insert_with(|| stored.map(str::to_owned));
        }
        for (key, stored) in forbidden.asserted_annotations() {
            if self.change.annotations.insert(key.to_owned(), stored.map(str::to_owned)).is_none() {
                self.decision.notes.push(Note::put_back(Field::Annotation, key, stored, RuleId::own("own-keys")));
            }
        }
    }

    fn finish(mut self, context: &DecideContext<'_>) -> Decision {
        self.decision.deferred = std::mem::take(&mut self.deferred).build();
        if self.scope == PatchScope::KubeletCreate {
            self.mark_pending(context);
        }
        if let Some(change) = self.change.build() {
            let (change, left_out) = fit(&self.write.node, change);
            self.decision.change = change;
            self.decision.notes.splice(0..0, left_out.into_iter().map(Note::LeftOut));
        }
        self.decision
    }
}

/// The desired value of one key, with conflicts noted; `None` if the existing value takes precedence
/// over all assigned ones.
fn desired(
    set: &PolicySet,
    values: &AssignedValues<'_>,
    base: Option<&str>,
    field: Field,
    key: &str,
    notes: &mut Vec<Note>,
) -> Option<Desired> {
    let winner = values.first()?;
    let rivals = values.iter().skip(1).filter(|given| given.strength == winner.strength && given.value != winner.value);
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
        ownership: rule.assigns.migration.as_ref().map(|migration| migration.ownership(key)).unwrap_or_default(),
    })
}
