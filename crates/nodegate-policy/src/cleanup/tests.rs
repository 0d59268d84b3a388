#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::{Value as Json, json};

use super::*;
use crate::reconcile::tests::scene::{Scene, set};

const POLICY: &str = "p";

fn fleet() -> PolicySet {
    set(json!({"rules": [
        {"name": "always", "labels": {"tier": "gold"}, "annotations": {"note": "x"}},
        {"name": "team", "match": {"selector": {"matchLabels": {"team": "ml"}}}, "labels": {"quota": "large"},
         "taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]},
    ]}))
}

/// A node that has everything which is recorded as owned, and two pending taints.
fn scene() -> Scene {
    let owned = json!({"labels": {"tier": "gold", "quota": "large", "gone": "x"}, "annotations": {"note": "x"},
        "taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}], "removeAfter": {"quota": 5}});
    let mut scene =
        Scene::new(json!({"tier": "gold", "quota": "large", "mine": "stays"})).owning(owned).tainted(json!([
            {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
            {"key": "nodegate.dev/pending", "effect": "NoSchedule"},
            {"key": "readiness.k8s.io/nodegate", "effect": "NoSchedule"},
            {"key": "others", "effect": "NoExecute"}
        ]));
    scene.node["metadata"]["annotations"] = json!({"note": "x", (LAST_CHANGE): "alice", "foreign": "y"});
    scene
}

fn planned(scope: &CleanupScope<'_>, scene: &Scene) -> CleanupPlan {
    scene.with_stored(|stored| plan_cleanup(scope, stored))
}

/// The keys with the reason for which they stay.
fn results(plan: &CleanupPlan) -> Vec<(&str, Option<KeptBecause>)> {
    let keys = plan.keys.iter();
    keys.map(|key| {
        assert_eq!(key.result == CleanupResult::Kept, key.why.is_some(), "{key:?}");
        (key.key.as_str(), key.why)
    })
    .collect()
}

const EVERYTHING: CleanupScope<'_> = CleanupScope { extent: Extent::Everything, running: None };

fn leftovers<'a>(set: &'a PolicySet, running: Option<&'a PolicySet>) -> CleanupScope<'a> {
    CleanupScope { extent: Extent::Policies { set, names: &[], leftovers: true }, running }
}

#[test]
fn everything_that_is_owned_goes_and_what_others_set_stays() {
    let scene = scene();
    let plan = planned(&EVERYTHING, &scene);
    let all = [
        "quota",
        "tier",
        "nodegate.dev/last-change",
        "note",
        "dedicated",
        "nodegate.dev/pending",
        "readiness.k8s.io/nodegate",
    ];
    assert_eq!(results(&plan), all.map(|key| (key, None)), "the label that is gone is not mentioned");
    let mut node = scene.node;
    let text = node.to_string();
    let patch = crate::patch(&NodeFacts::parse(&text).unwrap(), &plan.change.unwrap()).unwrap();
    json_patch::patch(&mut node, &patch.parse().unwrap()).unwrap();
    assert_eq!(node["metadata"]["labels"], json!({"mine": "stays"}));
    assert_eq!(node["metadata"]["annotations"], json!({"foreign": "y"}));
    assert_eq!(node["spec"]["taints"], json!([{"key": "others", "effect": "NoExecute"}]));
}

#[test]
fn a_key_whose_value_others_changed_stays_and_its_value_is_told() {
    let mut scene = scene();
    scene.node["metadata"]["labels"]["tier"] = json!("tin");
    scene.node["spec"]["taints"][0]["value"] = json!("web");
    let plan = planned(&EVERYTHING, &scene);
    let found: Vec<_> = plan
        .keys
        .iter()
        .filter(|key| key.why == Some(KeptBecause::Changed))
        .map(|key| (&*key.key, &key.found))
        .collect();
    assert_eq!(found, [("tier", &Some("tin".to_owned())), ("dedicated", &Some("web".to_owned()))]);
    assert!(!plan.change.unwrap().labels().contains_key("tier"));
}

#[test]
fn a_record_of_an_earlier_node_object_removes_nothing_but_pending_taints() {
    let mut scene = scene();
    scene.node["metadata"]["uid"] = json!("uid-2");
    let plan = planned(&EVERYTHING, &scene);
    let kept = plan.keys.iter().filter(|key| key.why == Some(KeptBecause::EarlierNode)).count();
    assert_eq!((kept, plan.change.unwrap().labels().len()), (4, 0));
}

#[test]
fn while_nodegate_runs_what_rules_assign_stays_and_the_rule_is_named() {
    let (set, scene) = (fleet(), scene());
    let plan = planned(&CleanupScope { extent: Extent::Everything, running: Some(&set) }, &scene);
    let (assigned, running) = (Some(KeptBecause::Assigned), Some(KeptBecause::Running));
    let expected = [
        ("quota", None),
        ("tier", assigned),
        ("nodegate.dev/last-change", running),
        ("note", assigned),
        ("dedicated", None),
        ("nodegate.dev/pending", running),
        ("readiness.k8s.io/nodegate", running),
    ];
    assert_eq!(results(&plan), expected);
    let rule = plan.keys[1].rule.as_deref();
    assert_eq!((plan.keys[1].policy.as_deref(), rule), (Some(POLICY), Some("always")));
}

#[test]
fn a_policy_selects_what_it_assigns_and_what_only_it_could_assign() {
    let (set, scene) = (fleet(), scene());
    let of = |names: &[String]| {
        let extent = Extent::Policies { set: &set, names, leftovers: false };
        let plan = planned(&CleanupScope { extent, running: None }, &scene);
        results(&plan).into_iter().map(|(key, why)| (key.to_owned(), why)).collect::<Vec<_>>()
    };
    let all = ["quota", "tier", "note", "dedicated"].map(|key| (key.to_owned(), None));
    assert_eq!(of(&[POLICY.to_owned()]), all, "neither pending taints nor nodegate's annotation");
    assert_eq!(of(&["other".to_owned()]), []);
}

#[test]
fn leftovers_are_what_no_rule_assigns_running_or_not() {
    let (set, scene) = (fleet(), scene());
    for running in [None, Some(&set)] {
        assert_eq!(results(&planned(&leftovers(&set, running), &scene)), [("quota", None), ("dedicated", None)]);
    }
}

#[test]
fn a_key_of_a_rule_with_an_unknown_result_is_no_leftover() {
    let rule = json!({"name": "big", "trustKubelet": true, "match": {"capacity": {"nvidia.com/gpu": ">=8"}}, "labels": {"quota": "large"}});
    let set = set(json!({"rules": [rule]}));
    let mut scene = scene();
    scene.node["status"]["conditions"][0]["status"] = json!("False");
    let plan = planned(&leftovers(&set, None), &scene);
    assert_eq!(results(&plan)[0], ("quota", Some(KeptBecause::Unknown)));
}

#[test]
fn the_record_loses_what_was_removed_and_nothing_else() {
    let (set, scene) = (fleet(), scene());
    let change = planned(&leftovers(&set, None), &scene).change.unwrap();
    let record = record_without(&scene.saved, &change);
    let owned: Json = serde_json::to_value(record.owned.unwrap()).unwrap();
    assert_eq!(owned, json!({"labels": {"tier": "gold", "gone": "x"}, "annotations": {"note": "x"}}));
    let everything = planned(&EVERYTHING, &scene).change.unwrap();
    let rest = record_without(&scene.saved, &everything).owned.unwrap();
    assert_eq!(rest.labels.keys().collect::<Vec<_>>(), ["gone"]);
}

#[test]
fn a_persist_section_gives_no_owned_key() {
    let set = set(json!({"persist": {"labels": ["quota"]}}));
    let extent = Extent::Policies { set: &set, names: &[POLICY.to_owned()], leftovers: false };
    assert_eq!(results(&planned(&CleanupScope { extent, running: None }, &scene())), []);
}

#[test]
fn a_key_that_a_program_needs_stays_and_one_that_is_there_for_a_moment_goes() {
    let labels = json!({"karpenter.sh/nodepool": "a", "topology.kubernetes.io/zone": "z", "nvidia.com/gpu": "true"});
    let taint = json!([{"key": "aws-node-termination-handler/spot-itn", "value": "", "effect": "NoSchedule"}]);
    let scene = Scene::new(labels.clone()).owning(json!({"labels": labels, "taints": taint})).tainted(taint);
    assert_eq!(
        results(&planned(&EVERYTHING, &scene)),
        [
            ("karpenter.sh/nodepool", Some(KeptBecause::OfProgram)),
            ("nvidia.com/gpu", None),
            ("topology.kubernetes.io/zone", None),
            ("aws-node-termination-handler/spot-itn", None),
        ]
    );
}
