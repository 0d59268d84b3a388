//! What inventories give a stored node.

use serde_json::json;

use super::owned_labels;
use super::scene::{Scene, set};
use crate::{InventoryAnswers, PolicySet};

fn cmdb() -> PolicySet {
    let cmdb = json!({"name": "cmdb", "url": "https://x.example/{node}", "allow": ["rack/*", "role"], "require": true});
    set(json!({"inventory": [cmdb]}))
}

#[test]
fn labels_of_an_inventory_are_owned_and_follow_its_answers() {
    let scene = Scene::new(json!({})).answered(json!({"rack/row": "7", "role": "x"})).settle(&cmdb());
    assert_eq!((scene.label("rack/row"), owned_labels(&scene)), (Some("7"), vec!["rack/row", "role"]));
    let scene = scene.answered(json!({"rack/row": "8", "secret": "y"}));
    scene.keep(&cmdb(), |plan| {
        let gone: Vec<(&str, u64)> =
            plan.removals.iter().map(|removal| (removal.key.as_str(), removal.after.as_secs())).collect();
        assert_eq!(gone, [("role", 60)], "an answer without a key is an answer");
    });
    let scene = scene.settle(&cmdb());
    assert_eq!((scene.label("rack/row"), scene.label("role"), scene.label("secret")), (Some("8"), None, None));
    let repaired = Scene { node: Scene::new(json!({"rack/row": "9"})).node, ..scene }.settle(&cmdb());
    assert_eq!(repaired.label("rack/row"), Some("8"));
}

#[test]
fn without_an_answer_nothing_is_added_or_removed_and_the_node_stays_pending() {
    let scene = Scene::new(json!({})).answered(json!({"rack/row": "7"})).settle(&cmdb());
    let unanswered = Scene { inventory: InventoryAnswers::default(), ..scene };
    let pending = json!([{"key": "nodegate.dev/pending", "effect": "NoSchedule"}]);
    let unanswered = unanswered.tainted(pending);
    unanswered.keep(&cmdb(), |plan| {
        assert_eq!((plan.removals.len(), plan.awaits_inventory, plan.lifts_pending), (0, true, false));
        assert_eq!(plan.change(|_| true, |_, _| false), None);
    });
    assert_eq!(owned_labels(&unanswered), ["rack/row"]);
    unanswered.answered(json!({})).keep(&cmdb(), |plan| {
        assert_eq!((plan.removals.len(), plan.awaits_inventory, plan.lifts_pending), (1, false, true));
    });
}

/// Rules that read the labels of an inventory by presence, absence and value, in selectors and in expressions.
fn readers(inventory: &str) -> PolicySet {
    let selector = |key, operator, values: serde_json::Value| json!({"selector": {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}});
    let taint = |key| json!([{"key": key, "effect": "NoSchedule"}]);
    let (no_row, has_row) =
        (selector("rack/row", "DoesNotExist", json!([])), selector("rack/row", "Exists", json!([])));
    let (ml, other) = (selector("role", "In", json!(["ml"])), selector("role", "NotIn", json!(["ml"])));
    set(json!({
        "inventory": [{"name": inventory, "url": "https://x.example/{node}", "allow": ["rack/*", "role"]}],
        "rules": [
            {"name": "unracked", "match": no_row, "taints": taint("unracked")},
            {"name": "racked", "match": has_row, "labels": {"racked": "yes"}},
            {"name": "dedicated", "match": ml, "taints": taint("dedicated")},
            {"name": "shared", "match": other, "labels": {"shared": "yes"}},
            {"name": "no-unit", "match": {"expression": "!('rack/unit' in node.metadata.labels)"}, "labels": {"no-unit": "yes"}},
            {"name": "unit", "match": {"expression": "has(node.metadata.labels.role)"}, "labelExpressions": {"unit": "node.metadata.labels['rack/unit']"}},
        ],
    }))
}

fn taints(scene: &Scene) -> Vec<String> {
    let keys = scene.node["spec"]["taints"].as_array().into_iter().flatten();
    keys.map(|taint| taint["key"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn rules_that_read_the_last_answer_go_on_when_no_answer_is_known() {
    let full = json!({"rack/row": "7", "rack/unit": "3", "role": "ml"});
    let scene = Scene::new(json!({})).answered(full).settle(&readers("cmdb"));
    let owned = ["rack/row", "rack/unit", "racked", "role", "unit"];
    assert_eq!((owned_labels(&scene), taints(&scene)), (owned.to_vec(), vec!["dedicated".to_owned()]));
    // The inventory has another name, or its answers are lost.
    let scene = Scene { inventory: InventoryAnswers::default(), ..scene };
    let before = scene.node.clone();
    scene.keep(&readers("renamed"), |plan| {
        assert_eq!((plan.change(|_| true, |_, _| false), plan.removals), (None, Vec::new()));
    });
    let scene = scene.settle(&readers("renamed"));
    assert_eq!((&scene.node, owned_labels(&scene)), (&before, owned.to_vec()));
    // What follows from the labels is still kept.
    let scene = Scene { node: before, ..scene }.tainted(json!([])).settle(&readers("renamed"));
    assert_eq!(taints(&scene), ["dedicated"]);
    // An answer without labels is an answer.
    let scene = scene.answered(json!({})).settle(&readers("cmdb")).settle(&readers("cmdb"));
    assert_eq!((owned_labels(&scene), taints(&scene)), (vec!["no-unit", "shared"], vec!["unracked".to_owned()]));
}

#[test]
fn a_label_that_an_inventory_may_still_give_is_neither_there_nor_absent() {
    let scene = Scene::new(json!({})).settle(&readers("cmdb"));
    assert_eq!((owned_labels(&scene), taints(&scene)), (Vec::<&str>::new(), Vec::new()));
    // Absence that was known, and what follows from it, stays as it was.
    let scene = scene.answered(json!({})).settle(&readers("cmdb"));
    assert_eq!((owned_labels(&scene), taints(&scene)), (vec!["no-unit", "shared"], vec!["unracked".to_owned()]));
    let scene = Scene { inventory: InventoryAnswers::default(), ..scene };
    scene.keep(&readers("renamed"), |plan| {
        assert_eq!((plan.change(|_| true, |_, _| false), plan.removals), (None, Vec::new()));
    });
}

#[test]
fn a_copy_of_a_migration_goes_with_neither_key_while_no_answer_is_known() {
    let policy = |inventory: &str| {
        set(json!({
            "inventory": [{"name": inventory, "url": "https://x.example/{node}", "allow": ["rack/*", "place/*"]}],
            "migrations": [{"from": "rack/row", "to": "place/row", "phase": "dualWrite"}],
        }))
    };
    let scene = Scene::new(json!({})).answered(json!({"rack/row": "7"})).settle(&policy("cmdb"));
    let both = ["place/row", "rack/row"];
    assert_eq!(owned_labels(&scene), both);
    let scene = Scene { inventory: InventoryAnswers::default(), ..scene }.settle(&policy("renamed"));
    assert_eq!((owned_labels(&scene), scene.label("place/row")), (both.to_vec(), Some("7")));
    // The copy is not copied back.
    let mut scene = scene;
    scene.node["metadata"]["labels"].as_object_mut().unwrap().remove("rack/row");
    let scene = scene.settle(&policy("renamed"));
    assert_eq!((scene.label("rack/row"), scene.label("place/row")), (None, Some("7")));
}

/// Policies with an inventory at this URL that may give these keys.
fn asking(url: &str, allow: &serde_json::Value) -> PolicySet {
    let unracked = json!({"selector": {"matchExpressions": [{"key": "rack/row", "operator": "DoesNotExist"}]}});
    set(json!({
        "inventory": [{"name": "cmdb", "url": url, "allow": allow, "require": true}],
        "rules": [{"name": "unracked", "match": unracked, "taints": [{"key": "unracked", "effect": "NoSchedule"}]}],
    }))
}

#[test]
fn an_answer_to_another_question_says_nothing_about_what_it_lacks() {
    let (old, new) = ("https://old.example/{node}", "https://new.example/{node}");
    let before = asking(old, &json!(["role"]));
    let answered = |scene: Scene, policy: &PolicySet, labels: serde_json::Value| {
        let inventory = policy.inventories().next().unwrap();
        let (labels, _) = inventory.accept(serde_json::from_value(labels).unwrap());
        Scene { inventory: scene.inventory.with(&inventory.id, Some(std::sync::Arc::new(labels))), ..scene }
    };
    let pending = json!([{"key": "nodegate.dev/pending", "effect": "NoSchedule"}]);
    let scene = Scene::new(json!({})).tainted(pending);
    let scene = answered(scene, &before, json!({"role": "x"}));
    scene.keep(&before, |plan| assert!(plan.lifts_pending, "that is the answer to what is asked"));
    // The same keys in another order are the same question.
    let ordered = asking(old, &json!(["rack/*", "role"]));
    let scene = answered(scene, &ordered, json!({"role": "x"}));
    scene.keep(&asking(old, &json!(["role", "rack/*"])), |plan| assert!(plan.lifts_pending));
    let scene = answered(scene, &before, json!({"role": "x"}));
    for policy in [asking(old, &json!(["role", "rack/*"])), asking(new, &json!(["role", "rack/*"]))] {
        scene.keep(&policy, |plan| {
            assert_eq!((plan.awaits_inventory, plan.lifts_pending), (true, false));
            let labels: Vec<&str> = plan.decision.labels.keys().map(String::as_str).collect();
            assert_eq!((labels, plan.decision.taints.len()), (vec!["role"], 0), "the last answer stays in force");
        });
    }
    let wider = asking(new, &json!(["role", "rack/*"]));
    let scene = answered(scene, &wider, json!({"role": "x"}));
    scene.keep(&wider, |plan| assert_eq!((plan.lifts_pending, plan.decision.taints.len()), (true, 1)));
}

#[test]
fn an_answer_to_another_question_removes_nothing() {
    let (old, new) = ("https://old.example/{node}", "https://new.example/{node}");
    let both = json!(["role", "rack/*"]);
    let scene = Scene::new(json!({})).answered(json!({"role": "x", "rack/row": "7"})).settle(&asking(old, &both));
    assert_eq!(owned_labels(&scene), ["rack/row", "role"]);
    // The old service forgets the row, and the policy names the new service before the removal is due.
    let (labels, _) = asking(old, &both).inventories().next().unwrap().accept([("role".into(), "x".into())].into());
    let inventory = scene.inventory.with(&"p/cmdb".into(), Some(std::sync::Arc::new(labels)));
    let scene = Scene { inventory, ..scene };
    scene.keep(&asking(old, &both), |plan| assert_eq!(plan.removals.len(), 1));
    scene.keep(&asking(new, &both), |plan| assert_eq!((plan.removals.len(), plan.decision.taints.len()), (0, 0)));
}
