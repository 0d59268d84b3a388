//! Values of default rules.

use super::*;

#[test]
fn a_default_is_set_once_for_each_node_object() {
    let policy = set(json!({"rules": [{"name": "r", "mode": "default", "labels": {"tier": "standard"}}]}));
    let mut scene = Scene::new(json!({})).settle(&policy);
    assert_eq!((scene.label("tier"), owned_labels(&scene).len()), (Some("standard"), 0));
    scene.node["metadata"]["labels"] = json!({});
    assert_eq!(scene.settle(&policy).label("tier"), None, "it was removed, which is allowed");
}

#[test]
fn a_node_that_was_there_before_nodegate_gets_default_labels_but_no_default_taints() {
    let rule = json!({"name": "r", "mode": "default", "labels": {"tier": "standard"}, "taints": [{"key": "agent", "effect": "NoSchedule"}]});
    let policy = set(json!({"rules": [rule]}));
    let tainted = |scene: &Scene| scene.node["spec"]["taints"].as_array().map_or(0, Vec::len);
    let older = Scene { registered: false, ..Scene::new(json!({})) }.settle(&policy);
    assert_eq!((older.label("tier"), tainted(&older)), (Some("standard"), 0), "pods run there");
    let joined = Scene::new(json!({})).settle(&policy);
    assert_eq!((joined.label("tier"), tainted(&joined)), (Some("standard"), 1), "no replica answered when it joined");
}
