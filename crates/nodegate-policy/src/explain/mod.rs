//! `explain`: why a node has each label, annotation and taint, and why it lacks others.
//!
//! It evaluates the same rules as [`crate::reconcile`], and keeps what that throws away: the values that lost, the
//! conditions that do not hold, and the facts that they depend on. Pure, like `decide`.

mod conditions;
mod document;
mod identity;
mod missing;
mod rules;
#[cfg(test)]
mod tests;

pub use document::{
    ConditionResult, Entry, Explanation, FieldName, Lost, LostTo, Missing, MissingBecause, Mode, Outcome, RemovalCause,
    RemovedWhen, RuleResult, Source, SourceKind, WhyNot,
};
pub use identity::{NodeIdentity, PoolProof, ProofSource, Vouching, identity, may_be_pool, pool_names, vouching};
pub use rules::why_not;

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;

use crate::api::names::{TaintEffect, TaintId};
use crate::api::state::Change;
use crate::decide::evaluate::Evaluation;
use crate::decide::sources::{Defaults, Recalled, Sources};
use crate::decide::view::{AssignedValue, View};
use crate::facts::managed_fields::Claim;
use crate::keys::Field;
use crate::keys::restriction::is_own;
use crate::reconcile::{ReconcilePlan, StoredNode, plan_reconcile, stored_view};
use crate::set::PolicySet;
use crate::set::rule::Strength;

/// A stored node to explain, and what is known about it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The node and its saved state.
    pub stored: StoredNode<'a>,
    /// The field manager of nodegate's own writes.
    pub own_manager: &'a str,
    /// When the node was created (RFC 3339).
    pub created: Option<&'a str>,
    /// The keys that the controller does not repair anymore (`key:Effect` for taints).
    pub left_alone: &'a [(Field, String)],
    /// Whether the controller holds removals back.
    pub braked: bool,
}

/// Explains a node. With a `key`, explains only that key, and adds the rules that could assign it and do not match.
pub fn explain(set: &PolicySet, subject: &Subject<'_>, key: Option<&str>) -> Explanation {
    let plan = plan_reconcile(set, &subject.stored);
    let explainer = Explainer::new(set, subject, &plan);
    let meant = |of: &str| key.is_none_or(|key| key == of);
    let mut entries: Vec<Entry> =
        explainer.held().filter(|held| meant(held.key)).map(|held| explainer.entry(&held)).collect();
    entries.sort_by(|one, other| (one.field, &one.key, &one.effect).cmp(&(other.field, &other.key, &other.effect)));
    let mut missing = explainer.missing(key);
    missing.retain(|missing| meant(&missing.key) || key.is_some_and(|key| missing::is_pattern_of(&missing.key, key)));
    missing.sort_by(|one, other| {
        (one.field, &one.key, one.why, &one.policy, &one.rule).cmp(&(
            other.field,
            &other.key,
            other.why,
            &other.policy,
            &other.rule,
        ))
    });
    missing.dedup();
    Explanation {
        node: subject.stored.node.name.to_string(),
        entries,
        missing,
        identity: identity(set, subject.stored.node, subject.stored.evidence),
        saved_state_unknown: None,
        writers_unknown: None,
    }
}

/// A label, annotation or taint that the node has.
struct Held<'a> {
    field: Field,
    key: &'a str,
    value: &'a str,
    /// Empty but for a taint.
    effect: &'a str,
}

impl Held<'_> {
    /// The key, or `key:Effect`.
    fn id(&self) -> Cow<'_, str> {
        match self.field {
            Field::Label | Field::Annotation => Cow::Borrowed(self.key),
            Field::Taint => Cow::Owned(format!("{}:{}", self.key, self.effect)),
        }
    }
}

struct Explainer<'a> {
    set: &'a PolicySet,
    subject: &'a Subject<'a>,
    plan: &'a ReconcilePlan,
    /// The evaluation that decides.
    now: Evaluation<'a>,
    /// The same, as if the node joined: with default rules and saved state.
    joining: Evaluation<'a>,
}

/// The taints that rules give a node like the stored one, of which this is the plan, when it joins: key and effect.
pub fn taints_at_join(set: &PolicySet, stored: &StoredNode<'_>, plan: &ReconcilePlan) -> Vec<(String, TaintEffect)> {
    let joined = joining(set, stored, plan);
    joined.view.taints.keys().map(|(key, effect)| (key.clone().into_owned(), *effect)).collect()
}

/// The evaluation of all rules as for a node that joins.
fn joining<'a>(set: &'a PolicySet, stored: &StoredNode<'a>, plan: &'a ReconcilePlan) -> Evaluation<'a> {
    let pools = stored.pools.map(|memory| Recalled { memory, stored: None });
    let sources = Sources { defaults: Defaults::All, saved: Some(stored.saved), pools };
    Evaluation::run(set, view(set, stored, plan), sources)
}

/// The evaluation of all rules on the stored node, with the sources that [`plan_reconcile`] uses.
fn evaluation<'a>(set: &'a PolicySet, stored: &StoredNode<'a>, plan: &'a ReconcilePlan) -> Evaluation<'a> {
    let restores = plan.first_sight && stored.identified;
    let pools = stored.recalled().filter(|_| restores);
    let defaults = Defaults::of_stored(plan.first_sight, stored.registered);
    let sources = Sources { defaults, saved: restores.then_some(stored.saved), pools };
    Evaluation::run(set, view(set, stored, plan), sources)
}

fn view<'a>(set: &'a PolicySet, stored: &StoredNode<'a>, plan: &'a ReconcilePlan) -> View<'a> {
    let set_aside = plan.set_aside.iter().map(String::as_str);
    stored_view(set, stored, plan.first_sight, set_aside)
}

impl<'a> Explainer<'a> {
    fn new(set: &'a PolicySet, subject: &'a Subject<'a>, plan: &'a ReconcilePlan) -> Self {
        let stored = &subject.stored;
        Self { set, subject, plan, now: evaluation(set, stored, plan), joining: joining(set, stored, plan) }
    }

    /// Everything that the node has.
    fn held(&self) -> impl Iterator<Item = Held<'a>> + use<'a> {
        let node = self.subject.stored.node;
        let entry = |field| move |(key, value)| Held { field, key, value, effect: "" };
        let taints = node.taints().iter().map(|taint| Held {
            field: Field::Taint,
            key: &taint.key,
            value: taint.value(),
            effect: &taint.effect,
        });
        node.labels().map(entry(Field::Label)).chain(node.annotations().map(entry(Field::Annotation))).chain(taints)
    }

    fn entry(&self, held: &Held<'_>) -> Entry {
        let (source, given) = self.source(held);
        Entry {
            field: held.field.into(),
            key: held.key.to_owned(),
            value: held.value.to_owned(),
            effect: (held.field == Field::Taint).then(|| held.effect.to_owned()),
            owned: self.plan.owns(held.field, &held.id()),
            since: self.since(held),
            lost: self.lost(held, given),
            removed_when: self.removed_when(held),
            source,
        }
    }

    /// Where a value comes from, and the assigned value if it is one.
    fn source(&self, held: &Held<'_>) -> (Source, Option<&AssignedValue<'a>>) {
        let owned = self.plan.owns(held.field, &held.id());
        let winner = assigned(&self.now.view, held).first().filter(|given| given.strength.is_kept());
        if let Some(given) = winner.filter(|given| owned && given.value == held.value) {
            return (self.of_rule(given), Some(given));
        }
        let blank = Source {
            kind: SourceKind::Rule,
            policy: None,
            rule: None,
            priority: None,
            mode: None,
            manager: None,
            last_write: None,
        };
        if owned {
            return (blank, None);
        }
        let claim = self.claim(held);
        let ours = claim.is_none_or(|claim| *claim.manager == *self.subject.own_manager);
        // What a default rule assigned, or a persist section restored, is not owned.
        let once = assigned(&self.joining.view, held)
            .iter()
            .find(|given| !given.strength.is_kept() && given.value == held.value);
        // A kubelet that claims a protected label stays the manager of its key, although admission gives it another value.
        let is_claimed_in_vain = held.field == Field::Label && self.set.is_protected(held.key);
        let is_given = ours || claim.is_some_and(|claim| claim.is_kubelets() && is_claimed_in_vain);
        if let Some(given) = once.filter(|_| is_given) {
            return (self.of_rule(given), Some(given));
        }
        let kind = match claim {
            _ if is_own(held.key) || self.pending_taint(held).is_some() => SourceKind::Controller,
            None => SourceKind::Unknown,
            // nodegate wrote the list of taints, which says nothing about a single one.
            Some(_) if ours && held.field == Field::Taint => SourceKind::Unknown,
            Some(_) if ours => SourceKind::Controller,
            Some(claim) if claim.is_kubelets() => SourceKind::Kubelet,
            Some(_) => SourceKind::User,
        };
        let manager = claim.map(|claim| claim.manager.to_string());
        let last_write = claim.map(|claim| claim.time.to_string()).filter(|time| !time.is_empty());
        (Source { kind, manager, last_write, ..blank }, None)
    }

    fn of_rule(&self, given: &AssignedValue<'_>) -> Source {
        let rule = self.set.rule(given.rule);
        Source {
            kind: match given.strength {
                Strength::Enforced | Strength::Default if rule.assigns.migration.is_some() => SourceKind::Migration,
                Strength::Enforced | Strength::Default => SourceKind::Rule,
                Strength::Inventory => SourceKind::Inventory,
                Strength::Saved => SourceKind::Saved,
            },
            policy: Some(rule.id.policy.to_string()),
            rule: Some(rule.id.rule.to_string()),
            // A migration has none of its own: it takes precedence over every rule.
            priority: rule.assigns.migration.is_none().then_some(rule.priority),
            mode: Some(given.strength.into()),
            manager: None,
            last_write: None,
        }
    }

    fn claim(&self, held: &Held<'_>) -> Option<&'a Claim> {
        let claims = self.subject.stored.claims;
        match held.field {
            Field::Label => claims.label_writer(held.key),
            Field::Annotation => claims.annotation_writer(held.key),
            Field::Taint => claims.taint_writer(),
        }
    }

    fn pending_taint(&self, held: &Held<'_>) -> Option<&'a TaintId> {
        let mut pending = self.subject.stored.pending.all().iter();
        pending
            .find(|id| held.field == Field::Taint && held.key == id.key.as_str() && held.effect == id.effect.as_str())
    }

    /// The time of the recorded change to this value. Without one, the creation of the node, if nodegate's webhook was there
    /// and all changes since then are recorded.
    fn since(&self, held: &Held<'_>) -> Option<String> {
        let Subject { stored, created, .. } = self.subject;
        let time = |text: &str| text.parse::<Timestamp>().ok();
        let created = created.and_then(|text| Some((text, time(text)?)));
        // An earlier node with this name may have had the same key.
        let of_this_node = |change: &&Change| {
            created.is_none_or(|(_, created)| time(&change.time).is_some_and(|time| time >= created))
        };
        let field = FieldName::from(held.field).as_str();
        let of_key = |change: &&Change| change.field == field && change.key == held.id();
        let history = &stored.saved.history;
        if let Some(change) = history.iter().rev().filter(of_this_node).find(of_key) {
            return (change.new.as_deref() == Some(held.value)).then(|| change.time.clone());
        }
        let complete = history.first().is_none_or(|first| first.id == 1 || !of_this_node(&first));
        let admitted = held.field != Field::Taint && self.claim(held).is_none() && stored.registered;
        created.filter(|_| admitted && complete && !self.plan.first_sight).map(|(text, _)| text.to_owned())
    }

    /// The values that are assigned to the key and not used.
    fn lost(&self, held: &Held<'_>, used: Option<&AssignedValue<'_>>) -> Vec<Lost> {
        let now = assigned(&self.now.view, held);
        let joining = assigned(&self.joining.view, held).iter().filter(|given| !given.strength.is_kept());
        let all = now.iter().chain(joining.filter(|given| now.iter().all(|known| known.rule != given.rule)));
        let winner = now.first().filter(|winner| winner.strength.is_kept());
        let lost = all.filter(|given| used.is_none_or(|used| used.rule != given.rule)).map(|given| {
            let rule = self.set.rule(given.rule);
            let why = match (given.strength, winner) {
                (Strength::Default, _) => LostTo::Default,
                (Strength::Saved, _) => LostTo::Saved,
                (_, Some(winner)) if winner.rule == given.rule && given.value == held.value => LostTo::Present,
                (_, Some(winner)) if winner.rule == given.rule => LostTo::NotWritten,
                (Strength::Inventory, Some(winner)) if winner.strength == Strength::Inventory => LostTo::Name,
                (Strength::Inventory, _) => LostTo::Inventory,
                (Strength::Enforced, Some(winner)) if self.set.rule(winner.rule).priority > rule.priority => {
                    LostTo::Priority
                }
                (Strength::Enforced, _) => LostTo::Name,
            };
            Lost {
                policy: rule.id.policy.to_string(),
                rule: rule.id.rule.to_string(),
                priority: rule.priority,
                value: given.value.to_string(),
                why,
            }
        });
        lost.collect()
    }

    fn removed_when(&self, held: &Held<'_>) -> Option<RemovedWhen> {
        let (plan, id) = (self.plan, held.id());
        let after = |when, after: Duration| Some(RemovedWhen { when, after_seconds: Some(after.as_secs()) });
        let at_once = |when| Some(RemovedWhen { when, after_seconds: None });
        if held.field == Field::Label && plan.forged.iter().any(|key| key == held.key) {
            return at_once(RemovalCause::Stripped);
        }
        if self.pending_taint(held).is_some_and(|id| !plan.decision.taints.contains_key(id)) {
            return at_once(RemovalCause::NothingIsDeferred);
        }
        if let Some(removal) = plan.removals.iter().find(|removal| removal.field == held.field && removal.key == id) {
            let when = if self.subject.braked { RemovalCause::Confirmed } else { RemovalCause::GracePeriodEnds };
            return after(when, removal.after);
        }
        if !plan.owns(held.field, &id) {
            return None;
        }
        match plan.desired(held.field, &id) {
            Some(desired) => after(RemovalCause::RuleStopsMatching, desired.remove_after),
            None => at_once(RemovalCause::ResultIsKnown),
        }
    }
}

/// The values that rules assign to a key, the one with the highest precedence first.
fn assigned<'v, 'a>(view: &'v View<'a>, held: &Held<'_>) -> &'v [AssignedValue<'a>] {
    let values = match held.field {
        Field::Label => view.labels.get(held.key),
        Field::Annotation => view.annotations.get(held.key),
        Field::Taint => view
            .taints
            .iter()
            .find(|((key, effect), _)| key == held.key && effect.as_str() == held.effect)
            .map(|(_, values)| values),
    };
    values.map(Vec::as_slice).unwrap_or_default()
}
