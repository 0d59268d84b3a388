//! `cleanup`: which keys of a node to remove when nodegate, or a part of its policies, is taken out of use.
//!
//! Pure, like [`crate::reconcile`]: the caller reads the node and its saved state before, and writes after.

mod document;
#[cfg(test)]
mod tests;

pub use document::{Cleanup, CleanupResult, KeptBecause, KeyCleanup, NodeCleanup, ObjectCleanup};

use crate::api::names::{TaintEffect, TaintId};
use crate::api::state::{Owned, SavedState};
use crate::decide::decision::{ChangeBuilder, NodeChange};
use crate::decide::left_at_join::LEFT_AT_JOIN;
use crate::decide::marks::last_change::LAST_CHANGE;
use crate::facts::NodeFacts;
use crate::keys::programs::Kind;
use crate::keys::{Field, programs};
use crate::reconcile::{ReconcilePlan, StoredNode, normalize_owned, plan_reconcile};
use crate::set::PolicySet;
use crate::set::rule::Rule;

/// Which of nodegate's keys are meant.
#[derive(Clone, Copy, Debug)]
pub enum Extent<'a> {
    /// All of them, with pending taints and nodegate's own annotation.
    Everything,
    /// Owned keys that these policies assign, or could assign if no rule assigns them now; all policies if empty.
    Policies {
        /// The policies in force.
        set: &'a PolicySet,
        /// Their names.
        names: &'a [String],
        /// Only keys that no rule assigns now.
        leftovers: bool,
    },
}

/// A cleanup of nodes.
#[derive(Clone, Copy, Debug)]
pub struct CleanupScope<'a> {
    /// Which keys are meant.
    pub extent: Extent<'a>,
    /// The policies in force if nodegate is running: what their rules assign would be set again, so it stays.
    pub running: Option<&'a PolicySet>,
}

/// What to remove from a node.
#[derive(Clone, Debug)]
pub struct CleanupPlan {
    /// The keys that are meant, sorted by field and key; [`CleanupResult::WouldRemove`] or [`CleanupResult::Kept`].
    pub keys: Vec<KeyCleanup>,
    /// The removals; `None` if there are none.
    pub change: Option<NodeChange>,
}

/// Computes what to remove from a node.
///
/// # Guarantees
/// - Pure: no I/O, no clock.
/// - A key is removed only if it is recorded as owned for this Node object and still has the recorded value. Besides those,
///   only `stored.pending` and nodegate's own annotation are removed.
pub fn plan_cleanup(scope: &CleanupScope<'_>, stored: &StoredNode<'_>) -> CleanupPlan {
    let mut planner = Planner::new(scope, stored);
    if let Some(owned) = &stored.saved.owned {
        planner.owned(owned);
    }
    if matches!(scope.extent, Extent::Everything) {
        planner.own();
    }
    let Planner { mut keys, change, .. } = planner;
    keys.sort();
    CleanupPlan { keys, change: change.build() }
}

/// The record of a node after the removals of `change` were made.
pub fn record_without(record: &SavedState, change: &NodeChange) -> SavedState {
    let mut record = record.clone();
    if let Some(owned) = &mut record.owned {
        owned.labels.retain(|key, _| !change.labels().contains_key(key));
        owned.annotations.retain(|key, _| !change.annotations().contains_key(key));
        owned.taints.retain(|taint| taint.id().is_ok_and(|id| !change.taints().contains_key(&id)));
    }
    normalize_owned(record)
}

/// A key that nodegate set.
struct Given<'a> {
    field: Field,
    key: &'a str,
    /// Of a taint.
    id: Option<TaintId>,
    value: &'a str,
}

impl Given<'_> {
    /// The key, or `key:Effect`.
    fn id(&self) -> String {
        self.id.as_ref().map_or_else(|| self.key.to_owned(), TaintId::to_string)
    }

    fn found<'n>(&self, node: &'n NodeFacts<'_>) -> Option<&'n str> {
        match (self.field, &self.id) {
            (Field::Taint, Some(id)) => node.taint(self.key, id.effect),
            (Field::Taint, None) => None,
            (Field::Label, _) => node.label(self.key),
            (Field::Annotation, _) => node.annotation(self.key),
        }
    }

    /// Whether nodegate may own it because of this rule.
    fn is_of(&self, rule: &Rule) -> bool {
        if !rule.strength.is_kept() {
            return false;
        }
        match (self.field, &self.id) {
            (Field::Label, _) => rule.may_write_label(self.key),
            (Field::Annotation, _) => rule.may_write_annotation(self.key),
            (Field::Taint, id) => id.as_ref().is_some_and(|id| rule.may_write_taint(id)),
        }
    }
}

struct Planner<'a> {
    scope: &'a CleanupScope<'a>,
    stored: &'a StoredNode<'a>,
    /// What rules assign now, where that matters.
    plan: Option<ReconcilePlan>,
    keys: Vec<KeyCleanup>,
    change: ChangeBuilder,
}

impl<'a> Planner<'a> {
    fn new(scope: &'a CleanupScope<'a>, stored: &'a StoredNode<'a>) -> Self {
        let set = match scope.extent {
            Extent::Everything => scope.running,
            Extent::Policies { set, .. } => Some(set),
        };
        let plan = set.map(|set| plan_reconcile(set, stored));
        Self { scope, stored, plan, keys: Vec::new(), change: ChangeBuilder::default() }
    }

    fn owned(&mut self, owned: &Owned) {
        let entry = |field| move |(key, value)| (field, key, None, value);
        let labels = owned.labels.iter().map(entry(Field::Label));
        let annotations = owned.annotations.iter().map(entry(Field::Annotation));
        let taints = owned.taints.iter().filter_map(|taint| {
            let id = taint.id().ok()?;
            Some((Field::Taint, &*taint.key, Some(id), &*taint.value))
        });
        for (field, key, id, value) in labels.chain(annotations).chain(taints) {
            let given = Given { field, key, id, value };
            if self.is_meant(&given) {
                self.look_at(&given);
            }
        }
    }

    fn is_meant(&self, given: &Given<'_>) -> bool {
        let Extent::Policies { set, names, leftovers } = self.scope.extent else { return true };
        let assigned = self.plan.as_ref().and_then(|plan| plan.giver(given.field, &given.id()));
        let named = |policy: &str| names.is_empty() || names.iter().any(|name| name == policy);
        match assigned {
            Some(_) if leftovers => false,
            Some(rule) => named(&rule.policy),
            None => names.is_empty() || set.rules().iter().any(|rule| named(&rule.id.policy) && given.is_of(rule)),
        }
    }

    fn look_at(&mut self, given: &Given<'_>) {
        let Some(found) = given.found(self.stored.node) else { return };
        let uid = self.stored.node.uid.as_deref();
        let id = given.id();
        let assigned = self.plan.as_ref().and_then(|plan| plan.giver(given.field, &id)).cloned();
        let is_leftover =
            |plan: &ReconcilePlan| plan.removals.iter().any(|one| one.field == given.field && one.key == id);
        let guarded =
            self.scope.running.is_some() || matches!(self.scope.extent, Extent::Policies { leftovers: true, .. });
        let why = if found != given.value {
            Some(KeptBecause::Changed)
        } else if !self.stored.saved.is_of_object(uid) {
            Some(KeptBecause::EarlierNode)
        } else if assigned.is_some() {
            self.scope.running.map(|_| KeptBecause::Assigned)
        } else if programs::of_no_rule(given.field, given.key, Some(found)).is_some_and(|of| of.kind == Kind::Machine) {
            Some(KeptBecause::OfProgram)
        } else {
            let unknown = self.plan.as_ref().is_some_and(|plan| !is_leftover(plan));
            (guarded && unknown).then_some(KeptBecause::Unknown)
        };
        let mut key = self.key(given, why);
        key.found = (why == Some(KeptBecause::Changed)).then(|| found.to_owned());
        if let Some(rule) = assigned.filter(|_| why == Some(KeptBecause::Assigned)) {
            key.policy = Some(rule.policy.to_string());
            key.rule = Some(rule.rule.to_string());
        }
        self.keys.push(key);
    }

    /// Pending taints, and the annotations that the webhook writes.
    fn own(&mut self) {
        let (node, why) = (self.stored.node, self.scope.running.map(|_| KeptBecause::Running));
        for id in self.stored.pending.all() {
            if let Some(value) = node.taint(id.key.as_str(), id.effect) {
                let given = Given { field: Field::Taint, key: id.key.as_str(), id: Some(id.clone()), value };
                let key = self.key(&given, why);
                self.keys.push(key);
            }
        }
        for key in LEFT_AT_JOIN.into_iter().chain([LAST_CHANGE]) {
            let Some(value) = node.annotation(key) else { continue };
            let key = self.key(&Given { field: Field::Annotation, key, id: None, value }, why);
            self.keys.push(key);
        }
    }

    /// A key that stays for a reason, or is removed.
    fn key(&mut self, given: &Given<'_>, why: Option<KeptBecause>) -> KeyCleanup {
        if why.is_none() {
            match (given.field, &given.id) {
                (Field::Label, _) => drop(self.change.labels.insert(given.key.to_owned(), None)),
                (Field::Annotation, _) => drop(self.change.annotations.insert(given.key.to_owned(), None)),
                (Field::Taint, id) => self.change.taints.extend(id.iter().map(|id| (id.clone(), None))),
            }
        }
        KeyCleanup {
            field: given.field.into(),
            key: given.key.to_owned(),
            effect: given.id.as_ref().map(|id| TaintEffect::as_str(id.effect).to_owned()),
            value: given.value.to_owned(),
            result: if why.is_some() { CleanupResult::Kept } else { CleanupResult::WouldRemove },
            why,
            found: None,
            policy: None,
            rule: None,
        }
    }
}
