//! What a stored node gets of its pool's memory, and what it says for it.

use serde_json::{Value as Json, json};

use super::scene::{Scene, set};
use crate::{PolicySet, PoolMemory};

/// A pool that the names of its nodes prove.
fn policy() -> PolicySet {
    set(json!({
        "pools": [{"name": "p", "names": ["n*"]}, {"name": "q", "names": ["n*"]}, {"name": "r", "names": ["other"]}],
        "persist": {"labels": ["team", "rack", "tier", "topology.kubernetes.io/*"], "scope": "pool"},
        "rules": [{"name": "tier", "labels": {"tier": "gold"}}],
    }))
}

fn memory(labels: Json) -> PoolMemory {
    serde_json::from_value(json!({"pools": {"p": {"labels": labels}, "r": {"labels": {"rack": "of-another"}}}}))
        .unwrap()
}

fn scene(labels: Json) -> Scene {
    let mut scene = Scene::new(labels);
    scene.pools = memory(json!({"team": "ml"}));
    scene
}

#[test]
fn a_node_that_joined_without_admission_gets_what_its_pool_remembers_once() {
    let settled = scene(json!({})).settle(&policy());
    assert_eq!((settled.label("team"), settled.label("rack")), (Some("ml"), None));
    // Whoever removes it afterwards means it.
    let mut later = settled;
    later.node["metadata"]["labels"].as_object_mut().unwrap().remove("team");
    assert_eq!(later.settle(&policy()).label("team"), None);
}

#[test]
fn what_others_have_set_on_a_joining_node_by_now_stays_unless_its_kubelet_says_it() {
    let person = scene(json!({"team": "web"})).claimed_by("kubectl-label", &["team"]);
    assert_eq!(person.settle(&policy()).label("team"), Some("web"));
    let kubelet = scene(json!({"team": "web"})).claimed_by("kubelet", &["team"]);
    assert_eq!(kubelet.settle(&policy()).label("team"), Some("ml"));
    let admission = scene(json!({"team": "ml"}));
    assert_eq!(admission.settle(&policy()).label("team"), Some("ml"));
}

#[test]
fn a_node_whose_machine_is_not_identified_yet_gets_nothing_of_it() {
    let mut unidentified = scene(json!({}));
    unidentified.identified = false;
    unidentified.keep(&policy(), |plan| {
        let change = plan.change(|_| true, |_, _| false).unwrap();
        assert!(!change.labels().contains_key("team"), "{change:?}");
    });
}

#[test]
fn a_recorded_node_says_for_its_pools_what_people_and_nodegate_have_set() {
    let labels = json!({"team": "ml", "rack": "a", "tier": "gold", "other": "x", "topology.kubernetes.io/zone": "z"});
    let joined = scene(labels).claimed_by("kubelet", &["rack"]);
    joined.keep(&policy(), |plan| assert_eq!(plan.share, None, "it is not recorded yet"));
    joined.settle(&policy()).keep(&policy(), |plan| {
        let share = plan.share.unwrap();
        assert_eq!(share.pools, ["p", "q"]);
        let said: Vec<_> = share.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(said, ["team=ml"], "not what its kubelet says, what a rule keeps, or where the machine stands");
    });
    // A kubelet that sends a label that it may not set has the claim on it, and nothing else.
    let protected = set(json!({
        "pools": [{"name": "p", "names": ["n*"]}],
        "persist": {"labels": ["team"], "scope": "pool"},
        "protect": {"keys": ["team"]},
    }));
    let sent = scene(json!({"team": "ml"})).claimed_by("kubelet", &["team"]).settle(&protected);
    sent.keep(&protected, |plan| assert_eq!(plan.share.unwrap().labels["team"], "ml"));
    // What is kept for pools is not kept for the name.
    let settled = scene(json!({"team": "ml"})).settle(&policy());
    assert!(settled.saved.labels.is_empty(), "{:?}", settled.saved);
}

#[test]
fn a_node_says_nothing_where_it_is_not_known_which_sections_match_it_or_none_does() {
    let matching = |matches: Json| {
        set(json!({
            "pools": [{"name": "p", "names": ["n*"]}],
            "persist": {"match": matches, "labels": ["team"], "scope": "pool"},
        }))
    };
    let share = |matches: Json| {
        let policy = matching(matches);
        scene(json!({"team": "ml"})).settle(&policy).keep(&policy, |plan| plan.share)
    };
    assert!(share(json!({"pools": ["p"]})).is_some());
    assert_eq!(share(json!({"names": ["other"]})), None);
    assert_eq!(share(json!({"capacity": {"cpu": ">=4"}})), None, "its capacity is not reported");
}
