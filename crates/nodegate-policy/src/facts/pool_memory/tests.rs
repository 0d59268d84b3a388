use serde_json::{Value as Json, json};

use super::*;
use crate::api::policy::PersistScope;
use crate::reconcile::tests::scene::set;

/// A section for pools.
fn policies() -> PolicySet {
    set(json!({"persist": {"labels": ["team", "a/*"], "scope": "pool"}}))
}

fn shares(nodes: &[(&[&str], Json)]) -> Vec<PoolShare> {
    let sections = policies().saving_rules(PersistScope::Pool).map(|(index, _, _)| index).collect::<Vec<_>>();
    let share = |(pools, labels): &(&[&str], Json)| PoolShare {
        pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
        labels: serde_json::from_value(labels.clone()).unwrap(),
        sections: sections.clone(),
    };
    nodes.iter().map(share).collect()
}

fn at(second: i64) -> Option<Timestamp> {
    Some(Timestamp::from_second(second).unwrap())
}

const DAY: Option<Duration> = Some(Duration::from_secs(86_400));

fn after(before: &PoolMemory, nodes: &[(&[&str], Json)], second: i64) -> PoolMemory {
    before.after(&policies(), &shares(nodes), at(second), DAY)
}

/// What a node of these pools gets: `key=value`, or `key: reason`.
fn given(memory: &PoolMemory, pools: &[&'static str]) -> Vec<String> {
    let keys = KeySet::compile(["team", "a/*"], |_, _| {});
    let given = memory.given(pools.iter().copied(), &keys);
    let text = |(key, value): (&str, Remembered<'_>)| match value {
        Ok(value) => format!("{key}={value}"),
        Err(reason) => format!("{key}: {reason}"),
    };
    given.into_iter().map(text).collect()
}

#[test]
fn what_all_nodes_of_a_pool_have_its_next_node_gets() {
    let nodes: &[(&[&str], Json)] = &[
        (&["gpu"], json!({"team": "ml", "a/quota": "8"})),
        (&["gpu"], json!({"team": "ml", "a/quota": "8", "a/canary": "true"})),
        (&["cpu"], json!({"team": "web"})),
    ];
    let memory = after(&PoolMemory::default(), nodes, 1);
    assert_eq!(given(&memory, &["gpu"]), ["a/quota=8", "team=ml"], "not what only one of them has");
    assert_eq!(given(&memory, &["cpu"]), ["team=web"]);
    assert_eq!(given(&memory, &["other"]), [""; 0]);
    assert_eq!(given(&memory, &[]), [""; 0]);
    let canary = &memory.pools["gpu"].disagreements["a/canary"];
    assert_eq!(canary.to_string(), "\"true\" on 1 node, none on 1 node");
    let text = serde_json::to_string(&memory).unwrap();
    assert_eq!(serde_json::from_str::<PoolMemory>(&text).unwrap(), memory);
}

#[test]
fn contradictory_values_give_nothing_and_are_listed() {
    let values = ["a", "b", "b", "c", "d", "e", "f"].map(|team| (&["gpu"] as &[&str], json!({"team": team})));
    let memory = after(&PoolMemory::default(), &values, 1);
    let listed = r#""a" on 1 node, "b" on 2 nodes, "c" on 1 node, "d" on 1 node, "e" on 1 node, others on 1 node"#;
    assert_eq!(given(&memory, &["gpu"]), [format!("team: the nodes of pool gpu do not agree: {listed}")]);

    // Two pools of one node.
    let nodes: &[(&[&str], Json)] =
        &[(&["x"], json!({"team": "ml", "a/q": "1"})), (&["y"], json!({"team": "web", "a/q": "1"}))];
    let memory = after(&PoolMemory::default(), nodes, 1);
    let expected = ["a/q=1", "team: the pools of the node have different values, pool y \"web\""];
    assert_eq!(given(&memory, &["x", "y"]), expected);
    assert_eq!(given(&memory, &["y", "x"])[0], "a/q=1");
}

#[test]
fn a_label_that_one_pool_of_a_node_lacks_in_part_is_not_given_by_the_other() {
    let nodes: &[(&[&str], Json)] =
        &[(&["x"], json!({"team": "ml"})), (&["y"], json!({"team": "ml"})), (&["y"], json!({}))];
    let memory = after(&PoolMemory::default(), nodes, 1);
    assert_eq!(given(&memory, &["x"]), ["team=ml"]);
    assert_eq!(given(&memory, &["x", "y"]), [""; 0]);
}

#[test]
fn a_pool_without_nodes_keeps_what_it_remembered_until_the_retention_is_over() {
    let node: &[(&[&str], Json)] = &[(&["gpu"], json!({"team": "ml"})), (&["gpu"], json!({"team": "ml", "a/x": "1"}))];
    let full = after(&PoolMemory::default(), node, 100);
    let empty = after(&full, &[], 200);
    assert_eq!(empty.pools["gpu"].empty_since.as_deref(), Some("1970-01-01T00:03:20Z"));
    assert!(empty.pools["gpu"].disagreements.is_empty(), "who did not agree is gone");
    let later = after(&empty, &[], 200 + 86_400);
    assert_eq!((given(&later, &["gpu"]), &later), (vec!["team=ml".to_owned()], &empty), "nothing is written anew");
    assert_eq!(after(&later, &[], 201 + 86_400), PoolMemory::default());
    let again = after(&later, &node[..1], 300 + 86_400);
    assert_eq!(again.pools["gpu"].empty_since, None);

    let set = policies();
    let unknown = full.after(&set, [], None, DAY);
    assert_eq!(unknown.pools["gpu"].empty_since, None, "the time is not known yet");
    assert_eq!(empty.after(&set, [], at(1 << 32), None), empty, "no retention");
    assert_eq!(empty.after(&set, [], at(0), DAY), empty, "a clock that is behind");
}

#[test]
fn deleting_nodes_settles_no_disagreement_and_changing_one_that_is_there_does() {
    let gpu = |labels: Json| (&["gpu"] as &[&str], labels);
    let (ml, web, none) = (gpu(json!({"team": "ml"})), gpu(json!({"team": "web"})), gpu(json!({})));
    let nodes = |all: &[&(&'static [&'static str], Json)]| all.iter().map(|one| (*one).clone()).collect::<Vec<_>>();
    let memory = |before: &PoolMemory, all: &[&(&'static [&'static str], Json)]| after(before, &nodes(all), 1);
    let lacking = memory(&PoolMemory::default(), &[&ml, &ml, &none]);
    let left = memory(&lacking, &[&ml, &ml]);
    assert_eq!(given(&left, &["gpu"]), [""; 0], "its kubelet has deleted it");
    let text = left.pools["gpu"].disagreements["team"].to_string();
    assert_eq!(text, "\"ml\" on 2 nodes, another or none on nodes that are gone");
    assert_eq!(memory(&left, &[&ml, &ml]), left, "nor does time");
    assert_eq!(given(&memory(&left, &[&ml]), &["gpu"]), [""; 0], "nor does another that leaves");
    // It has joined again without the label, and somebody labels it.
    let again = memory(&left, &[&ml, &ml, &none]);
    assert_eq!(given(&again, &["gpu"]), [""; 0]);
    assert_eq!(given(&memory(&again, &[&ml, &ml, &ml]), &["gpu"]), ["team=ml"]);
    // All get another value.
    let differing = memory(&PoolMemory::default(), &[&ml, &ml, &web]);
    assert_eq!(given(&memory(&differing, &[&ml, &ml]), &["gpu"]), [""; 0]);
    assert_eq!(given(&memory(&differing, &[&web, &web, &web]), &["gpu"]), ["team=web"]);
    let of_many = ["a", "b", "c", "d", "e", "f"].map(|team| gpu(json!({"team": team})));
    let of_many = memory(&PoolMemory::default(), &of_many.iter().collect::<Vec<_>>());
    let last = gpu(json!({"team": "f"}));
    assert_eq!(given(&memory(&of_many, &[&last]), &["gpu"]), [""; 0], "a value that is not listed");
    assert_eq!(given(&memory(&of_many, &[&last, &last]), &["gpu"]), ["team=f"]);
}

#[test]
fn a_label_that_is_removed_from_all_nodes_is_forgotten() {
    let full = after(&PoolMemory::default(), &[(&["gpu"], json!({"team": "ml"}))], 1);
    assert_eq!(after(&full, &[(&["gpu"], json!({}))], 2), PoolMemory::default());
}

#[test]
fn only_nodes_that_a_section_is_about_have_to_agree() {
    let spec = |labels: Json| json!({"persist": {"labels": labels, "scope": "pool"}});
    let document = |name: &str, labels: Json| {
        crate::PolicyDocument::new(name, crate::Origin::Object, serde_json::from_value(spec(labels)).unwrap())
    };
    let set = PolicySet::compile(&[document("p", json!(["team"])), document("q", json!(["other"]))]).unwrap();
    let sections: Vec<RuleIndex> = set.saving_rules(PersistScope::Pool).map(|(index, _, _)| index).collect();
    let share = |labels: Json, sections: &[RuleIndex]| PoolShare {
        pools: vec!["gpu".to_owned()],
        labels: serde_json::from_value(labels).unwrap(),
        sections: sections.to_vec(),
    };
    let nodes = [share(json!({"team": "ml", "other": "x"}), &sections), share(json!({"other": "x"}), &sections[1..])];
    let memory = PoolMemory::default().after(&set, &nodes, at(1), DAY);
    assert_eq!(memory.pools["gpu"].labels.len(), 2, "{memory:?}");
}

#[test]
fn what_is_remembered_fits_into_one_config_map() {
    let name = |n: usize| format!("a/{}{n:04}", "k".repeat(50));
    let labels: serde_json::Map<String, Json> = (0..512).map(|n| (name(n), json!("v".repeat(60)))).collect();
    let pools: Vec<String> = (0..20).map(|pool| format!("pool-{pool:02}")).collect();
    let names: Vec<[&str; 1]> = pools.iter().map(|pool| [pool.as_str()]).collect();
    let nodes: Vec<(&[&str], Json)> =
        names.iter().map(|pool| (pool.as_slice(), Json::Object(labels.clone()))).collect();
    let memory = after(&PoolMemory::default(), &nodes, 1);
    let kept: usize = memory.pools.values().map(|pool| pool.labels.len()).sum();
    assert_eq!(kept + memory.left_out, 20 * 512);
    assert!(memory.left_out > 0 && memory.pools["pool-00"].labels.len() == 512);
    // A pool with few labels is remembered, whatever its name is.
    let small = ["small"];
    let with_small = nodes.iter().cloned().chain([(small.as_slice(), json!({"team": "ml"}))]).collect::<Vec<_>>();
    assert_eq!(given(&after(&memory, &with_small, 2), &["small"]), ["team=ml"]);
    assert!(serde_json::to_string(&memory).unwrap().len() < 900 * 1024);
}
