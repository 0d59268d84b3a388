//! Simulates one write: decides, patches and judges it as the API server and nodegate would. `nodegate plan`, `test` and
//! `report` use it.

mod case;
mod node_document;
mod short_form;

pub use case::{compile_in_place, compile_inline, faulty_nodes, missing_errors, node_of, run_case, scene};
pub use node_document::{read_node, read_object};
pub use short_form::{SimulationError, taint, taint_text, taints};

use std::sync::Arc;

use serde_json::Value as Json;

use crate::api::pools::MachineKind;
use crate::api::state::SavedState;
use crate::{
    Assertions, Bootstrapper, CertificateForNode, DecideContext, Decision, Exemptions, Extra, InventoryAnswers,
    MachinesOfNode, NodeDevices, NodeFacts, Operation, PendingTaints, PolicySet, PoolMemory, Requester, Text, Verdict,
    Witness, Write, decide, judge, patch_of_write,
};

/// A write to simulate.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The node in the request.
    pub node: Json,
    /// The node as it is stored; `None` for a CREATE.
    pub old: Option<Json>,
    /// Whether the write goes to `nodes/status`.
    pub status: bool,
    /// Who sends it.
    pub username: String,
    /// The groups of the requester.
    pub groups: Vec<String>,
    /// Extra information about the requester, as JSON.
    pub extra: Option<String>,
    /// Who asked for the certificate of the kubelet that created the node, if that is known.
    pub bootstrapped_by: Option<Arc<Bootstrapper>>,
    /// The provisioners' objects that stand for the node's machine.
    pub machines: MachinesOfNode,
    /// Who else has asked for a certificate for the node's name.
    pub also_bootstrapped_by: Vec<Arc<Bootstrapper>>,
    /// What is saved of the node.
    pub saved: Option<SavedState>,
    /// What pools remember.
    pub pools: PoolMemory,
    /// The answers of inventories about the node.
    pub inventory: InventoryAnswers,
    /// The devices of the node, if they are known.
    pub devices: Option<NodeDevices>,
    /// The pending taints, if a controller runs that removes them.
    pub pending_taints: Option<PendingTaints>,
}

impl Scene {
    /// The CREATE of a node by this user, of which nothing else is known.
    pub fn of(node: Json, username: String, groups: Vec<String>) -> Self {
        Self {
            node,
            old: None,
            status: false,
            username,
            groups,
            extra: None,
            bootstrapped_by: None,
            machines: MachinesOfNode::default(),
            also_bootstrapped_by: Vec::new(),
            saved: None,
            pools: PoolMemory::default(),
            inventory: InventoryAnswers::default(),
            devices: None,
            pending_taints: None,
        }
    }

    /// A write of an administrator that leaves the node as it is.
    pub fn unchanged(node: &Json) -> Self {
        let (username, groups) = identity("admin", node_name(node), &[]);
        Self { old: Some(node.clone()), ..Self::of(node.clone(), username, groups) }
    }
}

impl Witness for Scene {
    fn bootstrapper(&self, _certificate: &str, _saved: Option<&SavedState>) -> Option<Arc<Bootstrapper>> {
        self.bootstrapped_by.clone()
    }

    fn machines(&self, _kinds: &[MachineKind], _node: &str, _instances: Option<&[&str]>) -> MachinesOfNode {
        self.machines.clone()
    }

    fn assertions(&self, _node: &str, _provider_id: Option<&str>, _saved: Option<&SavedState>) -> Assertions {
        let certificate = |(at, bootstrapper): (usize, &Arc<Bootstrapper>)| CertificateForNode {
            certificate: format!("{:064x}", at + 1),
            bootstrapper: bootstrapper.clone(),
        };
        let certificates = self.also_bootstrapped_by.iter().enumerate().map(certificate).collect();
        Assertions { certificates, ..Assertions::default() }
    }
}

/// The outcome of a write.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// What `decide` returned.
    pub decision: Decision,
    /// The node as it would be stored if it is not denied.
    pub node: Json,
    /// What `judge` returned.
    pub verdict: Verdict,
}

/// The user and groups that `as` stands for: `kubelet`, `admin` or a user name.
pub fn identity(name: &str, node: &str, groups: &[String]) -> (String, Vec<String>) {
    let (user, own): (String, &[&str]) = match name {
        "kubelet" => (format!("system:node:{node}"), &["system:nodes", "system:authenticated"]),
        "admin" => ("admin".to_owned(), &["system:masters", "system:authenticated"]),
        other => (other.to_owned(), &["system:authenticated"]),
    };
    (user, own.iter().map(|group| (*group).to_owned()).chain(groups.iter().cloned()).collect())
}

/// The name of a node in JSON.
pub fn node_name(node: &Json) -> &str {
    node["metadata"]["name"].as_str().unwrap_or_default()
}

fn write<'a>(
    set: &PolicySet,
    scene: &'a Scene,
    node: &'a str,
    old: Option<&'a str>,
) -> Result<Write<'a>, SimulationError> {
    let mut write = Write {
        operation: if old.is_some() { Operation::Update } else { Operation::Create },
        status: scene.status,
        dry_run: false,
        requester: Requester {
            username: Text(scene.username.as_str().into()),
            groups: scene.groups.iter().map(|group| Text(group.as_str().into())).collect(),
            uid: None,
            extra: Extra::new(scene.extra.as_deref()),
        },
        evidence: None,
        node: NodeFacts::parse(node).map_err(SimulationError::new)?,
        old: old.map(NodeFacts::parse).transpose().map_err(SimulationError::new)?,
    };
    write.prove(set, scene.saved.as_ref(), scene);
    Ok(write)
}

/// Decides, patches and judges a write.
///
/// # Errors
/// Returns an error if an object is not a Node, or if the patch does not apply (which would be a bug in nodegate).
pub fn simulate(set: &PolicySet, scene: &Scene, exemptions: &Exemptions) -> Result<Simulated, SimulationError> {
    let (raw, old) = (scene.node.to_string(), scene.old.as_ref().map(Json::to_string));
    let first = write(set, scene, &raw, old.as_deref())?;
    let context = DecideContext {
        saved: scene.saved.as_ref(),
        pools: Some(&scene.pools),
        inventory: Some(&scene.inventory),
        devices: scene.devices.as_ref(),
        pending_taints: scene.pending_taints.as_ref().unwrap_or_default(),
        sets_pending: scene.pending_taints.is_some(),
        ..DecideContext::default()
    };
    // nodes/status is validated, never mutated.
    let decision = if scene.status { Decision::default() } else { decide(set, &first, &context) };
    let mut node = scene.node.clone();
    let change = decision.change.as_ref();
    if let Some(patch) = patch_of_write(&first, change).map_err(SimulationError::new)?.filter(|_| !scene.status) {
        let operations = patch.parse().map_err(SimulationError::new)?;
        json_patch::patch(&mut node, &operations).map_err(SimulationError::new)?;
    }
    let patched = node.to_string();
    let second = write(set, scene, &patched, old.as_deref())?;
    let verdict = judge(set, &second, &context, exemptions);
    Ok(Simulated { decision, node, verdict })
}
