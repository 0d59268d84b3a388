//! Where values come from besides the rules that match: what an evaluation may use depends on whether the node is new.

use crate::api::state::SavedState;
use crate::facts::NodeFacts;
use crate::facts::managed_fields::{Claim, Claims};
use crate::facts::pool_memory::PoolMemory;

/// The sources of values in this evaluation.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    /// Which values default rules assign.
    pub(crate) defaults: Defaults,
    /// The saved state to restore (the node is new).
    pub(crate) saved: Option<&'a SavedState>,
    /// What pools remember (the node is new).
    pub(crate) pools: Option<Recalled<'a>>,
}

/// Which values of default rules a node gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defaults {
    /// None: it has had them.
    None,
    /// No taints: it was there before nodegate. Pods run on it, and the program that removes such a taint may be done with it.
    WithoutTaints,
    /// All: it joins.
    All,
}

impl Defaults {
    /// Those of a stored node. `registered`: whether it was created after the webhook was registered.
    pub(crate) fn of_stored(first_sight: bool, registered: bool) -> Self {
        match (first_sight, registered) {
            (false, _) => Self::None,
            (true, false) => Self::WithoutTaints,
            (true, true) => Self::All,
        }
    }
}

/// What pools remember, for a new node.
#[derive(Clone, Copy)]
pub(crate) struct Recalled<'a> {
    pub(crate) memory: &'a PoolMemory,
    /// The stored node, and the claims on it: what it has got by now is left as it is, unless its kubelet says it.
    pub(crate) stored: Option<(&'a NodeFacts<'a>, &'a Claims)>,
}

impl<'a> Recalled<'a> {
    /// Whether the node may get another value of this label.
    pub(super) fn may_replace(self, key: &str) -> bool {
        self.stored.is_none_or(|(node, claims)| {
            node.label(key).is_none() || claims.label_writer(key).is_none_or(Claim::is_kubelets)
        })
    }
}
