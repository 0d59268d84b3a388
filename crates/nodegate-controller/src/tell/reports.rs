//! `ClusterReport` objects of openreports.io: the violations of each node, for tools that read policy reports.
//!
//! There is one object per node with violations. The leader writes it after each pass over the fleet, rate limited
//! and only if it differs. It is off by default; the CRD comes from the openreports project.

use std::collections::BTreeMap;

use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value as Json, json};

use crate::cluster::registration::is_gone;
use crate::node::NodeObject;
use crate::node::queue::Urgency;
use crate::reconcile::Reconciler;
use nodegate_base::pages::next_page;
use nodegate_policy::FIELD_MANAGER;
use nodegate_policy::Verdict;
use nodegate_policy::api::policy::EntryMode;

/// Maximum number of results in one object; the summary counts all.
const RESULTS_MAX: usize = 100;
/// Number of reports in one page.
const PAGE: u32 = 500;
/// Labels the objects that nodegate manages.
pub(crate) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "nodegate");

/// The reports to write, by object name.
pub(crate) type Wanted = BTreeMap<String, Json>;

pub(crate) fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("openreports.io", "v1alpha1", "ClusterReport"))
}

/// The report of one node; `None` if it violates nothing.
pub(crate) fn of_node(node: &NodeObject, verdict: &Verdict) -> Option<(String, Json)> {
    let empty = verdict.violations.is_empty() && verdict.unknown.is_empty();
    (!empty).then(|| (name_of(node.name(), node.uid()), report(node.name(), node.uid(), verdict)))
}

/// The name of a node's report. Names have at most 253 characters; if the node's name is too long, its uid replaces
/// it.
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
    let reported: Vec<&Json> = results.iter().take(RESULTS_MAX).collect();
    json!({
        "source": "nodegate",
        "scope": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid},
        "summary": summary,
        "results": reported,
    })
}

pub(crate) fn mode(mode: EntryMode) -> &'static str {
    match mode {
        EntryMode::Enforce => "enforce",
        EntryMode::Warn => "warn",
        EntryMode::Audit => "audit",
    }
}

/// Writes the reports that differ, and deletes those that are no longer needed.
///
/// # Errors
/// Returns an error if the reports could not be read (for example because the CRD is missing) or one could not be
/// written; the next pass retries.
pub(crate) async fn keep(client: &Client, mut wanted: Wanted, reconciler: &Reconciler) -> Result<(), kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource());
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let selector = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    let mut next = Some(ListParams::default().labels(&selector).limit(PAGE));
    // A refused write of one report must not prevent the others.
    let mut first = Ok(());
    while let Some(page) = next {
        let listed = api.list(&page).await?;
        next = next_page(page, &listed.metadata);
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
