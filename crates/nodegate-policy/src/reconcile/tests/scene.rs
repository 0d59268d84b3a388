//! A node with what is recorded of it, for tests.

use serde_json::{Value as Json, json};

use crate::api::state::SavedState;
use crate::facts::NodeFacts;
use crate::facts::managed_fields::Claims;
use crate::facts::pending_taints::PendingTaints;
use crate::facts::proof::evidence::Evidence;
use crate::reconcile::{ReconcilePlan, StoredNode, plan_reconcile};
use crate::{InventoryAnswers, InventoryLabels, NodeDevices, Origin, PolicyDocument, PolicySet, PoolMemory, patch};

pub(crate) const BEFORE: &str = "uid-1";

pub(crate) fn set(spec: Json) -> PolicySet {
    let spec = serde_json::from_value(spec).unwrap();
    PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, spec)]).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// A node with these labels; those of `claimed` are claimed by a field manager.
pub(crate) struct Scene {
    pub(crate) node: Json,
    pub(crate) claims: Claims,
    pub(crate) saved: SavedState,
    pub(crate) pools: PoolMemory,
    pub(crate) registered: bool,
    pub(crate) identified: bool,
    pub(crate) adopt: bool,
    pub(crate) patched: &'static [&'static str],
    /// The version of the node.
    pub(crate) version: &'static str,
    pub(crate) inventory: InventoryAnswers,
    pub(crate) devices: Option<NodeDevices>,
    /// What was authenticated about its kubelet, if the API server checked what the node says.
    pub(crate) evidence: Option<Evidence<'static>>,
}

impl Scene {
    pub(crate) fn new(labels: Json) -> Self {
        let node = json!({"metadata": {"name": "n1", "uid": BEFORE, "labels": labels}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let claims = Claims::default();
        Self {
            node,
            claims,
            saved: SavedState::default(),
            pools: PoolMemory::default(),
            registered: true,
            identified: true,
            adopt: false,
            patched: &[],
            version: "1",
            inventory: InventoryAnswers::default(),
            devices: None,
            evidence: None,
        }
    }

    pub(crate) fn claimed(self, keys: &[&str]) -> Self {
        self.claimed_by("m", keys)
    }

    /// The same node with these labels claimed by one field manager, and no other claims.
    pub(crate) fn claimed_by(mut self, manager: &str, keys: &[&str]) -> Self {
        let fields: serde_json::Map<String, Json> = keys.iter().map(|key| (format!("f:{key}"), json!({}))).collect();
        let managed_fields = json!([{"manager": manager, "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {"f:metadata": {"f:labels": fields}}}]);
        self.claims = Claims::parse(&managed_fields.to_string());
        self
    }

    pub(crate) fn tainted(mut self, taints: Json) -> Self {
        self.node["spec"]["taints"] = taints;
        self
    }

    /// Sets the owned keys that are recorded for this node object.
    pub(crate) fn owning(mut self, owned: Json) -> Self {
        self.saved.node_uid = Some(BEFORE.to_owned());
        self.saved.owned = Some(serde_json::from_value(owned).unwrap());
        self
    }

    /// Sets the labels that were saved for an earlier node object of this name.
    pub(crate) fn saved(mut self, labels: Json) -> Self {
        self.saved.labels = serde_json::from_value(labels).unwrap();
        self.saved.node_uid = Some("uid-0".to_owned());
        self
    }

    /// Sets the answer of the inventory `cmdb`.
    pub(crate) fn answered(mut self, labels: Json) -> Self {
        let labels = InventoryLabels::checked(serde_json::from_value(labels).unwrap()).0;
        self.inventory = self.inventory.with(&"p/cmdb".into(), Some(std::sync::Arc::new(labels)));
        self
    }

    pub(crate) fn keep<T>(&self, set: &PolicySet, look: impl FnOnce(ReconcilePlan) -> T) -> T {
        self.with_stored(|stored| look(plan_reconcile(set, stored)))
    }

    pub(crate) fn with_stored<T>(&self, look: impl FnOnce(&StoredNode<'_>) -> T) -> T {
        let text = self.node.to_string();
        let facts = NodeFacts::parse(&text).unwrap();
        let stored = StoredNode {
            version: Some(self.version),
            inventory: Some(&self.inventory),
            devices: self.devices.as_ref(),
            node: &facts,
            claims: &self.claims,
            saved: &self.saved,
            pools: Some(&self.pools),
            registered: self.registered,
            identified: self.identified,
            pending: <&PendingTaints>::default(),
            adopt: self.adopt,
            patched_taints: &self.patched.iter().map(|id| (*id).to_owned()).collect(),
            elsewhere: Default::default(),
            evidence: self.evidence.as_ref(),
        };
        look(&stored)
    }

    /// Makes the change (with all removals) and records it. Asserts that a second plan is empty.
    pub(crate) fn settle(self, set: &PolicySet) -> Self {
        let settled = self.written_once(set);
        settled.keep(set, |plan| {
            assert_eq!(plan.change(|_| true, |_, _| false), None, "a second plan changes nothing");
            assert_eq!(plan.record(None), settled.saved, "and records the same");
        });
        settled
    }

    /// Makes the change (with all removals) and records it.
    pub(crate) fn written_once(mut self, set: &PolicySet) -> Self {
        let (change, record) = self.keep(set, |plan| {
            let change = plan.change(|_| true, |_, _| false);
            let record = plan.record(change.as_ref());
            (change, record)
        });
        if let Some(change) = &change {
            let text = self.node.to_string();
            let patch = patch(&NodeFacts::parse(&text).unwrap(), change).unwrap();
            json_patch::patch(&mut self.node, &patch.parse().unwrap()).unwrap();
        }
        self.saved = record;
        self
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.node["metadata"]["labels"][key].as_str()
    }
}
