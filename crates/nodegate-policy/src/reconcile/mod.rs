//! `plan_reconcile`: the changes that a stored node needs to have its desired state, and what to record.
//!
//! The controller's counterpart of [`crate::decide`]: it evaluates the same rules for a stored node and its saved state.
//! Pure, like `decide`.

use std::collections::BTreeSet;
use std::time::Duration;

mod admitted;
mod capture;
mod moved;
mod owned;
mod record;
#[cfg(test)]
pub(crate) mod tests;
mod unseen;
mod unsettled;

use admitted::Admitted;
pub use admitted::RejectedClaim;
use capture::Captured;
pub use capture::{SAVED_LABELS_MAX, SAVED_TAINTS_MAX};
pub(crate) use record::normalize_owned;
pub use unseen::Unseen;
use unsettled::{UnderWay, settle};

use crate::api::state::{Asserted, Owned, SavedState, SharedText};
use crate::decide::decision::{ChangeBuilder, Decision, Note};
use crate::decide::evaluate::Evaluation;
use crate::decide::forbidden::forbidding;
use crate::decide::gates::{self, ClosedGate};
use crate::decide::sources::{Defaults, Recalled, Sources};
use crate::decide::view::View;
use crate::decide::{DecisionBuilder, EvalContext, answers, mask_owned};
use crate::facts::NodeFacts;
use crate::facts::devices::NodeDevices;
use crate::facts::gpu::{self, Gpus};
use crate::facts::inventory::InventoryAnswers;
use crate::facts::managed_fields::Claims;
use crate::facts::missing::{Memory, Missing};
use crate::facts::pending_taints::PendingTaints;
use crate::facts::pool_memory::{PoolMemory, PoolShare};
use crate::facts::proof::evidence::Evidence;
use crate::facts::publishers::Publishers;
use crate::facts::request::{Operation, Write};
use crate::keys::Field;
use crate::keys::restriction::is_own;
use crate::set::PolicySet;
use crate::set::rule::{RuleId, Strength};

/// A stored node, and what is known about its past.
#[derive(Clone, Copy, Debug)]
pub struct StoredNode<'a> {
    /// The node.
    pub node: &'a NodeFacts<'a>,
    /// Its `resourceVersion`, to which a change will apply; `None` if nothing will be written.
    pub version: Option<&'a str>,
    /// The claims of field managers on its keys.
    pub claims: &'a Claims,
    /// Its saved state; empty if there is none.
    pub saved: &'a SavedState,
    /// What pools remember, if that is known.
    pub pools: Option<&'a PoolMemory>,
    /// The answers of inventories about it.
    pub inventory: Option<&'a InventoryAnswers>,
    /// The devices that drivers publish of it, if they are known and policies read them.
    pub devices: Option<&'a NodeDevices>,
    /// Whether the node was created after the mutating webhook was registered, so that admission should have seen it.
    pub registered: bool,
    /// Whether the machine is identified. If not, nothing is restored yet and the node's uid is not recorded.
    pub identified: bool,
    /// Pending taints to remove.
    pub pending: &'a PendingTaints,
    /// Whether nodegate becomes the owner of keys that already have the desired value, whoever claims them.
    pub adopt: bool,
    /// Taints (`key:Effect`) that a webhook's patch added since the node was last recorded.
    pub patched_taints: &'a BTreeSet<String>,
    /// Programs that publish labels on other nodes.
    pub elsewhere: Publishers,
    /// The evidence for its pools, of [`Evidence::of_stored`].
    pub evidence: Option<&'a Evidence<'a>>,
}

impl<'a> StoredNode<'a> {
    /// What pools remember for it, if it is new.
    pub(crate) fn recalled(&self) -> Option<Recalled<'a>> {
        self.pools.map(|memory| Recalled { memory, stored: Some((self.node, self.claims)) })
    }

    /// The GPUs inferred from what the node has, whoever set it.
    pub fn gpus(&self) -> Gpus {
        let memory = Memory::of(Some(self.saved), !self.is_new(), self.elsewhere);
        let missing = Missing::on(self.node.readiness, Publishers::default(), &memory, || Publishers::on(self.node));
        gpu::infer(self.node.labels(), self.node, &missing)
    }

    /// Whether this node object was not recorded before.
    fn is_new(&self) -> bool {
        !self.saved.is_of_object(self.node.uid.as_deref())
    }
}

/// A key that nodegate owns and no rule assigns anymore.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Removal {
    /// The part of the node.
    pub field: Field,
    /// The key; for a taint `key:Effect`.
    pub key: String,
    /// How long no rule must have assigned it before it is removed.
    pub after: Duration,
}

/// The changes that a stored node needs, and what to record.
#[derive(Clone, Debug)]
pub struct ReconcilePlan {
    /// The desired state.
    pub decision: Decision,
    /// Whether this node object was not recorded before.
    pub first_sight: bool,
    /// Owned keys to remove after their grace period.
    pub removals: Vec<Removal>,
    /// Protected keys that a kubelet set while the webhook was unavailable, to be removed now.
    pub forged: Vec<String>,
    /// The rejected claims of the node's kubelet when it joined.
    pub rejected: Vec<RejectedClaim>,
    /// How many more claims were rejected, which are not listed; [`Self::rejected_unnamed`] stands for them.
    pub rejected_more: usize,
    /// Whether a pending taint is removed.
    pub lifts_pending: bool,
    /// Whether the node keeps a pending taint because a required inventory has not answered.
    pub awaits_inventory: bool,
    /// What was admitted without nodegate, as far as it can be detected from the stored node.
    pub unseen: Option<Unseen>,
    /// Number of persisted labels and taints that are not saved, because the node has too many.
    pub not_saved: usize,
    /// What the node says about its pools: nothing before it is recorded, and while it is not known which sections match it.
    pub share: Option<PoolShare>,
    additions: ChangeBuilder,
    kept: Owned,
    base: SavedState,
    restores: bool,
    recorded_uid: Option<String>,
    captured: Captured,
    under_way: UnderWay,
    /// Labels that rules do not see, because a kubelet may have set them.
    pub(crate) set_aside: Vec<String>,
}

/// Computes what a stored node needs.
///
/// # Guarantees
/// - Pure: no I/O, no clock.
/// - After [`ReconcilePlan::change`] is made and [`ReconcilePlan::record`] saved, the next plan has no change and the same record.
pub fn plan_reconcile(set: &PolicySet, stored: &StoredNode<'_>) -> ReconcilePlan {
    planned(set, stored, |planner, under_way| planner.finish(under_way))
}

/// The gates and topologies whose `match` holds for a stored node, whether it waits there or not. As expensive as [`plan_reconcile`].
pub fn gates_of(set: &PolicySet, stored: &StoredNode<'_>) -> Vec<RuleId> {
    planned(set, stored, |planner, _| gates::matching(set, &planner.evaluation.view))
}

/// Evaluates the policies on a stored node.
fn planned<T>(set: &PolicySet, stored: &StoredNode<'_>, take: impl FnOnce(Planner<'_>, UnderWay) -> T) -> T {
    let first_sight = stored.is_new();
    let (settled, under_way) = settle(set, stored, first_sight);
    let saved = settled.as_ref().unwrap_or(stored.saved);
    let same_pool = first_sight.then(|| set.saved_of_same_pool(saved, &stored.node.name, stored.evidence)).flatten();
    let stored = &StoredNode { saved: same_pool.as_ref().unwrap_or(saved), ..*stored };
    let admitted = Admitted::of(stored, first_sight);
    let write = Write::unasked(Operation::Update, stored.node);
    // A node that is not identified yet is at first sight every time, so others may have set its keys in the meantime.
    let suspects: Vec<&str> = if first_sight && stored.registered && stored.identified && !admitted.is_proven() {
        // A key with its saved value had that value before, so the kubelet did not invent it.
        let is_saved = |key: &str, value: &str| stored.saved.labels.get(key).is_some_and(|saved| saved == value);
        let set_aside = |key: &str, value: &str| (set.is_protected(key) || is_own(key)) && !is_saved(key, value);
        stored.node.labels().filter(|(key, value)| set_aside(key, value)).map(|(key, _)| key).collect()
    } else {
        Vec::new()
    };
    let mut planner = Planner::run(set, stored, &write, first_sight, &suspects, &admitted);
    // A key with the desired value and without a claim was set by nodegate's webhook. So the webhook has already removed
    // what the kubelet may not set, and the remaining keys were set by others.
    if !suspects.is_empty() && (planner.was_admitted_by_us() || planner.builder.decision.labels.is_empty()) {
        planner = Planner::run(set, stored, &write, first_sight, &[], &admitted);
    }
    take(planner, under_way)
}

/// A stored node as rules see it: without the keys that nodegate owns, pending taints, and labels to set aside.
pub(crate) fn stored_view<'a>(
    set: &'a PolicySet,
    stored: &StoredNode<'a>,
    first_sight: bool,
    set_aside: impl Iterator<Item = &'a str>,
) -> View<'a> {
    let mut view = View::new(set, stored.node, None, stored.evidence).told(stored.inventory);
    view = view.with_devices(stored.devices);
    view.mask_pending(stored.pending);
    if !first_sight {
        mask_owned(&mut view, stored.saved);
    }
    view.remember(Memory::of(Some(stored.saved), !first_sight, stored.elsewhere));
    moved::mask_originals(&mut view, stored, first_sight);
    set_aside.for_each(|key| view.mask_label(key, None));
    view
}

struct Planner<'a> {
    set: &'a PolicySet,
    stored: &'a StoredNode<'a>,
    first_sight: bool,
    /// Sorted, as labels are.
    suspects: Vec<&'a str>,
    admitted: &'a Admitted,
    builder: DecisionBuilder<'a>,
    evaluation: Evaluation<'a>,
}

impl<'a> Planner<'a> {
    fn run(
        set: &'a PolicySet,
        stored: &'a StoredNode<'a>,
        write: &'a Write<'a>,
        first_sight: bool,
        suspects: &[&'a str],
        admitted: &'a Admitted,
    ) -> Self {
        let view = stored_view(set, stored, first_sight, suspects.iter().copied());
        let saved = (first_sight && stored.identified).then(|| admitted.left_to_restore(stored));
        let pools = stored.recalled().filter(|_| first_sight && stored.identified);
        let defaults = Defaults::of_stored(first_sight, stored.registered);
        let sources = Sources { defaults, saved, pools };
        let (builder, evaluation) =
            DecisionBuilder::run(set, write, view, EvalContext { sources, initial: false }, None);
        Self { set, stored, first_sight, suspects: suspects.to_vec(), admitted, builder, evaluation }
    }

    /// Whether a desired label is present with its value and without a claim.
    fn was_admitted_by_us(&self) -> bool {
        if self.admitted.is_proven() {
            return true;
        }
        let node = self.stored.node;
        let decision = &self.builder.decision;
        decision
            .labels
            .iter()
            .any(|(key, desired)| node.label(key) == Some(&desired.value) && !self.stored.claims.has_label(key))
    }

    fn finish(mut self, under_way: UnderWay) -> ReconcilePlan {
        let unseen = self.unseen();
        let forged = self.forged();
        let (rejected, rejected_more) = self.rejected();
        let (kept, removals) = self.owned();
        let awaits_inventory = self.awaits_inventory();
        self.builder.decision.gates = self.closed_gates();
        let lifts_pending = !awaits_inventory && self.builder.decision.gates.is_empty() && self.lift_pending();
        let captured = self.captured();
        let share = self.share();
        let base = self.base();
        let additions = std::mem::take(&mut self.builder.change);
        let strong = |strength: Strength| !strength.is_kept();
        let decision = self.builder.decision;
        let restores = additions.labels.keys().any(|key| decision.labels.get(key).is_some_and(|d| strong(d.strength)))
            || additions.taints.keys().any(|id| decision.taints.get(id).is_some_and(|d| strong(d.strength)));
        ReconcilePlan {
            decision,
            first_sight: self.first_sight,
            removals,
            forged,
            rejected,
            rejected_more,
            lifts_pending,
            awaits_inventory,
            unseen,
            not_saved: captured.left_out,
            share,
            additions,
            kept,
            base,
            restores,
            recorded_uid: self.stored.saved.node_uid.clone(),
            captured,
            under_way,
            set_aside: self.suspects.iter().map(|key| (*key).to_owned()).collect(),
        }
    }

    /// Protected keys that are neither desired nor saved, on a node that joined while the webhook was unavailable.
    fn forged(&mut self) -> Vec<String> {
        let decision = &self.builder.decision;
        let forged: Vec<String> = self
            .suspects
            .iter()
            .filter(|key| !decision.labels.contains_key(**key))
            .map(|key| (*key).to_owned())
            .collect();
        for key in &forged {
            self.builder.change.labels.insert(key.clone(), None);
            let by = forbidding(self.set, key).unwrap_or_else(|| RuleId::own("own-keys"));
            self.builder.decision.notes.push(Note::Stripped { field: Field::Label, key: key.clone(), by });
        }
        forged
    }

    fn awaits_inventory(&self) -> bool {
        self.stored.pending.on(self.stored.node).next().is_some()
            && !answers::required(self.set, self.stored.inventory).is_empty()
    }

    /// The gates that keep the pending taint on the node; none if it has none, because no living node gets one.
    fn closed_gates(&self) -> Vec<ClosedGate> {
        match self.stored.pending.on(self.stored.node).next() {
            Some(_) => gates::closed(self.set, &self.evaluation.view),
            None => Vec::new(),
        }
    }

    fn lift_pending(&mut self) -> bool {
        let mut lifts = false;
        for id in self.stored.pending.on(self.stored.node) {
            if !self.builder.decision.taints.contains_key(id) {
                self.builder.change.taints.insert(id.clone(), None);
                lifts = true;
            }
        }
        lifts
    }

    /// The record without owned and captured keys.
    fn base(&self) -> SavedState {
        let saved = self.stored.saved;
        let mut publishers: BTreeSet<SharedText> = self.evaluation.view.publishers().names().map(Into::into).collect();
        let mut before = &saved.publishers_before;
        if !self.first_sight {
            publishers.extend(saved.publishers.iter().cloned());
        } else if !saved.publishers.is_empty() {
            before = &saved.publishers;
        }
        let publishers_before = before.iter().filter(|name| !publishers.contains(*name)).cloned().collect();
        let evidence = self.stored.evidence;
        let machines = evidence.map(Evidence::machines);
        let found = machines.map(|machines| machines.found.clone()).unwrap_or_default();
        let absent = machines.map(|machines| machines.absent(self.set.machine_kinds())).unwrap_or_default();
        let asserted = evidence.map(Evidence::asserted).filter(|asserted| !asserted.is_empty());
        let uid = self.stored.identified.then(|| self.stored.node.uid.as_deref().map(str::to_owned)).flatten();
        SavedState {
            node_name: self.stored.node.name.to_string(),
            node_uid: uid.clone(),
            publishers: publishers.into_iter().collect(),
            publishers_before,
            deleted_at: None,
            authenticated_as: evidence.and_then(Evidence::authenticated_as).map(Into::into),
            asserted: uid.clone().and_then(|uid| Some(Box::new(Asserted { node_uid: Some(uid), ..asserted?.clone() }))),
            adopted: saved.adopted.clone().filter(|adopted| uid.as_ref() == Some(&adopted.node_uid)),
            provisioned_for: uid.filter(|_| !found.is_empty() || !absent.is_empty()).map(Into::into),
            provisioned_by: found.into(),
            not_provisioned_by: absent,
            ..saved.clone()
        }
    }
}
