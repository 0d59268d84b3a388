//! A first policy compiles, its tests pass, and it changes nothing on the nodes that it was made from.

mod groups;
mod strategies;

use std::collections::{BTreeMap, BTreeSet};

use nodegate_policy::api::case::PolicyTest;
use nodegate_policy::api::schema::{check, schema_of};
use nodegate_policy::api::source::{FieldPath, parse_documents};
use nodegate_policy::api::state::SavedState;
use nodegate_policy::init::{By, FirstPolicy, FleetNode, Included, InitError, Wishes, first_policy};
use nodegate_policy::simulate::{Scene, identity, node_name, node_of, run_case, simulate};
use nodegate_policy::{
    Claims, Exemptions, Field, NodeFacts, Origin, PendingTaints, PolicyDocument, PolicySet, StoredNode, plan_reconcile,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use strategies::fleets;

fn fleet(nodes: &[Value]) -> Vec<FleetNode> {
    nodes.iter().map(|node| FleetNode::of(&NodeFacts::parse(&node.to_string()).unwrap())).collect()
}

fn of_nodes(nodes: &[Value]) -> Result<FirstPolicy, InitError> {
    first_policy(&fleet(nodes), &Wishes::default())
}

/// The set that the policy's file compiles to, which trusts no kubelet. It has no fault and no warning.
fn compiled(first: &FirstPolicy) -> PolicySet {
    let (set, trusting) = compiled_with_trust(first);
    assert_eq!(trusting, 0, "{:#?}", first.rules);
    set
}

/// The set that the policy's file compiles to, and the number of its rules that trust kubelets. It has no fault and no warning.
fn compiled_with_trust(first: &FirstPolicy) -> (PolicySet, usize) {
    let set = set_of(&first.policy_yaml("fleet", "nodepolicy.schema.json").unwrap());
    let trusting = set.trusting_rules().count();
    (set, trusting)
}

/// The set that a policy compiles to. It has no fault and no warning.
fn set_of(yaml: &str) -> PolicySet {
    let mut errors = Vec::new();
    let documents = PolicyDocument::parse_all(&Origin::File("policy.yaml".to_owned()), yaml, &mut errors);
    assert!(errors.is_empty(), "{errors:#?}\n{yaml}");
    let set = PolicySet::compile(&documents).unwrap_or_else(|errors| panic!("{errors:#?}\n{yaml}"));
    // Two globs may both match a node that joins later, and that is told.
    let lints = set.lints().into_iter().filter(|lint| !lint.fault.problem.what.contains("whose names match"));
    assert_eq!(lints.collect::<Vec<_>>(), [], "{yaml}");
    set
}

/// The tests as their file has them.
fn tests(first: &FirstPolicy) -> PolicyTest {
    let yaml = first.test_yaml("policy.yaml", "policytest.schema.json").unwrap();
    let mut trees = parse_documents(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    let mut faults = Vec::new();
    check(&mut trees[0], &schema_of::<PolicyTest>(), &FieldPath::root(), &mut faults);
    assert!(faults.is_empty(), "{faults:#?}\n{yaml}");
    serde_json::from_value(trees[0].to_json()).unwrap()
}

/// Asserts that the controller changes nothing on a stored node, whether it has seen the node before or not. It removes only
/// the pending taint, which it does by any policy.
fn assert_the_controller_changes_nothing(set: &PolicySet, node: &Value) {
    let text = node.to_string();
    let facts = NodeFacts::parse(&text).unwrap();
    let pending = PendingTaints::default();
    for registered in [true, false] {
        let stored = StoredNode {
            pools: None,
            version: None,
            inventory: None,
            devices: None,
            node: &facts,
            claims: &Claims::default(),
            saved: &SavedState::default(),
            registered,
            identified: true,
            pending: &pending,
            adopt: false,
            patched_taints: &BTreeSet::new(),
            elsewhere: Default::default(),
            evidence: None,
        };
        if let Some(change) = plan_reconcile(set, &stored).change(|_| true, |_, _| false) {
            let others = change.taints().keys().any(|id| !pending.all().contains(id));
            let labels: Vec<&String> = change.labels().keys().filter(|key| !key.starts_with("nodegate.dev/")).collect();
            assert!(labels.is_empty() && !others && change.annotations().is_empty(), "{change:#?} on {node:#}");
        }
    }
}

/// Asserts what holds for every first policy.
fn assert_holds(nodes: &[Value], first: &FirstPolicy) {
    let (set, test) = (compiled(first), tests(first));
    assert_eq!(test.cases, first.cases);
    // Also with the labels protected that it proposes.
    let yaml = first.policy_yaml("fleet", "nodepolicy.schema.json").unwrap();
    let protecting = set_of(&yaml.replacen("\n  # protect:", "\n  protect:", 1));
    for case in &test.cases {
        let node = || node_of(case).unwrap().unwrap();
        assert_eq!(run_case(&set, case, node()).unwrap(), [""; 0], "{case:#?}\n{:#?}", first.rules);
        assert_eq!(run_case(&protecting, case, node()).unwrap(), [""; 0], "{case:#?}\n{yaml}");
    }
    let left_out: BTreeSet<(Field, &str)> = first.left_out.iter().map(|out| (out.field, out.key.as_str())).collect();
    for node in nodes {
        assert_the_controller_changes_nothing(&set, node);
        for (requester, old) in [("admin", Some(node.clone())), ("admin", None), ("kubelet", None)] {
            let (username, groups) = identity(requester, node_name(node), &[]);
            let scene = Scene { old, ..Scene::of(node.clone(), username, groups) };
            let simulated = simulate(&set, &scene, &Exemptions::default()).unwrap();
            let decision = &simulated.decision;
            // A kubelet may not send a key of nodegate's own, whatever the policies say.
            let own = |key: &String| key.starts_with("nodegate.dev/");
            let change =
                decision.change.iter().find(|change| !change.labels().keys().all(own) || !change.taints().is_empty());
            assert!(change.is_none() && decision.deferred.is_none(), "{requester}: {decision:#?} on {node:#}");
            for (key, value) in node["metadata"]["labels"].as_object().into_iter().flatten() {
                let given = decision.labels.get(key).map(|desired| desired.value.as_str());
                assert!(given == value.as_str() || left_out.contains(&(Field::Label, key)), "label {key} of {node:#}");
            }
            for taint in node["spec"]["taints"].as_array().into_iter().flatten() {
                let key = taint["key"].as_str().unwrap();
                let given =
                    decision.taints.keys().any(|id| id.key.as_str() == key && taint["effect"] == id.effect.as_str());
                assert!(given || left_out.contains(&(Field::Taint, key)), "taint {key} of {node:#}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_first_policy_loads_and_changes_nothing(nodes in fleets()) {
        let first = of_nodes(&nodes).unwrap();
        assert_holds(&nodes, &first);
        let mut reversed = nodes;
        reversed.reverse();
        prop_assert_eq!(of_nodes(&reversed).unwrap(), first);
    }

    #[test]
    fn a_first_policy_by_labels_loads_and_changes_nothing(nodes in fleets()) {
        for keys in [&["tier"] as &[&str], &["y", "tier"], &["nvidia.com/gpu"], &["topology.kubernetes.io/zone", "y"]] {
            let by = By::Labels(keys.iter().map(|key| (*key).to_owned()).collect());
            match first_policy(&fleet(&nodes), &Wishes { by, ..Wishes::default() }) {
                Ok(first) => assert_holds(&nodes, &first),
                Err(error) => prop_assert!(matches!(error, InitError::NoSuchKey(..)), "{error:?}"),
            }
        }
    }
}

fn node(name: &str, labels: &Value, taints: &[&str]) -> Value {
    let taints: Vec<Value> = taints.iter().map(|text| nodegate_policy::simulate::taint(text).unwrap()).collect();
    json!({"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}})
}

const POLICY: &str = "\
# yaml-language-server: $schema=nodepolicy.schema.json
# What `nodegate init` found on 4 nodes. Review the names: a glob such as gpu-* also matches nodes that join later.
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata:
  name: fleet
spec:
  presets:
  - baseline
  # Kubelets may set these labels themselves, also on nodes that no rule gives them. If none has a reason to, use this:
  # protect: {keys: [team, tier]}
  rules:
  - name: cpu-1-and-gpu
    match:
      names:
      - cpu-1
      - gpu-*
    labels:
      team: ml
  - name: gpu
    match:
      names:
      - gpu-*
    labels:
      node-role.kubernetes.io/gpu: \"\"
      tier: \"on\"
    taints:
    - key: dedicated
      value: gpu
      effect: NoSchedule
";

const TEST: &str = "\
# yaml-language-server: $schema=policytest.schema.json
apiVersion: nodegate.dev/v1alpha1
kind: PolicyTest
policies:
- policy.yaml
cases:
- name: cpu-1 joins with its labels
  node:
    name: cpu-1
  expect:
    labels:
      team: ml
    absent:
    - dedicated
    - node-role.kubernetes.io/gpu
    - tier
    deferred: []
    verdict: allow
";

#[test]
fn nodes_with_the_same_labels_and_taints_share_a_rule() {
    let gpu = json!({"tier": "on", "team": "ml", "node-role.kubernetes.io/gpu": "", "kubernetes.io/hostname": "x"});
    let nodes = [
        node("gpu-1", &gpu, &["dedicated=gpu:NoSchedule", "node.kubernetes.io/not-ready:NoSchedule"]),
        node("gpu-2", &gpu, &["dedicated=gpu:NoSchedule"]),
        node("cpu-1", &json!({"team": "ml"}), &[]),
        node("cpu-2", &json!({}), &[]),
    ];
    let first = of_nodes(&nodes).unwrap();
    assert_holds(&nodes, &first);
    assert_eq!(first.policy_yaml("fleet", "nodepolicy.schema.json").unwrap(), POLICY);
    let tests = first.test_yaml("policy.yaml", "policytest.schema.json").unwrap();
    assert!(tests.starts_with(TEST), "{tests}");
    let titles: Vec<&str> = first.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(
        titles,
        [
            "cpu-1 joins with its labels",
            "gpu-1 joins with its labels and taints",
            "gpu-1 gets the labels that a kubelet may not set from anyone else",
            "cpu-2, which no rule matches, gets nothing",
        ]
    );
    let left_out: Vec<(&str, usize, &str)> =
        first.left_out.iter().map(|out| (out.key.as_str(), out.nodes, out.reason.as_str())).collect();
    assert_eq!(
        left_out,
        [
            ("kubernetes.io/hostname", 2, "the kubelet sets it for each machine"),
            ("node.kubernetes.io/not-ready", 1, "the node lifecycle controller sets it for a moment"),
        ]
    );
}

/// The keys that are left out, with the reason.
fn left_out(nodes: &[Value]) -> BTreeMap<String, String> {
    let first = of_nodes(nodes).unwrap();
    assert_holds(nodes, &first);
    first.left_out.into_iter().map(|out| (out.key, out.reason)).collect()
}

#[test]
fn a_label_with_a_different_value_on_every_node_is_left_out() {
    let fleet = |count: usize, values: usize| -> Vec<Value> {
        let rack = |number: usize| char::from(b'a' + u8::try_from(number % values).unwrap());
        let labels = |number: usize| json!({"place": format!("rack-{}", rack(number)), "pool": "p"});
        (0..count).map(|number| node(&format!("n{number}"), &labels(number), &[])).collect()
    };
    assert!(left_out(&fleet(2, 2)).is_empty(), "two nodes say nothing");
    assert_eq!(left_out(&fleet(3, 3))["place"], "it has a different value on each of 3 nodes");
    assert!(left_out(&fleet(4, 3)).is_empty());
    let mut some = fleet(3, 3);
    some.extend((0..4).map(|number| node(&format!("x{number}"), &json!({"pool": "p"}), &[])));
    assert!(left_out(&some).is_empty(), "most nodes do not have it");
    let mut most = fleet(25, 25);
    most.push(node("y", &json!({"place": "rack-a"}), &[]));
    assert_eq!(left_out(&most)["place"], "it has a different value on most nodes");
}

#[test]
fn values_that_look_like_those_of_one_machine_are_left_out_with_the_reason() {
    let of = |number: usize| {
        let labels = json!({
            "acme.example/worker": format!("w-0a1b2c3d4e{number}"), "acme.example/addr": format!("10.0.0.{number}"),
            "acme.example/image": "base-2024.10.3", "acme.example/built": "20240131", "team": "ml",
        });
        node(
            &format!("n{number}"),
            &labels,
            &[&format!("maintenance=17174304{number}0:NoSchedule"), "dedicated=ml:NoSchedule"],
        )
    };
    let left_out = left_out(&[of(1), of(2)]);
    let looks = |key: &str| left_out[key].strip_prefix("its value looks like ").unwrap().to_owned();
    assert_eq!(looks("acme.example/worker"), "an ID");
    assert_eq!(looks("acme.example/addr"), "an address");
    assert_eq!(looks("acme.example/image"), "a version");
    assert_eq!(looks("acme.example/built"), "a time");
    assert_eq!(looks("maintenance"), "a time");
    assert_eq!(left_out.len(), 5);
}

#[test]
fn values_that_change_with_the_machine_are_left_out_with_the_reason() {
    let of = |name: &str, id: &str| {
        let labels = json!({
            "acme.example/self": name, "acme.example/vm": id, "acme.example/place": "fra",
            "topology.kubernetes.io/region": "fra", "team": "ml",
        });
        let mut node = node(name, &labels, &[]);
        node["spec"]["providerID"] = format!("acme://fra/{id}").into();
        node
    };
    let left_out = left_out(&[of("alpha", "one"), of("beta", "two")]);
    let named = "its value changes with the machine: it is the node's name or provider ID";
    assert_eq!((left_out["acme.example/self"].as_str(), left_out["acme.example/vm"].as_str()), (named, named));
    let copied = "its value changes with the machine: it is that of topology.kubernetes.io/region";
    assert_eq!((left_out["acme.example/place"].as_str(), left_out.len()), (copied, 4));
}

#[test]
fn a_key_that_is_included_is_in_the_policy_unless_no_policy_may_assign_it() {
    let labels =
        json!({"acme.example/worker-id": "w1", "agentpool": "a", "kubernetes.io/hostname": "n", "nodegate.dev/x": "1"});
    let nodes = [node("n", &labels, &["readiness.k8s.io/nodegate:NoSchedule"])];
    let included =
        Included::parse(["acme.example/*", "agentpool", "kubernetes.io/hostname", "nodegate.dev/*"]).unwrap();
    let first = first_policy(&fleet(&nodes), &Wishes { included, ..Wishes::default() }).unwrap();
    let rule = &first.rules[0].rule;
    assert_eq!(rule.labels.keys().collect::<Vec<_>>(), ["acme.example/worker-id", "agentpool"]);
    let left_out: Vec<&str> = first.left_out.iter().map(|out| out.key.as_str()).collect();
    assert_eq!(left_out, ["kubernetes.io/hostname", "nodegate.dev/x", "readiness.k8s.io/nodegate"]);
    assert!(Included::parse(["acme*"]).is_err());
}

#[test]
fn what_no_cluster_would_store_is_left_out_or_refused() {
    let nodes = [node("a", &json!({"a b": "x", "c": "-", "ok": "x"}), &["t=-:NoSchedule", "t:Never"])];
    let first = of_nodes(&nodes).unwrap();
    assert_holds(&nodes, &first);
    assert_eq!((first.rules.len(), first.left_out.len()), (1, 4), "{first:#?}");
    assert_eq!(of_nodes(&[]), Err(InitError::NoNodes));
    assert_eq!(of_nodes(&[node("a*", &json!({}), &[])]), Err(InitError::Name("a*".to_owned())));
    let twice = [node("a", &json!({"x": "1"}), &[]), node("a", &json!({"x": "2"}), &[])];
    assert_eq!(of_nodes(&twice), Err(InitError::Twice("a".to_owned())));
    assert_eq!(of_nodes(&[nodes[0].clone(), nodes[0].clone()]).unwrap(), first);
}

#[test]
fn no_glob_matches_a_node_of_which_only_the_name_is_known() {
    let known = fleet(&[node("gpu-1", &json!({"tier": "x"}), &[]), node("gpu-2", &json!({"tier": "x"}), &[])]);
    let names = |nodes: &[FleetNode]| {
        let first = first_policy(nodes, &Wishes::default()).unwrap();
        first.rules[0].rule.match_.clone().unwrap().conditions.names.unwrap()
    };
    assert_eq!(names(&known), ["gpu-*"]);
    assert_eq!(names(&[known, vec![FleetNode::named("gpu-3")]].concat()), ["gpu-1", "gpu-2"]);
}

#[test]
fn pending_taints_are_left_out_whatever_their_keys_are() {
    let keys = [
        "startup.example.com/wait",
        "readiness.k8s.io/nodegate",
        "startup-taint.cluster-autoscaler.kubernetes.io/nodegate",
        "nodegate.dev/pending",
    ];
    let taints: Vec<String> = keys.iter().chain(&["dedicated"]).map(|key| format!("{key}:NoSchedule")).collect();
    let nodes = fleet(&[node("a", &json!({}), &taints.iter().map(String::as_str).collect::<Vec<_>>())]);
    let pending = PendingTaints::new("startup.example.com/wait".parse().unwrap());
    let first = first_policy(&nodes, &Wishes { pending, ..Wishes::default() }).unwrap();
    assert_eq!(first.rules[0].rule.taints.len(), 1);
    assert_eq!(first.left_out.len(), keys.len());
    for left_out in first.left_out {
        assert_eq!(left_out.reason, "it is the pending taint, which the controller removes", "{}", left_out.key);
    }
}
