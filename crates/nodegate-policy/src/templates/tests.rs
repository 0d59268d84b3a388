use serde_json::{Value as Json, json};

use super::*;
use crate::simulate::compile_inline;

/// The template of a group of nodes, with the answers of inventory `racks` about each.
fn of(policy: &Json, nodes: &[(Json, &[(&str, &str)])]) -> (Vec<String>, Vec<String>) {
    let set = compile_inline(policy).unwrap();
    let (pools, pending) = (PoolMemory::default(), PendingTaints::default());
    let mut template = GroupTemplate::default();
    for (node, answer) in nodes {
        let mut inventory = InventoryAnswers::default();
        for known in set.inventories().filter(|_| !answer.is_empty()) {
            let labels = answer.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            inventory = inventory.with(&known.id, Some(std::sync::Arc::new(known.accept(labels).0)));
        }
        let decide = |node: &Json| {
            let text = node.to_string();
            let node = NodeFacts::parse(&text).unwrap();
            let elsewhere = Publishers::default();
            let inventory = &inventory;
            let known = Newcomer { evidence: None, pools: &pools, inventory, elsewhere, pending: &pending };
            once_joined(&set, &node, &known)
        };
        let mut other = node.clone();
        other["metadata"]["name"] = json!(renamed(node["metadata"]["name"].as_str().unwrap()));
        template.add(&set, &decide(node), &decide(&other));
    }
    let (same, varying) = template.finish();
    let taint = |effect: &Option<String>| effect.as_ref().map(|effect| format!(":{effect}")).unwrap_or_default();
    (
        same.iter().map(|key| format!("{}={}{}", key.key, key.value, taint(&key.effect))).collect(),
        varying.iter().map(|key| format!("{} {:?} {:?} on {}", key.key, key.because, key.values, key.nodes)).collect(),
    )
}

fn node(name: &str, labels: &Json) -> Json {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

#[test]
fn what_all_nodes_of_a_group_have_is_its_template() {
    let policy = json!({"rules": [
        {"name": "role", "match": {"names": ["gpu-*"]}, "labels": {"node-role.kubernetes.io/gpu": "", "tier": "fast"}, "taints": ["gpu=:NoExecute"]},
        {"name": "default", "mode": "default", "match": {}, "labels": {"team": "none"}},
    ]});
    let (same, varying) = of(&policy, &[(node("gpu-1", &json!({})), &[]), (node("gpu-2", &json!({})), &[])]);
    assert_eq!(same, ["node-role.kubernetes.io/gpu=", "team=none", "tier=fast", "gpu=:NoExecute"]);
    assert_eq!(varying, Vec::<String>::new());
}

#[test]
fn what_differs_between_nodes_is_in_no_template() {
    let policy = json!({"rules": [
        {"name": "zone", "match": {}, "labelExpressions": {"place": "node.metadata.labels[\"topology.kubernetes.io/zone\"]"}},
        {"name": "one", "match": {"names": ["gpu-1"]}, "labels": {"first": "true"}},
        {"name": "large", "match": {"selector": {"matchLabels": {"size": "large"}}}, "labels": {"big": "true"}},
    ]});
    let zone =
        |zone: &str| json!({"topology.kubernetes.io/zone": zone, "size": if zone == "a" { "large" } else { "small" }});
    let nodes: [(Json, &[(&str, &str)]); 2] = [(node("gpu-1", &zone("a")), &[]), (node("gpu-3", &zone("b")), &[])];
    let (same, varying) = of(&policy, &nodes);
    assert_eq!(same, Vec::<String>::new());
    assert_eq!(
        varying,
        ["big Absent [\"true\"] on 1", "first Absent [\"true\"] on 1", "place Value [\"a\", \"b\"] on 2"]
    );
    let (same, varying) = of(&policy, &nodes[..1]);
    assert_eq!(same, ["big=true", "place=a"], "the only node of a group");
    assert_eq!(varying, ["first Name [\"true\"] on 1"], "the next node has another name");
}

#[test]
fn an_inventorys_answer_about_one_node_says_nothing_of_the_next() {
    let policy =
        json!({"inventory": [{"name": "racks", "url": "https://inventory.example/{node}", "allow": ["rack", "row"]}]});
    let nodes: [(Json, &[(&str, &str)]); 2] = [
        (node("gpu-1", &json!({})), &[("rack", "7"), ("row", "2")]),
        (node("gpu-2", &json!({})), &[("rack", "8"), ("row", "2")]),
    ];
    assert_eq!(of(&policy, &nodes[..1]).1, ["rack OneAnswer [\"7\"] on 1", "row OneAnswer [\"2\"] on 1"]);
    let (same, varying) = of(&policy, &nodes);
    assert_eq!(same, ["row=2"]);
    assert_eq!(varying, ["rack Value [\"7\", \"8\"] on 2"]);
}

#[test]
fn another_name_has_the_same_form() {
    for (name, other) in [
        ("gpu-1", "gpu-2"),
        ("gpu-9", "gpu-0"),
        ("aks-gpu-12345678-vmss00000z", "aks-gpu-12345678-vmss00001z"),
        ("n1gpu", "n2gpu"),
        ("gpu--a", "gpu--b"),
        ("worker-1-gpu", "worker-2-gpu"),
        ("h100-first", "h100-firsu"),
        ("gpu-z", "gpu-a"),
        ("ip-10-0-1-119.eu-central-1.compute.internal", "ip-10-0-1-110.eu-central-1.compute.internal"),
    ] {
        assert_eq!(renamed(name), other);
        assert_ne!(renamed(other), *other);
    }
}

#[test]
fn a_node_of_which_too_little_is_known_takes_nothing_out_of_the_template() {
    let policy = json!({"rules": [
        {"name": "driver", "match": {"expression": "node.metadata.labels[\"driver\"] == \"new\""}, "labels": {"fast": "true"}, "taints": ["gpu:NoSchedule"]},
    ]});
    let nodes: [(Json, &[(&str, &str)]); 2] =
        [(node("gpu-1", &json!({"driver": "new"})), &[]), (node("gpu-2", &json!({})), &[])];
    assert_eq!(of(&policy, &nodes).0, ["fast=true", "gpu=:NoSchedule"]);
    let most: [(Json, &[(&str, &str)]); 3] = [nodes[0].clone(), nodes[1].clone(), (node("gpu-3", &json!({})), &[])];
    let (same, varying) = of(&policy, &most);
    assert!(same.is_empty(), "one of three does not decide: {same:?}");
    assert_eq!(varying, ["fast Unknown [\"true\"] on 1", "gpu Unknown [\"\"] on 1"]);
    let other: [(Json, &[(&str, &str)]); 2] = [nodes[0].clone(), (node("gpu-2", &json!({"driver": "old"})), &[])];
    assert_eq!(of(&policy, &other).0, Vec::<String>::new());
}
