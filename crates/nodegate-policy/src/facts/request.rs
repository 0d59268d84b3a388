//! Requests: the write, and the context of a decision.

use crate::api::state::SavedState;
use crate::cel::Budget;
use crate::facts::NodeFacts;
use crate::facts::devices::NodeDevices;
use crate::facts::inventory::InventoryAnswers;
use crate::facts::pending_taints::PendingTaints;
use crate::facts::pool_memory::PoolMemory;
use crate::facts::proof::evidence::Evidence;
use crate::facts::publishers::Publishers;
use crate::facts::requester::Requester;

/// What a write does to the node object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The node is created.
    Create,
    /// The node is updated.
    Update,
}

/// One write to decide on or to judge.
#[derive(Clone, Debug)]
pub struct Write<'a> {
    /// The operation.
    pub operation: Operation,
    /// Whether it goes to `nodes/status`.
    pub status: bool,
    /// Whether nothing will be stored.
    pub dry_run: bool,
    /// Who sends it.
    pub requester: Requester<'a>,
    /// The evidence for the node's pools, which [`Self::prove`] finds. Without it, what pools ask of the requester is unknown.
    pub evidence: Option<Evidence<'a>>,
    /// The node as it would be stored.
    pub node: NodeFacts<'a>,
    /// The node as it is stored now; `None` on CREATE.
    pub old: Option<NodeFacts<'a>>,
}

/// The key of the startup taint of cloud providers (effect NoSchedule). The write that removes it sets
/// provider ID, zone and instance type (`k8s.io/cloud-provider/api`).
pub(crate) const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

impl<'a> Write<'a> {
    /// A write that nobody has sent, for what follows from the node alone.
    pub(crate) fn unasked(operation: Operation, node: &NodeFacts<'a>) -> Self {
        let requester = Requester::default();
        Self { operation, status: false, dry_run: false, requester, evidence: None, node: node.clone(), old: None }
    }
}

impl Write<'_> {
    /// Whether this write initializes the node: its CREATE, or the cloud controller's write that removes
    /// the `uninitialized` taint. No pods have been scheduled on the node before.
    pub fn is_initial(&self) -> bool {
        let uninitialized =
            |facts: &NodeFacts<'_>| facts.taints().iter().any(|taint| &*taint.key == UNINITIALIZED_TAINT);
        match &self.old {
            None => true,
            Some(old) => uninitialized(old) && !uninitialized(&self.node),
        }
    }
}

/// What a decision depends on besides the policies and the write.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecideContext<'a> {
    /// The saved state of the node.
    pub saved: Option<&'a SavedState>,
    /// What pools remember.
    pub pools: Option<&'a PoolMemory>,
    /// The answers of inventories about the node.
    pub inventory: Option<&'a InventoryAnswers>,
    /// The devices of the node. Admission does not know them.
    pub devices: Option<&'a NodeDevices>,
    /// The pending taints, which rules do not see.
    pub pending_taints: &'a PendingTaints,
    /// Whether a joining node may get one: a controller can remove it.
    pub sets_pending: bool,
    /// Whether the last-change annotation is maintained.
    pub records_last_change: bool,
    /// The budget of expressions, which may be shared; without it, each evaluation of the node has its own budget.
    pub budget: Option<&'a Budget>,
    /// Programs that publish labels on other nodes.
    pub elsewhere: Publishers,
}
