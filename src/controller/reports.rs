//! `ClusterReport` objects of openreports.io: what each node violates, for whoever reads policy reports.
//!
//! One object per node with violations, none for a node without. Written by the leader when it looks at the fleet, at its
//! bounded rate, only where something differs. Off unless asked for; the definition is the openreports project's.

use std::collections::BTreeMap;

use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value as Json, json};

use super::history::FIELD_MANAGER;
use super::node::NodeObject;
use super::queue::Urgency;
use super::reconcile::Reconciler;
use super::registration::is_gone;
use crate::api::policy::EntryMode;
use crate::policy::Verdict;

/// Most results in one object; the summary counts all.
const RESULTS_MAX: usize = 100;
/// Reports asked for at a time.
const PAGE: u32 = 500;
/// Marks the objects that are ours.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "nodegate");

/// What is to be reported, by the name of the object.
pub(super) type Wanted = BTreeMap<String, Json>;

fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("openreports.io", "v1alpha1", "ClusterReport"))
}

/// What is to be reported of one node; `None` when it violates nothing.
pub(super) fn of_node(node: &NodeObject, verdict: &Verdict) -> Option<(String, Json)> {
    let empty = verdict.violations.is_empty() && verdict.unknown.is_empty();
    (!empty).then(|| (name_of(node.name(), node.uid()), report(node.name(), node.uid(), verdict)))
}

/// The name of a node's report. Both may have 253 characters; where the node's name does not fit, its uid stands for it.
fn name_of(node: &str, uid: &str) -> String {
    let name = format!("nodegate-{node}");
    if name.len() <= 253 { name } else { format!("nodegate-{uid}") }
}

fn report(node: &str, uid: &str, verdict: &Verdict) -> Json {
    let failed = verdict.violations.iter().map(|violation| {
        let (result, severity) = match violation.mode {
            EntryMode::Enforce => ("fail", "high"),
            EntryMode::Warn => ("warn", "medium"),
            EntryMode::Audit => ("warn", "low"),
        };
        json!({
            "source": "nodegate", "policy": &*violation.by.policy, "rule": &*violation.by.rule, "result": result,
            "severity": severity, "message": violation.what, "scored": true,
            "properties": {"mode": mode(violation.mode)},
        })
    });
    let unknown = verdict.unknown.iter().map(|(by, reason)| {
        json!({
            "source": "nodegate", "policy": &*by.policy, "rule": &*by.rule, "result": "error", "severity": "info",
            "message": reason, "scored": false,
        })
    });
    let results: Vec<Json> = failed.chain(unknown).collect();
    let count = |of: &str| results.iter().filter(|result| result["result"] == of).count();
    let summary = json!({"pass": 0, "fail": count("fail"), "warn": count("warn"), "error": count("error"), "skip": 0});
    let told: Vec<&Json> = results.iter().take(RESULTS_MAX).collect();
    json!({
        "source": "nodegate",
        "scope": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid},
        "summary": summary,
        "results": told,
    })
}

pub(super) fn mode(mode: EntryMode) -> &'static str {
    match mode {
        EntryMode::Enforce => "enforce",
        EntryMode::Warn => "warn",
        EntryMode::Audit => "audit",
    }
}

/// Makes the reports of the cluster what they should be.
///
/// # Errors
/// If they could not be read (the definition is missing, say), or one could not be written; the next look tries again.
pub(super) async fn keep(client: &Client, mut wanted: Wanted, reconciler: &Reconciler) -> Result<(), kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource());
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let selector = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    let mut page = ListParams::default().labels(&selector).limit(PAGE);
    // One that is refused must not keep the others from being written.
    let mut first = Ok(());
    loop {
        let listed = api.list(&page).await?;
        for there in listed.items {
            let name = there.name_any();
            match wanted.remove(&name) {
                Some(report) if is_same(&there.data, &report) => {}
                Some(report) => {
                    reconciler.turn(Urgency::Routine).await;
                    first = first.and(api.patch(&name, &parameters, &Patch::Merge(&report)).await.map(drop));
                }
                None => {
                    reconciler.turn(Urgency::Routine).await;
                    let gone = api.delete(&name, &DeleteParams::default()).await.map(drop);
                    first = first.and(gone.or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) }));
                }
            }
        }
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    let creator = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    for (name, data) in wanted {
        let mut report = DynamicObject::new(&name, &resource()).data(data);
        report.labels_mut().insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
        reconciler.turn(Urgency::Routine).await;
        first = first.and(api.create(&creator, &report).await.map(drop));
    }
    first
}

fn is_same(there: &Json, wanted: &Json) -> bool {
    ["source", "scope", "summary", "results"].into_iter().all(|field| there[field] == wanted[field])
}
