//! One write as the API server would handle it: decided, patched, judged, all for real but the server.

use serde_json::Value as Json;

use crate::api::names::TaintId;
use crate::api::state::SavedState;
use crate::policy::{
    Circumstances, Decision, Exemptions, NodeFacts, Operation, PolicySet, Requester, Text, Verdict, Write, decide,
    judge, patch,
};

/// A write to simulate.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) node: Json,
    pub(crate) old: Option<Json>,
    pub(crate) status: bool,
    pub(crate) username: String,
    pub(crate) groups: Vec<String>,
    pub(crate) saved: Option<SavedState>,
    pub(crate) pending_taint: Option<TaintId>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Simulated {
    pub(crate) decision: Decision,
    /// The node as it would be stored, if it is not denied.
    pub(crate) node: Json,
    pub(crate) verdict: Verdict,
}

/// Who `as` stands for on a node: `kubelet`, `admin` or a user name.
pub(crate) fn identity(name: &str, node: &str, groups: &[String]) -> (String, Vec<String>) {
    let (user, own): (String, &[&str]) = match name {
        "kubelet" => (format!("system:node:{node}"), &["system:nodes", "system:authenticated"]),
        "admin" => ("admin".to_owned(), &["system:masters", "system:authenticated"]),
        other => (other.to_owned(), &["system:authenticated"]),
    };
    (user, own.iter().map(|group| (*group).to_owned()).chain(groups.iter().cloned()).collect())
}

/// The name of a node in JSON.
pub(crate) fn node_name(node: &Json) -> &str {
    node["metadata"]["name"].as_str().unwrap_or_default()
}

fn write<'a>(scene: &'a Scene, node: &'a str, old: Option<&'a str>) -> anyhow::Result<Write<'a>> {
    Ok(Write {
        operation: if old.is_some() { Operation::Update } else { Operation::Create },
        status: scene.status,
        dry_run: false,
        requester: Requester {
            username: Text(scene.username.as_str().into()),
            groups: scene.groups.iter().map(|group| Text(group.as_str().into())).collect(),
            uid: None,
        },
        node: NodeFacts::parse(node)?,
        old: old.map(NodeFacts::parse).transpose()?,
    })
}

/// Decides, patches and judges a write.
///
/// # Errors
/// If an object is not a Node, or a patch does not apply (which would be a fault of nodegate).
pub(crate) fn simulate(set: &PolicySet, scene: &Scene, exemptions: &Exemptions) -> anyhow::Result<Simulated> {
    let (raw, old) = (scene.node.to_string(), scene.old.as_ref().map(Json::to_string));
    let first = write(scene, &raw, old.as_deref())?;
    let circumstances =
        Circumstances { saved: scene.saved.as_ref(), pending_taint: scene.pending_taint.as_ref(), stamps: false };
    // nodes/status is validated, never mutated.
    let decision = if scene.status { Decision::default() } else { decide(set, &first, &circumstances) };
    let mut node = scene.node.clone();
    if let Some(change) = &decision.change {
        json_patch::patch(&mut node, &patch(&first.node, change))?;
    }
    let patched = node.to_string();
    let second = write(scene, &patched, old.as_deref())?;
    let verdict = judge(set, &second, &circumstances, exemptions);
    Ok(Simulated { decision, node, verdict })
}
