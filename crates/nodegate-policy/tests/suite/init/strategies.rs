//! Fleets of nodes with some of the same labels and taints.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

fn names() -> impl Strategy<Value = BTreeSet<String>> {
    let host = (
        prop::sample::select(vec!["gpu", "gpu-a", "cpu", "node", "ip-10-0", "x"]),
        prop::sample::select(vec!["-", "", "-b-", "."]),
        0_u8..13,
        prop::sample::select(vec!["", ".east.example", ".west.example"]),
    );
    let name = host.prop_map(|(stem, separator, number, domain)| format!("{stem}{separator}{number}{domain}"));
    prop::collection::btree_set(name, 1..14)
}

/// Labels of people, of programs, and values that YAML would read as something else.
fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    let keys = vec![
        "tier",
        "team.example.com/owner",
        "node-role.kubernetes.io/worker",
        "node-role.kubernetes.io/control-plane",
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "nvidia.com/gpu",
        "nvidia.com/gpu.product",
        "feature.node.kubernetes.io/x",
        "nodegate.dev/x",
        "y",
    ];
    let values = vec!["", "true", "on", "1.10", "0x1F", "null", "1e3", "gold", "a_b.c", "2026-11-22", "0o17"];
    prop::collection::btree_map(prop::sample::select(keys), prop::sample::select(values), 0..6)
        .prop_map(|labels| labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

fn taints() -> impl Strategy<Value = Vec<Value>> {
    let keys = vec![
        "dedicated",
        "nvidia.com/gpu",
        "node.kubernetes.io/not-ready",
        "nodegate.dev/pending",
        "readiness.k8s.io/nodegate",
        "tier",
        "y",
    ];
    let effects = vec!["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let id = (prop::sample::select(keys), prop::sample::select(effects));
    let values = prop::option::of(prop::sample::select(vec!["", "yes", "gpu", "7"]));
    prop::collection::btree_map(id, values, 0..4).prop_map(|taints| {
        let taint = |((key, effect), value): ((&str, &str), Option<&str>)| match value {
            Some(value) => json!({"key": key, "value": value, "effect": effect}),
            None => json!({"key": key, "effect": effect}),
        };
        taints.into_iter().map(taint).collect()
    })
}

/// A fleet whose nodes have one of a few sets of labels and taints, and a few labels of their own.
pub(super) fn fleets() -> impl Strategy<Value = Vec<Value>> {
    let pools = prop::collection::vec((labels(), taints()), 1..4);
    (names(), pools).prop_flat_map(|(names, pools)| {
        let each = (0..pools.len(), prop::option::weighted(0.2, labels()));
        prop::collection::vec(each, names.len()).prop_map(move |chosen| {
            let nodes = names.iter().zip(chosen).map(|(name, (pool, own))| {
                let (mut labels, taints) = pools[pool].clone();
                labels.extend(own.unwrap_or_default());
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}})
            });
            nodes.collect()
        })
    })
}
