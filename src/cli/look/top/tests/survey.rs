//! What a comparison with the policies in force finds of single nodes.

use super::super::survey;
use super::*;
use crate::cli::shared::cluster::known_node::KnownNode;
use nodegate_controller::Unreadable;
use nodegate_policy::{PolicyDocument, PolicySet, Publishers};

fn set() -> PolicySet {
    let spec = json!({
        "rules": [{"name": "tier", "match": {"names": ["gpu-*"]}, "labels": {"hardware.tier": "gold"}}],
        "gates": [{"name": "topology", "match": {"names": ["gpu-*"]}, "labels": ["rack"], "timeout": "10m"}],
    });
    PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap()
}

/// What is found of nodes: their names, labels and whether they have the pending taint.
fn survey_of(nodes: &[(&str, Value, bool)]) -> Survey {
    let (set, mut survey) = (set(), Survey::default());
    for (name, labels, is_pending) in nodes {
        let taints = if *is_pending { json!([{"key": PENDING, "effect": "NoSchedule"}]) } else { json!([]) };
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}});
        let node = KnownNode::of_file(&node, None, Publishers::default()).unwrap();
        survey::add(&mut survey, &set, Ok(node), &PendingTaints::default());
    }
    survey
}

#[test]
fn a_node_that_differs_drifts_and_one_that_does_not_is_not_named() {
    let survey = survey_of(&[
        ("gpu-1", json!({"hardware.tier": "tin"}), false),
        ("gpu-2", json!({"hardware.tier": "gold"}), false),
    ]);
    let expected = [("gpu-1".to_owned(), "~ label hardware.tier=gold, was tin (rule fleet/tier)".to_owned())];
    assert_eq!((survey.drifting, &survey.drift[..]), (1, &expected[..]));
    assert_eq!((survey.unreadable, survey.waiting.len()), (0, 0));
}

#[test]
fn a_node_that_waits_is_told_why_and_drifts_like_any_other() {
    let survey = survey_of(&[
        ("gpu-1", json!({}), true),
        ("gpu-2", json!({"hardware.tier": "gold"}), true),
        ("gpu-3", json!({"rack": "a"}), true),
    ]);
    let at_gate = "waits for labels: rack at fleet/gate:topology";
    assert_eq!((survey.waiting["gpu-1"].as_str(), survey.waiting["gpu-2"].as_str()), (at_gate, at_gate));
    let lifted = format!("+ label hardware.tier=gold (rule fleet/tier); - taint {PENDING}:NoSchedule");
    assert_eq!(survey.waiting["gpu-3"], format!("waits for the controller: {lifted}"));
    let expected = [("gpu-1", "+ label hardware.tier=gold (rule fleet/tier)"), ("gpu-3", &*lifted)];
    assert_eq!(survey.drift, expected.map(|(node, text)| (node.to_owned(), text.to_owned())));
    assert_eq!(survey.drifting, 2);
}

#[test]
fn a_node_that_cannot_be_read_is_counted() {
    let mut survey = survey_of(&[]);
    let unreadable = Unreadable { name: "gpu-1".to_owned(), why: "labels are no object".to_owned() };
    survey::add(&mut survey, &set(), Err(unreadable), &PendingTaints::default());
    assert_eq!((survey.unreadable, survey.drifting), (1, 0));
}
