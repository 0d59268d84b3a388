//! What a node lacks, and why.

use serde_json::json;

use super::{explained, living, missing, subject};
use crate::explain::{MissingBecause, Subject, explain};
use crate::keys::Field;
use crate::reconcile::tests::scene::set;

#[test]
fn a_taint_is_missing_although_the_node_has_another_of_its_effect_or_of_its_key() {
    let unknown = json!({"expression": "node.metadata.labels['x'] == 'y'"});
    let taints = json!([{"key": "gpu", "effect": "NoSchedule"}, {"key": "there", "effect": "NoSchedule"}]);
    let policy = set(json!({"rules": [{"name": "r", "match": unknown, "taints": taints}]}));
    let taints = json!([{"key": "gpu", "effect": "NoExecute"}, {"key": "there", "effect": "NoSchedule"}]);
    let missing = missing(&living(json!({})).tainted(taints), &policy, None);
    assert!(missing.len() == 1 && missing[0].starts_with("gpu unknown "), "{missing:?}");
}

#[test]
fn what_is_missing_says_why() {
    let policy = set(json!({"rules": [
        {"name": "gold", "priority": 1, "labels": {"tier": "gold"}},
        {"name": "tin", "labels": {"tier": "tin"}},
        {"name": "big", "trustKubelet": true, "match": {"capacity": {"nvidia.com/gpu": ">=8"}}, "labels": {"size": "big"}},
        {"name": "evicting", "taints": [{"key": "dedicated", "effect": "NoExecute"}]},
        {"name": "map", "labelMap": {"keys": ["team/*"], "expression": "{'other': node.metadata.name}"}},
        {"name": "once", "mode": "default", "labels": {"once": "x"}},
    ]}));
    let mut scene = living(json!({}));
    scene.node["status"]["conditions"] = json!([]);
    let expected = [
        "other invalid the key is not listed in labelMap.keys",
        "size unknown capacity nvidia.com/gpu >=8: capacity nvidia.com/gpu is absent; the node is starting, so devices may still appear",
        "tier deferred the controller sets it with its next write",
        "tier conflict rule p/gold takes precedence",
        "dedicated withheld NoExecute would evict pods of an existing node, and the rule does not set evict: true",
    ];
    assert_eq!(missing(&scene, &policy, None), expected);
    let pending = scene.tainted(json!([{"key": "readiness.k8s.io/nodegate", "effect": "NoSchedule"}]));
    assert_eq!(
        missing(&pending, &policy, Some("tier"))[0],
        "tier pending the controller sets it and then removes the pending taint readiness.k8s.io/nodegate:NoSchedule"
    );
    let left_alone = [(Field::Label, "tier".to_owned())];
    let fought = pending
        .with_stored(|stored| explain(&policy, &Subject { left_alone: &left_alone, ..subject(stored) }, Some("tier")));
    assert_eq!(fought.missing[0].why, MissingBecause::Fight);
    let changed = explained(&living(json!({"tier": "lead"})).claimed(&["tier"]), &policy, Some("tier"));
    assert_eq!((changed.missing.len(), changed.missing[0].has.as_deref()), (1, Some("lead")), "{changed:?}");
}

#[test]
fn for_a_key_the_rules_that_do_not_match_are_listed_too() {
    let policy = set(json!({"rules": [
        {"name": "named", "match": {"names": ["gpu-*"], "selector": {"matchLabels": {"zone": "a"}}}, "labels": {"tier": "gold"}},
        {"name": "once", "mode": "default", "labels": {"once": "x"}},
        {"name": "map", "match": {"names": ["x"]}, "labelMap": {"keys": ["team/*"], "expression": "{'team/a': 'b'}"}},
    ]}));
    let scene = living(json!({"zone": "b"}));
    assert_eq!(missing(&scene, &policy, None), Vec::<String>::new());
    assert_eq!(
        missing(&scene, &policy, Some("tier")),
        ["tier false names [gpu-*]: the node is named n1; label zone In [a]: label zone=b"]
    );
    assert_eq!(missing(&scene, &policy, Some("once")), ["once joined it is assigned only when a node joins"]);
    assert_eq!(missing(&scene, &policy, Some("team/a")), ["team/* false names [x]: the node is named n1"]);
    assert_eq!(missing(&scene, &policy, Some("tie")), Vec::<String>::new());
}
