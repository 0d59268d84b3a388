//! What is recorded of the evidence for pools, and what it counts for.

use std::sync::Arc;

use serde_json::{Value, json};

use super::scene::{BEFORE, Scene, set};
use crate::PolicySet;
use crate::facts::NodeFacts;
use crate::facts::bootstrap::{Bootstrapper, CREDENTIAL_ID, credential_id};
use crate::facts::evidence::{AUTHENTICATED_AS, Evidence};
use crate::facts::pending_taints::PendingTaints;

const OF_GPU: &str = "group=pool:gpu\nuser=system:node:n1";

fn policy() -> PolicySet {
    set(json!({
        "pools": [{"name": "gpu", "requester": {"groups": ["pool:gpu"]}}],
        "rules": [{"name": "r", "match": {"pools": ["gpu"]}, "labels": {"node-role.kubernetes.io/gpu": ""}}],
    }))
}

/// A node that says this of its kubelet. `guarded`: the API server has checked it.
fn scene(asserted: &'static str, guarded: bool) -> Scene {
    let mut scene = Scene::new(json!({}));
    scene.node["metadata"]["annotations"] = json!({AUTHENTICATED_AS: asserted});
    looked_at(scene, guarded)
}

fn looked_at(mut scene: Scene, guarded: bool) -> Scene {
    let text = scene.node.to_string();
    scene.evidence = Evidence::of_stored(&NodeFacts::parse(&text).unwrap(), &scene.saved, guarded);
    scene
}

#[test]
fn evidence_that_the_api_server_checked_is_recorded_and_counts_from_then_on() {
    let settled = scene(OF_GPU, true).settle(&policy());
    assert_eq!(settled.label("node-role.kubernetes.io/gpu"), Some(""));
    assert_eq!(settled.saved.authenticated_as.as_deref(), Some(OF_GPU));
    // Without the guard, with another text on the node and with other policies it stays.
    let mut later = settled;
    later.node["metadata"]["annotations"] = json!({AUTHENTICATED_AS: "user=system:node:n1"});
    let later = looked_at(later, false).settle(&set(json!({"rules": []})));
    assert_eq!(later.saved.authenticated_as.as_deref(), Some(OF_GPU));
    let again = looked_at(later, false).settle(&policy());
    assert_eq!(again.label("node-role.kubernetes.io/gpu"), Some(""));
}

#[test]
fn what_nobody_checked_is_unknown_so_nothing_is_added_and_nothing_is_removed() {
    for (asserted, guarded) in
        [(OF_GPU, false), ("group=pool:gpu\nuser=system:node:other", true), ("group=pool:gpu", true)]
    {
        let settled = scene(asserted, guarded).settle(&policy());
        assert_eq!(settled.label("node-role.kubernetes.io/gpu"), None, "{asserted}");
        assert_eq!(settled.saved.authenticated_as, None, "{asserted}");
    }
    let owning = json!({"labels": {"node-role.kubernetes.io/gpu": ""}});
    let owned = Scene::new(json!({"node-role.kubernetes.io/gpu": ""})).owning(owning).settle(&policy());
    assert_eq!(owned.label("node-role.kubernetes.io/gpu"), Some(""));
    assert!(owned.saved.owned.is_some());
}

#[test]
fn a_node_that_is_created_again_proves_its_pool_anew() {
    let mut created_again = scene(OF_GPU, true).settle(&policy());
    assert_eq!(created_again.saved.node_uid.as_deref(), Some(BEFORE));
    created_again.node["metadata"]["uid"] = json!("another");
    created_again.node["metadata"]["labels"] = json!({});
    created_again.node["metadata"]["annotations"] = json!({AUTHENTICATED_AS: "group=pool:cpu\nuser=system:node:n1"});
    let settled = looked_at(created_again, true).settle(&policy());
    assert_eq!(settled.label("node-role.kubernetes.io/gpu"), None);
    assert_eq!(settled.saved.authenticated_as.as_deref(), Some("group=pool:cpu\nuser=system:node:n1"));
}

#[test]
fn a_node_stays_pending_until_it_is_known_who_asked_for_its_kubelets_certificate_or_is_no_longer_awaited() {
    let policy = set(json!({
        "pools": [{"name": "gpu", "bootstrap": {"tokens": ["abcdef"]}}],
        "rules": [{"name": "r", "match": {"pools": ["gpu"]}, "labels": {"node-role.kubernetes.io/gpu": ""}}],
    }));
    let certificate = credential_id(&"0".repeat(64));
    let text = format!("extra.{CREDENTIAL_ID}={certificate}\nuser=system:node:n1");
    let found = |known: Option<&str>| {
        let known = known.map(|user| Arc::new(Bootstrapper::new(user, []).unwrap()));
        let mut scene = Scene::new(json!({}));
        scene.node["metadata"]["annotations"] = json!({AUTHENTICATED_AS: text});
        let evidence = Evidence::of_stored(&NodeFacts::parse(&scene.node.to_string()).unwrap(), &scene.saved, true);
        evidence.map(|evidence| evidence.bootstrapped(|_| known))
    };
    let taints: Vec<Value> = PendingTaints::default()
        .all()
        .iter()
        .map(|id| json!({"key": id.key.as_str(), "effect": "NoSchedule"}))
        .collect();
    let pending = |evidence| Scene { evidence, ..Scene::new(json!({})).tainted(taints.clone().into()) };
    pending(found(None)).keep(&policy, |plan| assert_eq!((plan.awaits_bootstrap, plan.lifts_pending), (true, false)));
    for (evidence, role) in [
        (found(None).map(Evidence::not_awaited), None),
        (found(Some("system:bootstrap:fedcba")), None),
        (found(Some("system:bootstrap:abcdef")), Some("")),
        (None, None),
    ] {
        let scene = pending(evidence);
        scene.keep(&policy, |plan| assert_eq!((plan.awaits_bootstrap, plan.lifts_pending), (false, true)));
        assert_eq!(scene.settle(&policy).label("node-role.kubernetes.io/gpu"), role);
    }
}
