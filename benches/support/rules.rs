//! Rules of several kinds, for measuring.

use serde_json::{Value, json};

/// `count` rules over names, prefix globs, `In` and `Exists` selectors; five match the reviewed node.
pub(crate) fn rules(count: usize) -> Vec<Value> {
    let matching = [
        json!({"name": "m0", "match": {"names": ["bench-node"]}, "labels": {"hardware.tier": "gold"}}),
        json!({"name": "m1", "match": {"names": ["bench-*"]}, "labels": {"team": "platform"}}),
        json!({"name": "m2", "match": {"selector": {"matchLabels": {"pool": "gpu"}}}, "labels": {"accelerator": "nvidia-gpu"}}),
        json!({"name": "m3", "match": {"selector": {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}}, "labels": {"pooled": "true"}}),
        json!({"name": "m4", "match": {"names": ["bench-node"]}, "taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]}),
    ];
    let others = (matching.len()..count).map(|at| {
        let condition = match at % 4 {
            0 => json!({"names": [format!("node-{at}")]}),
            1 => json!({"names": [format!("rack-{at}-*")]}),
            2 => json!({"selector": {"matchExpressions": [{"key": "pool", "operator": "In", "values": [format!("pool-{at}")]}]}}),
            _ => json!({"selector": {"matchExpressions": [{"key": format!("example.com/key-{at}"), "operator": "Exists"}]}}),
        };
        json!({"name": format!("r{at}"), "match": condition, "labels": {format!("label-{at}"): "x"}})
    });
    matching.iter().cloned().chain(others).collect()
}
