//! Pending taints are nodegate's own, whatever their keys are: which one a node gets, and that no rule matches one.

use nodegate_policy::native::{NativeOptions, export};
use nodegate_policy::simulate::{Scene, Simulated, compile_inline, identity, simulate};
use nodegate_policy::{
    DecideContext, Exemptions, NodeFacts, Operation, PendingTaints, PolicySet, Requester, Text, Write, decide,
};
use serde_json::{Value, json};

use crate::evaluation::Policy;
use crate::native::desired;

const FOR_KARPENTER: &str = "readiness.k8s.io/nodegate:NoSchedule";
const FOR_OTHERS: &str = "startup-taint.cluster-autoscaler.kubernetes.io/nodegate:NoSchedule";
const PLAIN: &str = "nodegate.dev/pending:NoSchedule";

fn taints(key: &str) -> PendingTaints {
    PendingTaints::new(key.parse().unwrap())
}

/// A node that `requester` creates, if these are the pending taints.
fn created(set: &PolicySet, requester: &str, node: Value, pending: PendingTaints) -> Simulated {
    let (username, groups) = identity(requester, "n", &[]);
    let scene = Scene {
        username,
        groups,
        old: None,
        node: node.clone(),
        pending_taints: Some(pending),
        ..Scene::unchanged(&node)
    };
    simulate(set, &scene, &Exemptions::default()).unwrap()
}

fn node(labels: &Value, taints: &[&str]) -> Value {
    let taint = |id: &&str| {
        let (key, effect) = id.split_once(':').unwrap();
        json!({"key": key, "effect": effect})
    };
    json!({"metadata": {"name": "n", "labels": labels}, "spec": {"taints": taints.iter().map(taint).collect::<Vec<_>>()}})
}

fn taints_of(node: &Value) -> Vec<String> {
    let taint = |taint: &Value| format!("{}:{}", taint["key"].as_str().unwrap(), taint["effect"].as_str().unwrap());
    node["spec"]["taints"].as_array().unwrap().iter().map(taint).collect()
}

#[test]
fn rules_match_no_pending_taint() {
    let label = |taint: &str, key: &str| {
        let of = taint.split(':').next().unwrap();
        let set = compile_inline(&json!({"rules": [
            {"name": "tainted", "match": {"taints": [of]}, "labels": {"tainted": "true"}},
        ]}));
        created(&set.unwrap(), "admin", node(&json!({}), &[taint]), taints(key)).decision.labels.contains_key("tainted")
    };
    for key in ["auto", "example.com/wait", "nodegate.dev/pending"] {
        for known in [FOR_KARPENTER, FOR_OTHERS, PLAIN] {
            assert!(!label(known, key), "{known}: what an earlier setting gave counts neither ({key})");
        }
    }
    assert!(!label("example.com/wait:NoSchedule", "example.com/wait"));
    assert!(label("example.com/wait:NoSchedule", "auto"));
    assert!(label("example.com/wait:NoExecute", "example.com/wait"), "another effect");
    assert!(label("readiness.k8s.io/other:NoSchedule", "auto"), "another key");
}

#[test]
fn a_node_that_waits_gets_the_taint_that_its_autoscaler_knows_and_no_second_one() {
    let set = compile_inline(&json!({"rules": [
        {"name": "role", "labels": {"node-role.kubernetes.io/worker": ""}},
        {"name": "pool", "match": {"selector": {"matchLabels": {"adopted": "true"}}}, "labels": {"karpenter.sh/nodepool": "x"}},
    ]}))
    .unwrap();
    let given = |node: Value, key: &str| {
        let first = created(&set, "kubelet", node, taints(key));
        assert!(first.decision.pending);
        let again = created(&set, "kubelet", first.node.clone(), taints(key));
        assert_eq!(again.decision.change, None, "a second look wants nothing: {}", first.node);
        taints_of(&first.node)
    };
    let karpenter = json!({"karpenter.sh/nodepool": "default"});
    let unregistered = "karpenter.sh/unregistered:NoExecute";
    assert_eq!(given(node(&json!({}), &[]), "auto"), [FOR_OTHERS]);
    assert_eq!(given(node(&karpenter, &[]), "auto"), [FOR_KARPENTER]);
    assert_eq!(given(node(&json!({}), &[unregistered]), "auto"), [unregistered, FOR_KARPENTER]);
    assert_eq!(given(node(&json!({"adopted": "true"}), &[]), "auto"), [FOR_OTHERS], "a rule gives the label");
    assert_eq!(given(node(&karpenter, &[PLAIN]), "auto"), [PLAIN], "its kubelet brings one");
    assert_eq!(given(node(&karpenter, &[PLAIN]), "example.com/wait"), [PLAIN, "example.com/wait:NoSchedule"]);
}

#[test]
fn the_last_change_is_not_that_of_who_adds_or_removes_a_pending_taint() {
    let set = compile_inline(
        &json!({"governance": {"reserved": [{"namespaces": ["k8s.io", "*.k8s.io", "kubernetes.io", "*.kubernetes.io"],
        "allow": {"users": ["admin"]}}]}}),
    )
    .unwrap();
    for (id, counts) in [(FOR_KARPENTER, false), (FOR_OTHERS, false), ("readiness.k8s.io/other:NoSchedule", true)] {
        let (old, new) = (node(&json!({}), &[]).to_string(), node(&json!({}), &[id]).to_string());
        let write = Write {
            operation: Operation::Update,
            status: false,
            dry_run: false,
            evidence: None,
            requester: Requester { username: Text("admin".into()), ..Requester::default() },
            node: NodeFacts::parse(&new).unwrap(),
            old: Some(NodeFacts::parse(&old).unwrap()),
        };
        let context = DecideContext { records_last_change: true, ..DecideContext::default() };
        let decision = decide(&set, &write, &context);
        assert_eq!(decision.change.is_some(), counts, "{id}");
    }
}

#[test]
fn exported_rules_see_no_pending_taint() {
    let policy = json!({"rules": [
        {"name": "any", "match": {"expression": "node.spec.taints.size() > 0"}, "labels": {"any": "yes"}},
        {"name": "own", "match": {"taints": ["example.com/wait:NoSchedule"]}, "labels": {"own": "yes"}},
    ]});
    let options = |key: &str| NativeOptions {
        pending_taints: PendingTaints::new(key.parse().unwrap()),
        ..NativeOptions::default()
    };
    let labels = |key: &str, taint: &str| -> Vec<String> {
        let native = export(&compile_inline(&policy).unwrap(), &options(key));
        assert_eq!(native.left_out, []);
        let (key, effect) = taint.split_once(':').unwrap();
        let node = json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": key, "effect": effect}]}});
        let scene = Scene { old: None, ..Scene::unchanged(&node) };
        let [labels, ..] = desired(&Policy::all(&native.objects), &scene);
        labels.into_keys().collect()
    };
    for id in PendingTaints::default().all() {
        assert_eq!(labels("auto", &id.to_string()), [""; 0], "{id}");
    }
    assert_eq!(labels("auto", "example.com/wait:NoSchedule"), ["any", "own"]);
    assert_eq!(labels("example.com/wait", "example.com/wait:NoSchedule"), [""; 0]);
    assert_eq!(labels("auto", "readiness.k8s.io/nodegate:NoExecute"), ["any"], "another effect");
}
