//! The phases of a migration on a stored node.

use serde_json::{Value as Json, json};

use super::scene::{Scene, set};
use crate::PolicySet;

fn phase(phase: &str) -> PolicySet {
    set(json!({"migrations": [{"from": "old", "to": "new", "phase": phase}]}))
}

fn labels(scene: &Scene) -> Json {
    scene.node["metadata"]["labels"].clone()
}

fn owned(scene: &Scene) -> Json {
    json!(scene.saved.owned.as_ref().map(|owned| owned.labels.clone()).unwrap_or_default())
}

impl Scene {
    /// The same node after others wrote these labels.
    fn relabeled(mut self, labels: Json) -> Self {
        self.node["metadata"]["labels"] = labels;
        self
    }
}

#[test]
fn in_dual_write_the_new_key_is_an_owned_copy_that_follows_the_old_one_and_goes_with_it() {
    let dual = phase("dualWrite");
    let scene = Scene::new(json!({"old": "a"})).claimed(&["old"]).settle(&dual);
    assert_eq!((labels(&scene), owned(&scene)), (json!({"old": "a", "new": "a"}), json!({"new": "a"})));
    let scene = scene.relabeled(json!({"old": "b", "new": "a"})).settle(&dual);
    assert_eq!((labels(&scene), owned(&scene)), (json!({"old": "b", "new": "b"}), json!({"new": "b"})));
    let scene = scene.relabeled(json!({"old": "b", "new": "c"})).settle(&dual);
    assert_eq!((labels(&scene), owned(&scene)), (json!({"old": "b", "new": "b"}), json!({"new": "b"})));
    let scene = scene.relabeled(json!({"new": "b"})).settle(&dual);
    assert_eq!((labels(&scene), owned(&scene)), (json!({}), json!({})));
}

#[test]
fn in_dual_write_a_node_with_the_new_key_only_gets_the_old_one_as_a_copy() {
    let dual = phase("dualWrite");
    let written = Scene::new(json!({"new": "a"})).claimed(&["new"]).settle(&dual);
    let admitted = Scene::new(json!({"old": "a", "new": "a"})).claimed(&["new"]).settle(&dual);
    for scene in [written, admitted] {
        assert_eq!((labels(&scene), owned(&scene)), (json!({"old": "a", "new": "a"}), json!({"old": "a"})));
        let scene = scene.relabeled(json!({"old": "a", "new": "b"})).settle(&dual);
        assert_eq!((labels(&scene), owned(&scene)), (json!({"old": "b", "new": "b"}), json!({"old": "b"})));
        let scene = scene.relabeled(json!({"old": "b"})).settle(&dual);
        assert_eq!(labels(&scene), json!({}));
    }
}

#[test]
fn a_node_that_others_gave_both_keys_keeps_both() {
    let scene = Scene::new(json!({"old": "a", "new": "a"})).claimed(&["old", "new"]).settle(&phase("dualWrite"));
    assert_eq!((labels(&scene), owned(&scene)), (json!({"old": "a", "new": "a"}), json!({})));
    let scene = scene.settle(&set(json!({})));
    assert_eq!(labels(&scene), json!({"old": "a", "new": "a"}));
}

#[test]
fn deleting_a_migration_before_cutover_removes_the_copies_and_after_it_the_old_keys() {
    let nothing = set(json!({}));
    let scene = || Scene::new(json!({"old": "a"})).claimed(&["old"]).settle(&phase("dualWrite"));
    assert_eq!(labels(&scene().settle(&nothing)), json!({"old": "a"}));
    assert_eq!(labels(&scene().settle(&phase("cutover")).settle(&nothing)), json!({"new": "a"}));
    assert_eq!(labels(&scene().settle(&phase("cutover")).settle(&phase("done")).settle(&nothing)), json!({"new": "a"}));
}

#[test]
fn cutover_takes_over_the_old_key_and_gives_up_the_new_one() {
    let (dual, cut) = (phase("dualWrite"), phase("cutover"));
    let scene = Scene::new(json!({"old": "a"})).claimed(&["old"]).settle(&dual).settle(&cut);
    assert_eq!((labels(&scene), owned(&scene)), (json!({"old": "a", "new": "a"}), json!({"old": "a"})));
    let scene = scene.relabeled(json!({"old": "a", "new": "b"})).settle(&cut);
    assert_eq!((labels(&scene), owned(&scene)), (json!({"old": "b", "new": "b"}), json!({"old": "b"})));
    let scene = scene.relabeled(json!({"old": "c", "new": "b"})).settle(&cut);
    assert_eq!(labels(&scene), json!({"old": "b", "new": "b"}));
    let scene = scene.relabeled(json!({"old": "b"})).settle(&cut);
    assert_eq!(labels(&scene), json!({}));
}

#[test]
fn after_cutover_a_node_that_joins_with_the_old_key_gets_the_new_one_for_good() {
    for (name, expected) in [("cutover", json!({"old": "a", "new": "a"})), ("done", json!({"new": "a"}))] {
        // For `done`, the old key is removed once the node has the new one.
        let joined = Scene::new(json!({"old": "a"})).claimed(&["old"]);
        let written = joined.written_once(&phase(name)).settle(&phase(name));
        assert_eq!(labels(&written), expected, "{name}");
        assert!(owned(&written)["new"].is_null(), "{name}");
        assert_eq!(labels(&written.settle(&set(json!({})))), json!({"new": "a"}), "{name}");
    }
}

#[test]
fn a_rule_keeps_owning_what_it_gives_to_the_new_key() {
    let spec = |phase: &str, pool: &str| {
        let rule = json!({"name": "r", "match": {"selector": {"matchLabels": {"pool": pool}}}, "labels": {"new": "a"}});
        set(json!({"migrations": [{"from": "old", "to": "new", "phase": phase}], "rules": [rule]}))
    };
    for phase in ["dualWrite", "cutover"] {
        let scene = Scene::new(json!({"pool": "x"})).claimed(&["pool"]).settle(&spec(phase, "x"));
        assert_eq!(
            (labels(&scene), owned(&scene)["new"].clone()),
            (json!({"pool": "x", "old": "a", "new": "a"}), json!("a"))
        );
        let scene = scene.written_once(&spec(phase, "y")).settle(&spec(phase, "y"));
        assert_eq!(labels(&scene), json!({"pool": "x"}), "{phase}: the rule does not match anymore");
    }
    let scene = Scene::new(json!({"pool": "x"})).claimed(&["pool"]).settle(&spec("cutover", "x"));
    assert_eq!(labels(&scene.settle(&spec("done", "x"))), json!({"pool": "x", "new": "a"}));
}

#[test]
fn done_removes_the_old_key_whoever_set_it_but_not_before_the_node_has_the_new_one() {
    let done = phase("done");
    let both = Scene::new(json!({"old": "z", "new": "a"})).claimed(&["old", "new"]);
    both.keep(&done, |plan| {
        assert_eq!(
            plan.removals.iter().map(|one| (one.key.as_str(), one.after.as_secs())).collect::<Vec<_>>(),
            [("old", 0)]
        );
        assert_eq!(plan.change(|_| false, |_, _| false), None, "nothing is removed without approval");
    });
    assert_eq!(labels(&both.settle(&done)), json!({"new": "a"}));
    Scene::new(json!({"old": "a"})).claimed(&["old"]).keep(&done, |plan| assert!(plan.removals.is_empty()));
}

#[test]
fn a_publisher_that_restarts_leaves_the_copies_of_its_labels() {
    let dual =
        set(json!({"migrations": [{"from": "feature.node.kubernetes.io/x", "to": "new", "phase": "dualWrite"}]}));
    let scene = Scene::new(json!({"feature.node.kubernetes.io/x": "a"})).claimed(&["feature.node.kubernetes.io/x"]);
    let scene = scene.settle(&dual).relabeled(json!({"new": "a"}));
    scene.keep(&dual, |plan| assert!(plan.removals.is_empty(), "{:?}", plan.removals));
}

#[test]
fn going_back_to_dual_write_gives_the_old_key_back_to_whoever_set_it() {
    let (dual, cut, nothing) = (phase("dualWrite"), phase("cutover"), set(json!({})));
    let moved = || Scene::new(json!({"old": "a"})).claimed(&["old"]).settle(&dual).settle(&cut);
    let back = moved().settle(&dual);
    assert_eq!((labels(&back), owned(&back)), (json!({"old": "a", "new": "a"}), json!({"new": "a"})));
    assert_eq!(labels(&back.settle(&nothing)), json!({"old": "a"}));
    // The controller wrote the new key, which is a claim as well.
    let back = moved().claimed_by("nodegate", &["new"]).settle(&dual);
    assert_eq!(labels(&back.settle(&nothing)), json!({"old": "a"}));
    // Others wrote it since.
    let back = moved().relabeled(json!({"old": "b", "new": "b"})).claimed(&["new"]).settle(&cut).settle(&dual);
    assert_eq!((labels(&back), owned(&back)), (json!({"old": "b", "new": "b"}), json!({})));
    // The old key counts at once, also for admission.
    let back = moved().relabeled(json!({"old": "a", "new": "c"})).settle(&dual);
    assert_eq!(labels(&back), json!({"old": "a", "new": "a"}));
    // An old key that nodegate itself set is not given back, and forth and back is the same as once.
    let copied = || Scene::new(json!({"new": "a"})).claimed(&["new"]);
    for scene in [copied().settle(&dual).settle(&cut).settle(&dual), copied().settle(&cut).settle(&dual)] {
        assert_eq!(labels(&scene.settle(&nothing)), json!({"new": "a"}));
    }
    assert_eq!(labels(&moved().settle(&dual).settle(&cut).settle(&dual).settle(&nothing)), json!({"old": "a"}));
    assert_eq!(labels(&moved().settle(&dual).settle(&cut).settle(&nothing)), json!({"new": "a"}));
}

#[test]
fn an_old_key_that_had_another_value_at_cutover_is_given_back_as_well() {
    let scene = Scene::new(json!({"old": "z", "new": "a"})).claimed(&["old", "new"]).settle(&phase("cutover"));
    assert_eq!((labels(&scene), owned(&scene)), (json!({"old": "a", "new": "a"}), json!({"old": "a"})));
    let scene = scene.settle(&phase("dualWrite")).settle(&set(json!({})));
    assert_eq!(labels(&scene), json!({"old": "a", "new": "a"}));
}

#[test]
fn a_copy_stays_while_the_rule_that_gives_its_source_is_unknown() {
    let feature = "feature.node.kubernetes.io/x";
    for given in ["old", "new"] {
        let rule = json!({"name": "r", "match": {"selector": {"matchLabels": {feature: "1"}}}, "labels": {given: "a"}});
        let dual = set(json!({"migrations": [{"from": "old", "to": "new", "phase": "dualWrite"}], "rules": [rule]}));
        let scene = Scene::new(json!({feature: "1"})).claimed(&[feature]).settle(&dual);
        assert_eq!(labels(&scene), json!({feature: "1", "old": "a", "new": "a"}));
        let scene = scene.relabeled(json!({"old": "a", "new": "a"}));
        scene.keep(&dual, |plan| assert!(plan.removals.is_empty(), "{given}: {:?}", plan.removals));
        // Once the rule is known not to match, both go.
        let other = format!("{}y", feature.trim_end_matches('x'));
        let scene = scene.relabeled(json!({"old": "a", "new": "a", (other.as_str()): "1"})).settle(&dual);
        assert_eq!(labels(&scene), json!({(other.as_str()): "1"}), "{given}");
    }
}

#[test]
fn who_writes_one_key_and_drops_the_other_keeps_the_label() {
    let dual = phase("dualWrite");
    for (from, to) in [("old", "new"), ("new", "old")] {
        for value in ["a", "b"] {
            let scene = Scene::new(json!({from: "a"})).claimed(&[from]).settle(&dual);
            let moved = scene.relabeled(json!({to: value})).claimed(&[to]).settle(&dual);
            assert_eq!((labels(&moved), owned(&moved)), (json!({from: value, to: value}), json!({from: value})));
            assert_eq!(labels(&moved.settle(&set(json!({})))), json!({to: value}), "{to}={value}");
        }
    }
    // The webhook has written the other key in the same write.
    let scene = Scene::new(json!({"old": "a"})).claimed(&["old"]).settle(&dual);
    let moved = scene.relabeled(json!({"old": "b", "new": "b"})).claimed(&["new"]).settle(&dual);
    assert_eq!(owned(&moved), json!({"old": "b"}));
}

#[test]
fn the_controllers_own_claim_and_one_that_a_kubelet_may_forge_keep_no_copy() {
    let spec = |protect: Json| {
        let migration = json!({"from": "old", "to": "new", "phase": "dualWrite"});
        set(json!({"migrations": [migration], "protect": {"keys": protect}}))
    };
    for (dual, manager) in [(spec(json!([])), "nodegate"), (spec(json!(["old", "new"])), "anyone")] {
        let scene = Scene::new(json!({"old": "a"})).claimed(&["old"]).settle(&dual);
        let scene = scene.relabeled(json!({"new": "a"})).claimed_by(manager, &["new"]).settle(&dual);
        assert_eq!(labels(&scene), json!({}), "{manager}");
    }
}

#[test]
fn an_old_key_that_another_webhook_set_is_no_copy() {
    let (dual, nothing) = (phase("dualWrite"), set(json!({})));
    let both = || Scene::new(json!({"old": "a", "new": "a"})).claimed(&["new"]);
    // It was there before nodegate, or before the migration.
    let early = Scene { registered: false, ..both() };
    for scene in [early.settle(&dual), both().settle(&nothing).settle(&dual)] {
        let scene = scene.settle(&dual);
        assert_eq!(owned(&scene), json!({}));
        assert_eq!(labels(&scene.settle(&nothing)), json!({"old": "a", "new": "a"}));
    }
}

#[test]
fn a_persist_section_that_names_one_key_saves_the_key_that_counts() {
    for named in ["old", "new"] {
        let spec = |phase: &str| {
            let migration = json!({"from": "old", "to": "new", "phase": phase});
            set(json!({"migrations": [migration], "persist": {"labels": [named]}}))
        };
        let scene = || Scene::new(json!({"old": "a"})).claimed(&["old"]).settle(&spec("dualWrite"));
        assert_eq!(json!(scene().saved.labels), json!({"old": "a"}), "{named}");
        for phase in ["cutover", "done"] {
            let scene = scene().settle(&spec("cutover")).settle(&spec(phase));
            assert_eq!(json!(scene.saved.labels), json!({"new": "a"}), "{named} {phase}");
            let again = Scene::new(json!({})).saved(json!(scene.saved.labels)).settle(&spec(phase));
            assert_eq!(labels(&again), labels(&scene), "{named} {phase}");
        }
    }
}
