//! Changes that were recorded, and of which it is not known whether they were made.
//!
//! The controller records what it will own, and then changes the node. In between it may end, its change may be refused, or arrive after
//! another replica has read the node. So the record also says which version of the node the change applies to: as long as the
//! node is that version, the change may still arrive; after that, the node shows whether it was made.

use std::collections::{BTreeMap, BTreeSet};

use super::StoredNode;
use crate::api::names::TaintId;
use crate::api::state::{Owned, SavedState, SavedTaint, TextMap, Unsettled};
use crate::decide::decision::NodeChange;
use crate::set::PolicySet;

/// The values that changes under way may set, by key.
type Values = BTreeMap<String, BTreeSet<String>>;

/// What changes of the node's current version may set, and what the record owned before them.
#[derive(Clone, Debug, Default)]
pub(super) struct UnderWay {
    /// The version of the node that was read; `None` if it is not known.
    version: Option<String>,
    labels: Values,
    taints: Values,
    /// The owned labels and taints that the node has, as far as it shows them.
    owned_labels: TextMap,
    owned_taints: TextMap,
}

impl UnderWay {
    /// Whether a change that may still arrive sets something.
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.taints.is_empty()
    }

    /// What to record before this change of a node, which will own `owned`.
    pub(super) fn before(&self, change: &NodeChange, owned: &Owned) -> Option<Unsettled> {
        let resource_version = self.version.clone()?;
        let mut unsettled = self.unchanged().unwrap_or_default();
        unsettled.resource_version = resource_version;
        for (key, value) in change.labels().iter().filter_map(|(key, value)| Some((key, value.as_ref()?))) {
            if !owned.labels.contains_key(key) {
                continue;
            }
            unsettled.labels.entry(key.clone()).or_default().insert(value.clone());
            if let Some(before) = self.owned_labels.get(key).filter(|before| *before != value) {
                unsettled.replaced_labels.insert(key.clone(), before.to_owned());
            }
        }
        let taints = by_id(&owned.taints);
        for (id, value) in change.taints().iter().filter_map(|(id, value)| Some((id.to_string(), value.as_ref()?))) {
            if !taints.contains_key(&id) {
                continue;
            }
            if let Some(before) = self.owned_taints.get(&id).filter(|before| *before != value) {
                unsettled.replaced_taints.insert(id.clone(), before.to_owned());
            }
            unsettled.taints.entry(id).or_default().insert(value.clone());
        }
        (!unsettled.labels.is_empty() || !unsettled.taints.is_empty()).then_some(unsettled)
    }

    /// What to record while the node is unchanged.
    pub(super) fn unchanged(&self) -> Option<Unsettled> {
        let version = self.version.clone().filter(|_| !self.is_empty())?;
        let (labels, taints) = (self.labels.clone(), self.taints.clone());
        Some(Unsettled { resource_version: version, labels, taints, ..Unsettled::default() })
    }
}

/// The record with what the node shows of the changes that were under way, and with what may still arrive. The record of an
/// earlier node object of this name says nothing about what is on this one.
///
/// A key with the value that a change sets was set by it unless others claim it, and who could claim it to keep it is not
/// believed. So a label beyond kubelets that an administrator sets, to the very value that a rule gives and in the moment
/// before nodegate's own change is refused, counts as nodegate's.
pub(super) fn settle(set: &PolicySet, stored: &StoredNode<'_>, first_sight: bool) -> (Option<SavedState>, UnderWay) {
    let (node, claims, version) = (stored.node, stored.claims, stored.version.map(str::to_owned));
    let nothing = Owned::default();
    let owned = stored.saved.owned.as_ref().unwrap_or(&nothing);
    let of_record = |owned: &Owned| {
        let owned = if first_sight { &nothing } else { owned };
        let (owned_labels, owned_taints) = (owned.labels.clone(), by_id(&owned.taints));
        UnderWay { version: version.clone(), owned_labels, owned_taints, ..UnderWay::default() }
    };
    let Some(unsettled) = &owned.unsettled else { return (None, of_record(owned)) };
    let may_arrive = stored.version == Some(unsettled.resource_version.as_str());
    let mut settled = Owned { unsettled: None, ..owned.clone() };
    // The same for a key that is claimed by nobody: claims may have been deleted.
    let is_unclaimed = |key: &str| claims.controller_has_label(key) || !claims.has_label(key);
    let is_ours = |key: &str| set.is_beyond_kubelets(key) || is_unclaimed(key);
    let labels = Change { sets: &unsettled.labels, replaced: &unsettled.replaced_labels, may_arrive };
    settled.labels = labels.settle(settled.labels, |key| node.label(key), is_ours);
    let value = |id: &str| {
        let id = taint_id(id)?;
        node.taint(id.key.as_str(), id.effect)
    };
    // Taints have no claims of their own.
    let taints = Change { sets: &unsettled.taints, replaced: &unsettled.replaced_taints, may_arrive };
    let taints = taints.settle(by_id(&settled.taints), value, |_| true);
    settled.taints = taints.iter().filter_map(|(id, value)| Some(SavedTaint::new(&taint_id(id)?, value))).collect();
    let mut under_way = of_record(&settled);
    if may_arrive {
        (under_way.labels, under_way.taints) = (unsettled.labels.clone(), unsettled.taints.clone());
    }
    (Some(SavedState { owned: Some(settled), ..stored.saved.clone() }), under_way)
}

/// A change that was under way, in one field.
struct Change<'a> {
    sets: &'a Values,
    replaced: &'a BTreeMap<String, String>,
    may_arrive: bool,
}

impl Change<'_> {
    /// The owned keys with the values that they have now.
    fn settle<'n>(
        &self,
        mut owned: TextMap,
        value: impl Fn(&str) -> Option<&'n str>,
        is_ours: impl Fn(&str) -> bool,
    ) -> TextMap {
        for (key, sets) in self.sets {
            let now = value(key);
            let was_made = !self.may_arrive && now.is_some_and(|now| sets.contains(now)) && is_ours(key);
            let before = self.replaced.get(key).map(String::as_str);
            // A key that the change does not replace was owned before only if the change sets another value.
            let before = before.or_else(|| owned.get(key).filter(|value| !sets.contains(*value)));
            match (if was_made { now } else { before }).map(str::to_owned) {
                Some(value) => owned.insert(key, &value),
                None => owned.remove(key),
            }
        }
        owned
    }
}

/// The inverse of `TaintId`'s text.
fn taint_id(text: &str) -> Option<TaintId> {
    let (key, effect) = text.rsplit_once(':')?;
    Some(TaintId { key: key.parse().ok()?, effect: effect.parse().ok()? })
}

fn by_id(taints: &[SavedTaint]) -> TextMap {
    taints.iter().filter_map(|taint| Some((taint.id().ok()?.to_string(), &*taint.value))).collect()
}
