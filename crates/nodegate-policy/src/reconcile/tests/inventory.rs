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
