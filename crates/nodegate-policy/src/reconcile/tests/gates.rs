//! Gates on a node that is stored.

use serde_json::json;

use super::scene::{Scene, set};

#[test]
fn a_pending_node_keeps_its_taint_until_it_has_passed_every_gate() {
    let set = set(json!({"gates": [
        {"name": "rack", "labels": ["rack", "row"]},
        {"name": "other", "match": {"names": ["gpu-*"]}, "labels": ["never"]},
        {"name": "doubtful", "match": {"expression": "node.metadata.labels[\"kind\"] == \"gpu\""}, "labels": ["driver"]},
    ]}));
    let taint = json!([{"key": "nodegate.dev/pending", "effect": "NoSchedule"}]);
    let gates = |labels: serde_json::Value, taints: &serde_json::Value| {
        let mut found = Vec::new();
        Scene::new(labels).tainted(taints.clone()).keep(&set, |plan| {
            found = plan.decision.gates.iter().map(|gate| format!("{} {}", gate.id, gate.missing.join(" "))).collect();
            found.push(plan.lifts_pending.to_string());
        });
        found
    };
    // Where it is not known whether a gate counts, it does.
    assert_eq!(gates(json!({"row": "1"}), &taint), ["p/gate:rack rack", "p/gate:doubtful driver", "false"]);
    assert_eq!(gates(json!({"row": "1", "kind": "cpu"}), &taint), ["p/gate:rack rack", "false"]);
    assert_eq!(gates(json!({"row": "1", "rack": "", "kind": "cpu"}), &taint), ["true"]);
    assert_eq!(gates(json!({}), &json!([])), ["false"], "a node that runs pods is at no gate");
}
