//! Gates on a node that is stored.

use serde_json::json;

use super::scene::{Scene, set};
use crate::reconcile::gates_of;

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

#[test]
fn a_node_of_a_topology_waits_for_every_level_and_its_kubelet_may_set_none() {
    let zone = "topology.kubernetes.io/zone";
    let set = set(json!({"topologies": [
        {"name": "fabric", "match": {"names": ["n*"]}, "levels": [zone, "block", "rack"], "timeout": "1m", "onTimeout": "keep"},
        {"name": "power", "levels": ["feed"]},
        {"name": "other", "match": {"names": ["m*"]}, "levels": ["row"]},
    ]}));
    let protected: Vec<&str> =
        [zone, "block", "rack", "feed"].into_iter().filter(|key| set.is_protected(key)).collect();
    assert_eq!(protected, ["block", "rack", "feed"], "the zone is what kubelets maintain");
    assert_eq!(set.guarding().collect::<Vec<_>>(), ["p"], "the guard has to know them");
    let levels: Vec<usize> = set.gate_labels().map(|topology| topology.labels.len()).collect();
    assert_eq!(levels, [3, 1, 1]);
    let taint = json!([{"key": "nodegate.dev/pending", "effect": "NoSchedule"}]);
    let labels = json!({zone: "z", "rack": "7", "feed": "a"});
    Scene::new(labels).tainted(taint).keep(&set, |plan| {
        let [gate] = plan.decision.gates.as_slice() else { panic!("{:?}", plan.decision.gates) };
        assert_eq!((gate.id.to_string(), gate.missing.join(" ")), ("p/topology:fabric".to_owned(), "block".to_owned()));
        assert_eq!((gate.timeout.as_secs(), gate.on_timeout.as_str()), (60, "keep"));
        assert!(!plan.lifts_pending);
    });
    Scene::new(json!({})).with_stored(|stored| {
        let topologies: Vec<String> = gates_of(&set, stored).iter().map(ToString::to_string).collect();
        assert_eq!(topologies, ["p/topology:fabric", "p/topology:power"]);
    });
}
