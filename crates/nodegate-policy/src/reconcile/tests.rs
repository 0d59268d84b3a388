#![allow(clippy::unwrap_used, clippy::panic)]

mod defaults;
mod devices;
mod gates;
mod inventory;
mod migrations;
mod pool_memory;
mod pools;
mod publishers;
pub(crate) mod scene;
mod unsettled;

use serde_json::{Value as Json, json};

use super::*;
use crate::facts::managed_fields::Claims;
use crate::{Origin, PolicyDocument};
use scene::{BEFORE, Scene, set};

fn tier() -> PolicySet {
    set(
        json!({"rules": [{"name": "r", "match": {"selector": {"matchLabels": {"team": "ml"}}}, "labels": {"tier": "gold"}}]}),
    )
}

fn owned_labels(scene: &Scene) -> Vec<&str> {
    scene.saved.owned.iter().flat_map(|owned| owned.labels.keys()).collect()
}

#[test]
fn what_is_written_or_claimed_by_nobody_is_owned_and_the_rest_is_foreign() {
    let written = Scene::new(json!({"team": "ml"})).claimed(&["team"]).settle(&tier());
    assert_eq!((written.label("tier"), owned_labels(&written)), (Some("gold"), vec!["tier"]));
    let patched = Scene::new(json!({"team": "ml", "tier": "gold"})).claimed(&["team"]).settle(&tier());
    assert_eq!(owned_labels(&patched), ["tier"]);
    let foreign = Scene::new(json!({"team": "ml", "tier": "gold"})).claimed(&["team", "tier"]).settle(&tier());
    assert!(owned_labels(&foreign).is_empty());
    let adopted = Scene { adopt: true, ..Scene::new(json!({"team": "ml", "tier": "gold"})).claimed(&["team", "tier"]) };
    assert_eq!(owned_labels(&adopted.settle(&tier())), ["tier"]);
}

#[test]
fn owned_keys_are_removed_when_their_rule_is_false_and_only_if_their_value_is_unchanged() {
    let gone = Scene::new(json!({"tier": "gold"})).owning(json!({"labels": {"tier": "gold"}})).settle(&tier());
    assert_eq!((gone.label("tier"), owned_labels(&gone).len()), (None, 0));
    let changed = Scene::new(json!({"tier": "silver"})).owning(json!({"labels": {"tier": "gold"}})).settle(&tier());
    assert_eq!((changed.label("tier"), owned_labels(&changed).len()), (Some("silver"), 0));
    let foreign = Scene::new(json!({"tier": "gold"})).claimed(&["tier"]).settle(&tier());
    assert_eq!(foreign.label("tier"), Some("gold"));
}

#[test]
fn the_grace_period_is_recorded_and_applies_after_the_rule_is_deleted() {
    let policy = set(json!({"rules": [{"name": "r", "labels": {"tier": "gold"}, "removeAfter": "5m"}]}));
    let scene = Scene::new(json!({})).settle(&policy);
    assert_eq!(scene.saved.owned.as_ref().unwrap().remove_after["tier"], 300);
    scene.keep(&set(json!({})), |plan| {
        assert_eq!(plan.removals.iter().map(|removal| removal.after.as_secs()).collect::<Vec<_>>(), [300]);
        assert_eq!(plan.change(|_| false, |_, _| false), None, "not before the grace period has passed");
    });
}

#[test]
fn a_restarting_publisher_removes_nothing_and_a_single_label_that_disappears_does() {
    let policy = set(json!({"rules": [{"name": "r", "match": {"selector": {"matchExpressions":
        [{"key": "feature.node.kubernetes.io/pci-10de.present", "operator": "Exists"}]}}, "labels": {"gpu": "yes"}}]}));
    let labels =
        json!({"feature.node.kubernetes.io/pci-10de.present": "true", "feature.node.kubernetes.io/cpu-model.id": "x"});
    let mut scene = Scene::new(labels).claimed(&["feature.node.kubernetes.io/cpu-model.id"]).settle(&policy);
    assert_eq!(scene.saved.publishers, ["feature.node.kubernetes.io".into()]);
    scene.node["metadata"]["labels"] = json!({"gpu": "yes"});
    scene.keep(&policy, |plan| assert!(plan.removals.is_empty(), "NFD restarted: {:?}", plan.removals));
    scene.node["metadata"]["labels"] = json!({"gpu": "yes", "feature.node.kubernetes.io/cpu-model.id": "x"});
    scene.keep(&policy, |plan| assert_eq!(plan.removals.len(), 1, "the device is gone"));
}

#[test]
fn an_expression_that_fails_removes_nothing() {
    let policy = set(
        json!({"rules": [{"name": "r", "match": {"expression": "node.metadata.labels['pool'] == 'a'"}, "labels": {"tier": "gold"}}]}),
    );
    let scene = Scene::new(json!({"tier": "gold"})).owning(json!({"labels": {"tier": "gold"}}));
    scene.keep(&policy, |plan| assert!(plan.removals.is_empty()));
    let other = Scene::new(json!({"tier": "gold", "pool": "b"})).owning(json!({"labels": {"tier": "gold"}}));
    other.keep(&policy, |plan| assert_eq!(plan.removals.len(), 1));
}

#[test]
fn a_taint_stays_while_the_rule_that_sets_it_is_unknown_and_goes_if_only_another_rule_is() {
    let failing = |taint: &str| {
        set(json!({"rules": [{"name": "r", "match": {"expression": "node.metadata.annotations['absent'] == 'x'"},
            "taints": [{"key": taint, "effect": "NoSchedule"}]}]}))
    };
    let taint = json!({"key": "ml", "effect": "NoSchedule"});
    let left = |policy: &PolicySet| {
        let scene = Scene::new(json!({})).tainted(json!([taint])).owning(json!({"taints": [taint]}));
        scene.settle(policy).node["spec"]["taints"].as_array().unwrap().len()
    };
    assert_eq!((left(&failing("ml")), left(&failing("other"))), (1, 0));
}

#[test]
fn flat_label_files_treat_absence_as_false() {
    let spec = json!({"derived": [{"label": "acc/gpu", "anyOf": ["nvidia.com/gpu.present"]}]});
    let document = PolicyDocument::new("labels-dir", Origin::Object, serde_json::from_value(spec).unwrap());
    let flat = PolicySet::compile(&[document.with_flat_grace(Duration::ZERO)]).unwrap();
    let mut scene = Scene::new(json!({"nvidia.com/gpu.present": "true"})).settle(&flat);
    assert_eq!(scene.label("acc/gpu"), Some("true"));
    scene.node["metadata"]["labels"] = json!({"acc/gpu": "true"});
    scene.keep(&flat, |plan| assert_eq!(plan.removals[0].after, Duration::ZERO));
}

#[test]
fn saved_labels_are_restored_once_and_then_the_node_is_authoritative() {
    let policy = set(json!({"persist": {"labels": ["persist.demo/*"]}}));
    let mut scene =
        Scene::new(json!({})).saved(json!({"persist.demo/type": "expensive", "other": "x"})).settle(&policy);
    assert_eq!((scene.label("persist.demo/type"), scene.label("other")), (Some("expensive"), None));
    assert_eq!(scene.saved.node_uid.as_deref(), Some(BEFORE));
    scene.node["metadata"]["labels"] = json!({"persist.demo/type": "cheap"});
    scene = scene.settle(&policy);
    assert_eq!(scene.saved.labels.get("persist.demo/type"), Some("cheap"));
    scene.node["metadata"]["labels"] = json!({});
    scene = scene.settle(&policy);
    assert!(scene.saved.labels.is_empty(), "the deletion is saved");
}

#[test]
fn during_a_restore_the_new_uid_is_not_recorded_and_no_saved_key_is_lost() {
    let policy = set(json!({"persist": {"labels": ["persist.demo/*"], "taints": ["dedicated"]}}));
    let mut scene = Scene::new(json!({})).saved(json!({"persist.demo/type": "expensive"}));
    scene.saved.taints = serde_json::from_value(json!([{"key": "dedicated", "effect": "NoSchedule"}])).unwrap();
    scene.keep(&policy, |plan| {
        let change = plan.change(|_| true, |_, _| false);
        let before = plan.record_before(change.as_ref());
        assert_eq!((before.node_uid.as_deref(), before.labels.len(), before.taints.len()), (Some("uid-0"), 1, 1));
        assert_eq!(plan.record(change.as_ref()).node_uid.as_deref(), Some(BEFORE));
    });
}

#[test]
fn nothing_is_restored_on_a_node_that_is_not_identified_yet() {
    let policy = set(json!({"persist": {"labels": ["persist.demo/*"]}}));
    let scene = Scene { identified: false, ..Scene::new(json!({})).saved(json!({"persist.demo/type": "expensive"})) };
    scene.keep(&policy, |plan| {
        assert_eq!(plan.change(|_| true, |_, _| false), None);
        assert_eq!(plan.record(None).node_uid, None);
    });
}

#[test]
fn enforced_and_never_persisted_keys_are_not_saved() {
    let policy = set(json!({"rules": [{"name": "r", "labels": {"persist.demo/tier": "gold"}}],
        "persist": {"labels": ["persist.demo/*"], "taints": ["dedicated"]}}));
    let scene = Scene::new(json!({"persist.demo/own": "x", "kubernetes.io/hostname": "n1"}))
        .tainted(json!([{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}, {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]))
        .settle(&policy);
    assert_eq!(scene.saved.labels.keys().collect::<Vec<_>>(), ["persist.demo/own"]);
    assert_eq!(scene.saved.taints.iter().map(|taint| &*taint.key).collect::<Vec<_>>(), ["dedicated"]);
}

#[test]
fn a_node_that_is_back_is_no_longer_recorded_as_deleted() {
    let mut scene = Scene::new(json!({})).saved(json!({}));
    scene.saved.deleted_at = Some("2026-01-01T00:00:00Z".to_owned());
    assert_eq!(scene.settle(&set(json!({}))).saved.deleted_at, None);
}

#[test]
fn an_annotation_that_is_already_right_is_owned_unless_somebody_claims_it() {
    let policy = set(json!({"rules": [{"name": "r", "annotations": {"note": "a"}}]}));
    for (claimed, owned) in [("other", 1), ("note", 0)] {
        let mut scene = Scene::new(json!({}));
        scene.node["metadata"]["annotations"] = json!({"note": "a"});
        let fields = json!({"f:metadata": {"f:annotations": {format!("f:{claimed}"): {}}}});
        let managed_fields = json!([{"manager": "m", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields}]);
        scene.claims = Claims::parse(&managed_fields.to_string());
        let record = scene.settle(&policy).saved.owned;
        assert_eq!(record.map_or(0, |record| record.annotations.len()), owned, "{claimed} is claimed");
    }
}

#[test]
fn protected_labels_of_a_node_that_joined_without_admission_are_removed_and_others_are_kept() {
    let policy = set(
        json!({"protect": {"keys": ["hardware.tier"]}, "rules": [{"name": "r", "match": {"names": ["n1"]}, "labels": {"fleet": "x"}}]}),
    );
    let forged = Scene::new(json!({"hardware.tier": "gold"})).claimed(&["hardware.tier"]).settle(&policy);
    assert_eq!((forged.label("hardware.tier"), forged.label("fleet")), (None, Some("x")));
    // `fleet` is present and unclaimed, so the webhook set it, and the tier was set by someone who may set it.
    let admitted =
        Scene::new(json!({"hardware.tier": "gold", "fleet": "x"})).claimed(&["hardware.tier"]).settle(&policy);
    assert_eq!(admitted.label("hardware.tier"), Some("gold"));
    let older = Scene { registered: false, ..Scene::new(json!({"hardware.tier": "gold"})).claimed(&["hardware.tier"]) };
    assert_eq!(older.settle(&policy).label("hardware.tier"), Some("gold"));
    let saved = Scene::new(json!({"hardware.tier": "gold"}))
        .claimed(&["hardware.tier"])
        .saved(json!({"hardware.tier": "gold"}));
    assert_eq!(saved.settle(&policy).label("hardware.tier"), Some("gold"));
}

#[test]
fn writes_that_were_admitted_without_nodegate_are_reported() {
    let rules = json!([{"name": "r", "match": {"names": ["n*"]}, "labels": {"tier": "gold", "fleet": "x"}}]);
    let policy = set(json!({"protect": {"keys": ["tier", "rack"]}, "persist": {"labels": ["rack"]}, "rules": rules}));
    let unseen = |scene: &Scene| scene.keep(&policy, |plan| plan.unseen);
    let lacking = vec!["fleet".to_owned(), "tier".to_owned()];
    assert_eq!(unseen(&Scene::new(json!({}))), Some(Unseen::Joined { lacking: lacking.clone() }));
    assert_eq!(unseen(&Scene { registered: false, ..Scene::new(json!({})) }), None, "it is older than the webhook");
    assert_eq!(unseen(&Scene::new(json!({"tier": "gold"}))), None, "nobody claims it, so the webhook set it");
    let mut generated = Scene::new(json!({}));
    generated.node["metadata"]["generateName"] = json!("n");
    assert_eq!(unseen(&generated), Some(Unseen::Joined { lacking }), "it was created with a name of its own as well");
    generated.node["metadata"]["name"] = json!("nx4k9z");
    assert_eq!(unseen(&generated), None, "admission reviewed it before it had the name");
    let mut changed = Scene::new(json!({"tier": "forged", "rack": "r2", "fleet": "y"}))
        .owning(json!({"labels": {"tier": "gold", "fleet": "x"}}));
    changed.saved.labels = serde_json::from_value(json!({"rack": "r1"})).unwrap();
    assert_eq!(unseen(&changed), Some(Unseen::Changed { keys: vec!["tier".to_owned(), "rack".to_owned()] }));
    let same = Scene::new(json!({"tier": "gold", "fleet": "x"})).owning(json!({"labels": {"tier": "gold"}}));
    assert_eq!(unseen(&same), None);
}

#[test]
fn an_existing_taint_is_owned_only_if_admission_could_have_set_it() {
    let policy = set(json!({"rules": [{"name": "r", "taints": [{"key": "fleet", "effect": "NoSchedule"}]}]}));
    let there = json!([{"key": "fleet", "effect": "NoSchedule"}]);
    let ours = Scene::new(json!({})).tainted(there.clone()).settle(&policy);
    assert_eq!(ours.saved.owned.as_ref().unwrap().taints.len(), 1);
    let foreign = Scene { registered: false, ..Scene::new(json!({})).tainted(there) }.settle(&policy);
    assert_eq!(foreign.saved.owned, None);
    let mut ours = ours;
    ours.node["spec"]["taints"] = json!([{"key": "a", "effect": "NoSchedule"}, {"key": "fleet", "effect": "NoSchedule"}, {"key": "z", "effect": "NoSchedule"}]);
    let left = ours.settle(&set(json!({})));
    assert_eq!(
        left.node["spec"]["taints"],
        json!([{"key": "a", "effect": "NoSchedule"}, {"key": "z", "effect": "NoSchedule"}])
    );
}

#[test]
fn a_taint_that_a_patch_added_to_an_existing_node_is_owned_and_one_that_was_set_by_hand_is_not() {
    let matching = json!({"selector": {"matchLabels": {"team": "ml"}}});
    let policy =
        set(json!({"rules": [{"name": "r", "match": matching, "taints": [{"key": "ml", "effect": "NoSchedule"}]}]}));
    let stored = |patched| Scene {
        patched,
        ..Scene::new(json!({"team": "ml"})).tainted(json!([{"key": "ml", "effect": "NoSchedule"}])).owning(json!({}))
    };
    let admitted = stored(&["ml:NoSchedule"]).settle(&policy);
    assert_eq!(admitted.saved.owned.as_ref().unwrap().taints.len(), 1);
    assert_eq!(Scene { patched: &[], ..admitted }.settle(&set(json!({}))).node["spec"]["taints"], json!([]));
    let by_hand = stored(&[]).settle(&policy);
    assert_eq!(by_hand.saved.owned, None, "although the node is younger than the webhook");
}

#[test]
fn no_execute_is_added_only_with_evict_and_pending_taints_are_removed_and_not_saved() {
    let no_execute = |evict: bool| {
        set(json!({"rules": [{"name": "r", "evict": evict, "taints": [{"key": "out", "effect": "NoExecute"}]}],
                   "persist": {"taints": ["readiness.k8s.io/*"]}}))
    };
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let all = PendingTaints::default().all().iter().map(|id| taint(id.key.as_str())).collect::<Vec<_>>();
    assert_eq!(all.len(), 3);
    let pending = || Scene::new(json!({})).tainted(all.clone().into());
    let kept = pending().settle(&no_execute(false));
    assert_eq!((&kept.node["spec"]["taints"], kept.saved.taints.len()), (&json!([]), 0));
    let evicted = pending().settle(&no_execute(true));
    assert_eq!(evicted.node["spec"]["taints"], json!([{"key": "out", "effect": "NoExecute"}]));
    let waits = set(
        json!({"inventory": [{"name": "cmdb", "url": "https://cmdb.example.com/{node}", "allow": ["tier"], "require": true}]}),
    );
    for one in all {
        let scene = Scene::new(json!({})).tainted(json!([one]));
        scene.keep(&waits, |plan| assert_eq!((plan.awaits_inventory, plan.lifts_pending), (true, false), "{one}"));
    }
}

#[test]
fn what_nodegate_owns_is_not_matched_on() {
    // The rule that assigned `tier` is gone; another one matches on it.
    let policy = set(
        json!({"rules": [{"name": "r", "match": {"selector": {"matchLabels": {"tier": "gold"}}}, "labels": {"fast": "yes"}}]}),
    );
    let scene = Scene::new(json!({"tier": "gold"})).owning(json!({"labels": {"tier": "gold"}})).settle(&policy);
    assert_eq!((scene.label("tier"), scene.label("fast")), (None, None));
}

#[test]
fn a_kubelet_that_claims_a_protected_label_does_not_keep_it_when_its_rule_goes() {
    let rules = json!([{"name": "r", "match": {"names": ["n1"]}, "labels": {"tier": "gold"}}]);
    let policy = set(json!({"protect": {"keys": ["tier"]}, "rules": rules}));
    let withdrawn = set(json!({"protect": {"keys": ["tier"]}}));
    let claimed = Scene::new(json!({"tier": "gold"})).claimed(&["tier"]).settle(&policy);
    assert_eq!(owned_labels(&claimed), ["tier"]);
    assert_eq!(claimed.settle(&withdrawn).label("tier"), None);
    // Claims count if the kubelet cannot have made them, or if the label is not protected.
    let older = Scene { registered: false, ..Scene::new(json!({"tier": "gold"})).claimed(&["tier"]) }.settle(&policy);
    assert!(owned_labels(&older).is_empty());
    let free = Scene::new(json!({"tier": "gold"})).claimed(&["tier"]).settle(&set(json!({"rules": rules})));
    assert!(owned_labels(&free).is_empty());
}

#[test]
fn a_protected_label_set_without_admission_is_removed_if_another_value_was_saved() {
    let rule = json!([{"name": "r", "match": {"names": ["n1"]}, "labels": {"fleet": "x"}}]);
    // No `persist` section names the key anymore, so its saved value is ignored.
    let policy = set(json!({"protect": {"keys": ["tier"]}, "rules": rule}));
    let forged = Scene::new(json!({"tier": "gold"})).claimed(&["tier"]).saved(json!({"tier": "standard"}));
    assert_eq!(forged.settle(&policy).label("tier"), None);
    let restored = set(json!({"protect": {"keys": ["tier"]}, "rules": rule, "persist": {"labels": ["tier"]}}));
    let forged = Scene::new(json!({"tier": "gold"})).claimed(&["tier"]).saved(json!({"tier": "standard"}));
    assert_eq!(forged.settle(&restored).label("tier"), Some("standard"));
}

#[test]
fn a_protected_label_that_is_set_on_a_node_that_is_not_identified_yet_is_kept() {
    let rules = json!([{"name": "r", "match": {"names": ["n1"]}, "labels": {"node-role.kubernetes.io/x": ""}}]);
    let policy = set(json!({"protect": {"keys": ["tier"]}, "rules": rules}));
    let mut scene = Scene { identified: false, ..Scene::new(json!({})) }.settle(&policy);
    scene.node["metadata"]["labels"]["tier"] = json!("gold");
    scene = scene.claimed(&["tier", "node-role.kubernetes.io/x"]).settle(&policy);
    assert_eq!(scene.label("tier"), Some("gold"));
}

#[test]
fn labels_that_a_kubelet_set_on_its_existing_node_without_admission_are_not_saved() {
    let set = set(json!({"persist": {"labels": ["persist.demo/*"]}}));
    let labels = json!({"persist.demo/planted": "x", "persist.demo/sly": "x", "persist.demo/type": "forged",
        "persist.demo/joined": "x", "persist.demo/by-hand": "x"});
    let mut scene = Scene::new(labels).saved(json!({"persist.demo/type": "a", "persist.demo/joined": "x"}));
    let claim = |manager: &str, subresource: &str, keys: &[&str]| {
        let fields: serde_json::Map<String, Json> =
            keys.iter().map(|key| (format!("f:persist.demo/{key}"), json!({}))).collect();
        json!({"manager": manager, "subresource": subresource, "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {"f:metadata": {"f:labels": fields}}})
    };
    let managed_fields = json!([
        claim("kubelet", "", &["planted", "type", "joined"]),
        claim("kubectl-label", "status", &["sly"]),
        claim("kubectl-label", "", &["by-hand"]),
    ]);
    scene.claims = Claims::parse(&managed_fields.to_string());
    let saved = |scene: &Scene| scene.keep(&set, |plan| json!(plan.record(None).labels));
    // Labels that it sends when it joins come from its configuration.
    let joined = json!({"persist.demo/planted": "x", "persist.demo/sly": "x", "persist.demo/type": "a",
        "persist.demo/joined": "x", "persist.demo/by-hand": "x"});
    assert_eq!(saved(&scene), joined);
    scene.saved.node_uid = Some(BEFORE.to_owned());
    let stored = json!({"persist.demo/type": "a", "persist.demo/joined": "x", "persist.demo/by-hand": "x"});
    assert_eq!(saved(&scene), stored);
}

#[test]
fn owned_annotations_and_taints_are_removed_only_with_the_value_they_were_given() {
    let owned = json!({"annotations": {"note": "a"}, "taints": [{"key": "ml", "value": "a", "effect": "NoSchedule"}]});
    let look = |note: &str, taint: &str| {
        let mut scene = Scene::new(json!({}))
            .tainted(json!([{"key": "ml", "value": taint, "effect": "NoSchedule"}]))
            .owning(owned.clone());
        scene.node["metadata"]["annotations"] = json!({"note": note});
        let settled = scene.settle(&set(json!({})));
        let annotation = settled.node["metadata"]["annotations"]["note"].as_str().map(str::to_owned);
        (annotation, settled.node["spec"]["taints"].as_array().unwrap().len())
    };
    assert_eq!(look("a", "a"), (None, 0));
    assert_eq!(look("b", "a"), (Some("b".to_owned()), 0));
    assert_eq!(look("a", "b"), (None, 1));
}

#[test]
fn a_taint_that_was_owned_stays_so_and_the_record_names_its_node() {
    let policy = set(json!({"rules": [{"name": "r", "taints": [{"key": "ml", "effect": "NoSchedule"}]}]}));
    let taint = json!({"key": "ml", "effect": "NoSchedule"});
    let scene = Scene::new(json!({})).tainted(json!([taint])).owning(json!({"taints": [taint]}));
    scene.keep(&policy, |plan| {
        assert_eq!(plan.change(|_| true, |_, _| false), None);
        let record = plan.record(None);
        assert_eq!((record.node_name.as_str(), record.owned.unwrap().taints.len()), ("n1", 1));
    });
    let foreign = Scene::new(json!({})).tainted(json!([taint])).owning(json!({"taints": []}));
    foreign.keep(&policy, |plan| assert_eq!(plan.record(None).owned.map_or(0, |owned| owned.taints.len()), 0));
}
