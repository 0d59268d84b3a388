//! Who asks for what.

use super::borrowed::Text;
use super::facts::NodeFacts;
use crate::api::names::TaintId;
use crate::api::state::SavedState;

/// Who sends a write.
#[derive(Clone, Debug, Default)]
pub struct Requester<'a> {
    /// The user name.
    pub username: Text<'a>,
    /// The groups.
    pub groups: Vec<Text<'a>>,
    /// The uid, if it has one; only expressions ask for it.
    pub uid: Option<Text<'a>>,
}

impl Requester<'_> {
    /// Whether this is a kubelet: user `system:node:<name>` in group `system:nodes`.
    pub fn is_kubelet(&self) -> bool {
        self.username.starts_with("system:node:") && self.groups.iter().any(|group| &**group == "system:nodes")
    }

    /// The service account as `namespace:name`, if it is one.
    pub fn service_account(&self) -> Option<&str> {
        self.username.strip_prefix("system:serviceaccount:")
    }
}

/// What a write does to the node object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The node is made.
    Create,
    /// The node is changed.
    Update,
}

/// One write to decide on or to judge.
#[derive(Clone, Debug)]
pub struct Write<'a> {
    /// What it does.
    pub operation: Operation,
    /// Whether it goes to `nodes/status`.
    pub status: bool,
    /// Whether nothing will be stored.
    pub dry_run: bool,
    /// Who sends it.
    pub requester: Requester<'a>,
    /// The node as it would be stored.
    pub node: NodeFacts<'a>,
    /// The node as it is stored now; `None` on CREATE.
    pub old: Option<NodeFacts<'a>>,
}

/// The taint key (and effect NoSchedule) of the CNCF cloud provider's startup taint. The write that
/// takes it away brings provider ID, zone and instance type (`k8s.io/cloud-provider/api`).
pub(crate) const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

impl Write<'_> {
    /// Whether this write makes the node what it will be: its CREATE, or the cloud controller's
    /// write that takes away the `uninitialized` taint. Nothing has been scheduled there before.
    pub fn is_initial(&self) -> bool {
        let uninitialized =
            |facts: &NodeFacts<'_>| facts.taints().iter().any(|taint| &*taint.key == UNINITIALIZED_TAINT);
        match &self.old {
            None => true,
            Some(old) => uninitialized(old) && !uninitialized(&self.node),
        }
    }
}

/// What else a decision depends on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances<'a> {
    /// What is saved of the node.
    pub saved: Option<&'a SavedState>,
    /// The pending taint, if one may be set now (somebody is there to lift it).
    pub pending_taint: Option<&'a TaintId>,
    /// Whether the node is stamped with who changed it last.
    pub stamps: bool,
}
