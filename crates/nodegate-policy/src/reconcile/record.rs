//! The results of a [`ReconcilePlan`]: the change to make, and the records before and after it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Captured, ReconcilePlan, Removal};
use crate::api::names::{TaintEffect, TaintId};
use crate::api::state::{Owned, SavedState, SavedTaint};
use crate::decide::decision::{Decision, Desired, NodeChange};
use crate::keys::Field;
use crate::set::migration::Ownership;
use crate::set::rule::REMOVE_AFTER;
use crate::set::rule::RuleId;

/// Whether nodegate may own a value that it assigns.
pub(super) fn is_ownable(desired: &Desired) -> bool {
    desired.strength.is_kept() && desired.ownership != Ownership::Given
}

/// Adds an owned key, with the grace period of the rule that assigns it.
pub(super) fn own(owned: &mut Owned, decision: &Decision, field: Field, key: &str, value: &str) {
    let desired = match field {
        Field::Label => {
            owned.labels.insert(key, value);
            decision.labels.get(key)
        }
        Field::Annotation => {
            owned.annotations.insert(key, value);
            decision.annotations.get(key)
        }
        Field::Taint => {
            let found = decision.taints.iter().find(|(id, _)| id.to_string() == key);
            let Some((id, desired)) = found else { return };
            owned.taints.push(SavedTaint::new(id, value));
            Some(desired)
        }
    };
    if field == Field::Label && desired.is_some_and(|desired| desired.ownership == Ownership::Copied) {
        owned.copies.insert(key.into());
    }
    let after = desired.map_or(REMOVE_AFTER, |desired| desired.remove_after);
    if after != REMOVE_AFTER {
        owned.remove_after.insert(key.into(), after.as_secs());
    }
}

impl ReconcilePlan {
    /// The change to make: missing values, and those of [`Self::removals`] that `approved` accepts, without the keys for
    /// which `left_alone` is true. `None` if there is nothing to do.
    pub fn change(
        &self,
        approved: impl Fn(&Removal) -> bool,
        left_alone: impl Fn(Field, &str) -> bool,
    ) -> Option<NodeChange> {
        let mut change = self.additions.clone();
        change.labels.retain(|key, _| !left_alone(Field::Label, key));
        change.annotations.retain(|key, _| !left_alone(Field::Annotation, key));
        change.taints.retain(|id, value| value.is_none() || !left_alone(Field::Taint, &id.to_string()));
        for removal in self.removals.iter().filter(|removal| approved(removal)) {
            match removal.field {
                Field::Label => {
                    change.labels.insert(removal.key.clone(), None);
                }
                Field::Annotation => {
                    change.annotations.insert(removal.key.clone(), None);
                }
                Field::Taint => {
                    if let Some(id) = self
                        .kept
                        .taints
                        .iter()
                        .filter_map(|taint| taint.id().ok())
                        .find(|id| id.to_string() == removal.key)
                    {
                        change.taints.insert(id, None);
                    }
                }
            }
        }
        change.build()
    }

    /// The record to save before `change` is made. It already contains everything that the change will own, so that
    /// nothing is lost if the process ends between the two writes. The node's uid is not recorded during a restore.
    pub fn record_before(&self, change: Option<&NodeChange>) -> SavedState {
        let mut owned = self.kept.clone();
        for (field, key, value) in change.into_iter().flat_map(written) {
            if self.desired(field, &key).is_some_and(is_ownable) {
                own(&mut owned, &self.decision, field, &key, &value);
            }
        }
        owned.unsettled = match change {
            Some(change) => self.under_way.before(change, &owned),
            None => self.under_way.unchanged(),
        }
        .map(Box::new);
        let mut record = self.with_owned(owned);
        if self.restores && change.is_some() {
            record.node_uid = self.recorded_uid.clone();
        }
        record
    }

    /// The record to save after `change` was made.
    pub fn record(&self, change: Option<&NodeChange>) -> SavedState {
        let mut record = self.record_before(change);
        record.node_uid.clone_from(&self.base.node_uid);
        if let (Some(owned), Some(change)) = (&mut record.owned, change) {
            owned.unsettled = None;
            owned.labels.retain(|key, _| change.labels().get(key) != Some(&None));
            owned.annotations.retain(|key, _| change.annotations().get(key) != Some(&None));
            owned.taints.retain(|taint| taint.id().is_ok_and(|id| change.taints().get(&id) != Some(&None)));
        }
        normalize_owned(record)
    }

    fn with_owned(&self, owned: Owned) -> SavedState {
        let Captured { labels, taints, left_out: _ } = self.captured.clone();
        normalize_owned(SavedState { owned: Some(owned), labels, taints, ..self.base.clone() })
    }

    /// The rule that assigns a key (`key:Effect` for a taint).
    pub fn giver(&self, field: Field, key: &str) -> Option<&RuleId> {
        self.desired(field, key).map(|desired| &desired.by)
    }

    /// Whether nodegate owns a key of the node (`key:Effect` for a taint).
    pub(crate) fn owns(&self, field: Field, key: &str) -> bool {
        match field {
            Field::Label => self.kept.labels.contains_key(key),
            Field::Annotation => self.kept.annotations.contains_key(key),
            Field::Taint => self.kept.taints.iter().any(|taint| taint.id().is_ok_and(|id| id.to_string() == key)),
        }
    }

    /// The desired value of a key (`key:Effect` for a taint).
    pub(crate) fn desired(&self, field: Field, key: &str) -> Option<&Desired> {
        match field {
            Field::Label => self.decision.labels.get(key),
            Field::Annotation => self.decision.annotations.get(key),
            Field::Taint => self.decision.taints.iter().find(|(id, _)| id.to_string() == key).map(|(_, d)| d),
        }
    }
}

/// The record with its owned keys sorted, each once, and without grace periods of keys that it does not have.
pub(crate) fn normalize_owned(mut record: SavedState) -> SavedState {
    let mut owned = record.owned.take().unwrap_or_default();
    owned.taints.sort_unstable();
    owned.taints.dedup();
    let ids: BTreeSet<String> =
        owned.taints.iter().filter_map(|taint| taint.id().ok()).map(|id| id.to_string()).collect();
    let there = |key: &str| owned.labels.contains_key(key) || owned.annotations.contains_key(key) || ids.contains(key);
    owned.remove_after.retain(|key, _| there(key));
    owned.copies.retain(|key| owned.labels.contains_key(key));
    owned.taken_over.retain(|key| owned.labels.contains_key(key));
    record.owned = (owned != Owned::default()).then_some(owned);
    record
}

/// Every key that a change sets.
fn written(change: &NodeChange) -> Vec<(Field, String, String)> {
    let entries = |field, entries: &BTreeMap<String, Option<String>>| {
        entries.iter().filter_map(|(key, value)| Some((field, key.clone(), value.clone()?))).collect::<Vec<_>>()
    };
    let taints = change.taints().iter().filter_map(|(id, value)| Some((Field::Taint, id.to_string(), value.clone()?)));
    let mut all = entries(Field::Label, change.labels());
    all.extend(entries(Field::Annotation, change.annotations()));
    all.extend(taints);
    all
}

impl SavedTaint {
    /// A taint with its value.
    pub fn new(id: &TaintId, value: &str) -> Self {
        Self { key: id.key.as_str().into(), value: value.into(), effect: id.effect.as_str().into() }
    }

    /// Key and effect.
    ///
    /// # Errors
    /// If the key or the effect is not one that Kubernetes knows.
    pub fn id(&self) -> Result<TaintId, String> {
        let key = self.key.parse().map_err(|error: crate::api::names::NameError| error.to_string())?;
        let effect = self.effect.parse::<TaintEffect>().map_err(|error| error.to_string())?;
        Ok(TaintId { key, effect })
    }
}
