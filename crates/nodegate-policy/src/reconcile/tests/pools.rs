//! What is recorded of the evidence for pools, and what it counts for.

use serde_json::json;

use super::scene::{BEFORE, Scene, set};
use crate::PolicySet;
use crate::facts::NodeFacts;
use crate::facts::evidence::{AUTHENTICATED_AS, Evidence};

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
fn what_was_saved_of_a_node_of_one_pool_is_restored_to_no_node_of_another_and_waits_for_one_of_its_own() {
    let policy = set(json!({
        "pools": [{"name": "gpu", "requester": {"groups": ["pool:gpu"]}}, {"name": "cpu", "requester": {"groups": ["pool:cpu"]}}],
        "persist": {"labels": ["team"]},
    }));
    let create = |before: Scene, uid: &'static str, asserted: &str, guarded: bool| {
        let mut scene = before;
        scene.node["metadata"] =
            json!({"name": "n1", "uid": uid, "labels": {}, "annotations": {AUTHENTICATED_AS: asserted}});
        looked_at(scene, guarded).settle(&policy)
    };
    let label = |mut scene: Scene, team: &str| {
        scene.node["metadata"]["labels"]["team"] = json!(team);
        let text = scene.node.to_string();
        scene.evidence = Evidence::of_stored(&NodeFacts::parse(&text).unwrap(), &scene.saved, true);
        scene.settle(&policy)
    };
    let of = |pool: &str| format!("group=pool:{pool}\nuser=system:node:n1");
    let gpu = label(create(Scene::new(json!({})), "u1", &of("gpu"), true), "ml");
    assert_eq!(gpu.saved.labels["team"], "ml");
    let cpu = create(gpu, "u2", &of("cpu"), true);
    assert_eq!((cpu.label("team"), cpu.saved.labels.len()), (None, 0));
    let cpu = label(cpu, "forged");
    // Nor to one of which no pool is known, and what that one had is nobody else's.
    let unknown = label(create(cpu, "u3", "", true), "unknown");
    let gpu = create(unknown, "u4", &of("gpu"), true);
    assert_eq!(gpu.label("team"), None, "the latest of another pool is kept, and that was of pool cpu");
    let gpu = label(gpu, "ml");
    let gpu = create(create(gpu, "u5", &of("cpu"), true), "u6", &of("gpu"), true);
    assert_eq!(gpu.label("team"), Some("ml"), "a node of the other pool in between takes nothing away");
    let again = create(gpu, "u7", &of("gpu"), true);
    assert_eq!(again.label("team"), Some("ml"));
}
