//! `nodegate init` where the names of nodes say nothing: 300 nodes of EKS in six groups.

use std::path::Path;

use nodegate_policy::PolicySet;
use nodegate_policy::simulate::{Scene, identity, node_name, simulate};
use serde_json::{Value, json};

use super::{assert_changes_nothing, node, nodegate, printed};
use crate::shared::output::assert_conforms;

const NODE_GROUP: &str = "eks.amazonaws.com/nodegroup";
const ROLE: &str = "node-role.kubernetes.io/gpu";
/// A person reads this in a minute.
const LINES_MAX: usize = 100;

/// A group: name, instance type, zone, labels, whether its nodes are for GPU work only.
type Group = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)], bool);

const GROUPS: [Group; 6] = [
    ("gpu-a100", "p4d.24xlarge", "a", &[("tier", "gold"), ("team", "ml"), (ROLE, "")], true),
    ("gpu-l4", "g6.xlarge", "b", &[("tier", "silver"), ("team", "ml"), (ROLE, "")], true),
    ("web-a", "m5.large", "a", &[("tier", "bronze"), ("team", "shop")], false),
    ("web-b", "m5.large", "b", &[("tier", "bronze"), ("team", "shop")], false),
    ("batch", "c5.4xlarge", "c", &[("tier", "bronze"), ("team", "data")], false),
    ("system", "m5.large", "c", &[("team", "platform")], false),
];

fn name(group: usize, number: usize) -> String {
    format!("ip-10-0-{}-{}.eu-central-1.compute.internal", group * 16 + number / 7, number * 5 + group)
}

/// What a kubelet of the group says when its node joins.
fn joining(group: usize, number: usize) -> Value {
    let (group_name, instance_type, zone, _, _) = GROUPS[group];
    let name = name(group, number);
    let labels = json!({
        NODE_GROUP: group_name, "eks.amazonaws.com/capacityType": "ON_DEMAND",
        "node.kubernetes.io/instance-type": instance_type, "topology.kubernetes.io/zone": format!("eu-central-1{zone}"),
        "topology.kubernetes.io/region": "eu-central-1", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
    });
    let mut node = node(&name, &labels, &json!([]));
    node["spec"]["providerID"] = format!("aws:///eu-central-1{zone}/i-0{group}bc{number:013x}").into();
    node
}

/// The 300 nodes with what somebody has given them.
fn fleet() -> Value {
    let nodes = (0..300).map(|at| {
        let (group, number) = (at % 6, at / 6);
        let (_, _, _, labels, is_gpu) = GROUPS[group];
        let mut node = joining(group, number);
        for (key, value) in labels {
            node["metadata"]["labels"][key] = (*value).into();
        }
        if is_gpu {
            node["spec"]["taints"] = json!([{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]);
        }
        node
    });
    json!({"apiVersion": "v1", "kind": "List", "items": nodes.collect::<Vec<_>>()})
}

/// A directory with `nodes.json`.
fn with_nodes(nodes: &Value) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("nodes.json"), nodes.to_string()).unwrap();
    directory
}

/// Runs `init`, and returns standard output and standard error.
fn init(at: &Path, arguments: &[&str]) -> (String, String) {
    let output = nodegate(at, &[&["init", "nodes.json"], arguments].concat(), "");
    let (out, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {out}{error}");
    (out, error)
}

fn policy(at: &Path) -> String {
    std::fs::read_to_string(at.join("policy/policy.yaml")).unwrap()
}

/// The set that the file compiles to.
fn compiled(at: &Path) -> PolicySet {
    let policies = vec![at.join("policy/policy.yaml")];
    nodegate_stores::files::Sources { policies, ..Default::default() }.load().unwrap()
}

/// The node as it is stored, and the keys that the controller adds, if its kubelet creates it.
fn joined(set: &PolicySet, node: Value, extra: Option<Value>) -> (Value, Vec<String>) {
    let (username, groups) = identity("kubelet", node_name(&node), &[]);
    let scene = Scene { extra: extra.map(|extra| extra.to_string()), ..Scene::of(node, username, groups) };
    let simulated = simulate(set, &scene, &Default::default()).unwrap();
    let deferred = simulated.decision.deferred.iter().flat_map(|change| change.labels().keys().cloned());
    let deferred = deferred.collect();
    (simulated.node, deferred)
}

/// Asserts that the node of a group that joins next gets what the others have; what a kubelet may not set is deferred, or is
/// not given at all.
fn assert_next_is_labelled(set: &PolicySet, group: usize, gives_role: bool, extra: Option<Value>) {
    let (name, _, _, labels, is_gpu) = GROUPS[group];
    let (node, deferred) = joined(set, joining(group, 50), extra);
    for (key, value) in labels.iter().filter(|(key, _)| *key != ROLE) {
        assert_eq!(node["metadata"]["labels"][key], *value, "{name}: {node:#}");
    }
    assert!(node["metadata"]["labels"].get(ROLE).is_none(), "{node:#}");
    assert_eq!(deferred, if is_gpu && gives_role { vec![ROLE] } else { Vec::new() }, "{name}");
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let tainted = taints.map(|taint| &taint["key"]).any(|key| key == "nvidia.com/gpu");
    assert_eq!(tainted, is_gpu, "{name}: {node:#}");
}

#[test]
fn a_policy_for_300_nodes_in_six_groups_is_short_and_labels_the_next_node() {
    let directory = with_nodes(&fleet());
    let at = directory.path();
    let (out, said) = init(at, &[]);
    let text = policy(at);
    assert!(text.lines().count() <= LINES_MAX && !text.contains("ip-10-"), "{}: {text}", text.lines().count());
    assert!(out.contains(" web-a-and-web-b  100    eks.amazonaws.com/nodegroup=web-a, web-b "), "{out}");
    assert!(out.contains("review the labels in policy/policy.yaml"), "{out}");
    assert!(said.contains("the rules match the label eks.amazonaws.com/nodegroup"), "{said}");
    for choice in [
        "nodegate init nodes.json --force --by pool  # 6 groups, 300 nodes",
        "nodegate init nodes.json --force --by eks.amazonaws.com/nodegroup  # 6 groups, 300 nodes",
        "nodegate init nodes.json --force --by node.kubernetes.io/instance-type  # 4 groups, 300 nodes",
        "nodegate init nodes.json --force --by topology.kubernetes.io/zone  # 3 groups, 300 nodes",
    ] {
        assert!(said.contains(choice), "{choice}: {said}");
    }
    let (_, said) = init(at, &["--dir", "other", "--name", "x", "--include", "a/*"]);
    assert!(said.contains("nodegate init nodes.json --dir other --name x --include 'a/*' --force --by pool"), "{said}");
    assert_changes_nothing(at, "nodes.json");
    let set = compiled(at);
    assert_eq!(set.trusting_rules().count(), 0);
    (0..GROUPS.len()).for_each(|group| assert_next_is_labelled(&set, group, false, None));
    assert_eq!(text.matches("# Do you trust every kubelet").count(), 2, "one question for each GPU group: {text}");
}

#[test]
fn with_trust_the_next_node_gets_its_role_and_so_does_whoever_claims_the_group() {
    let directory = with_nodes(&fleet());
    let at = directory.path();
    let (_, said) = init(at, &["--by", NODE_GROUP, "--trust-kubelet"]);
    assert_eq!(said, "");
    assert_changes_nothing(at, "nodes.json");
    let text = policy(at);
    assert!(text.lines().count() <= LINES_MAX && text.contains("Your answer is yes"), "{text}");
    let set = compiled(at);
    assert_eq!(set.trusting_rules().collect::<Vec<_>>(), ["fleet/gpu-a100", "fleet/gpu-l4"]);
    (0..GROUPS.len()).for_each(|group| assert_next_is_labelled(&set, group, true, None));
}

#[test]
fn by_pool_the_role_of_the_machine_decides_and_not_what_its_kubelet_says() {
    let directory = with_nodes(&fleet());
    let at = directory.path();
    let (out, said) = init(at, &["--by", "pool", "-o", "json"]);
    assert_eq!(said, "");
    let summary: Value = serde_json::from_str(&out).unwrap();
    assert_conforms("init", &summary);
    assert_eq!(summary["rules"][0]["pools"], json!(["web-a", "web-b"]));
    assert_changes_nothing(at, "nodes.json");
    let text = policy(at);
    assert!(text.lines().count() <= LINES_MAX && text.contains("  - eks\n"), "{text}");
    let set = compiled(at);
    for (group, (name, ..)) in GROUPS.iter().enumerate() {
        let extra = json!({"canonicalArn": [format!("arn:aws:iam::111122223333:role/{name}")]});
        assert_next_is_labelled(&set, group, true, Some(extra));
    }
    // A machine of another group claims to be one for GPU work.
    let extra = json!({"canonicalArn": ["arn:aws:iam::111122223333:role/batch"]});
    let (stored, deferred) = joined(&set, joining(0, 50), Some(extra));
    assert!(deferred.is_empty() && stored["metadata"]["labels"]["tier"] == "bronze", "{deferred:?} {stored:#}");
    assert!(
        stored["metadata"]["labels"].get(ROLE).is_none()
            && stored["spec"]["taints"].as_array().is_none_or(Vec::is_empty),
        "{stored:#}"
    );
}

#[test]
fn what_by_takes_is_checked_and_errors_name_what_there_is() {
    let directory = with_nodes(&fleet());
    let at = directory.path();
    let bare = json!({"kind": "List", "items": [node("a", &json!({"pool": "x", "tier": "gold"}), &json!([]))]});
    std::fs::write(at.join("bare.json"), bare.to_string()).unwrap();
    let hosts: Vec<Value> =
        (0..30).map(|at| node(&format!("ip-10-0-0-{at}"), &json!({"tier": "gold"}), &json!([]))).collect();
    std::fs::write(at.join("hosts.json"), json!({"kind": "List", "items": hosts}).to_string()).unwrap();
    for (arguments, expected) in [
        (
            &["nodes.json", "--by", "absent"] as &[&str],
            "--by: no node has the label absent; use --by pool (6 groups), --by eks",
        ),
        (&["nodes.json", "--by", "kubernetes.io/hostname"], "has 300 values on 300 nodes"),
        (&["nodes.json", "--by", "a b"], "\"a b\" is not a valid label key"),
        (&["nodes.json", "--by", "pool", "--by", NODE_GROUP], "write --by label:pool"),
        (&["nodes.json", "--by", "pool", "--trust-kubelet"], "--trust-kubelet has no effect with --by pool"),
        (&["nodes.json", "--trust-kubelet"], "--by"),
        (&["bare.json", "--by", "pool"], "no node has the labels of Karpenter, EKS node groups or AKS"),
        (&["hosts.json"], "too little in common for rules, so no file was written; use --by KEY"),
    ] {
        let output = nodegate(at, &[&["init"], arguments].concat(), "");
        let said = String::from_utf8(output.stderr).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert!(!at.join("policy").exists(), "{arguments:?}");
    }
    printed(at, &["init", "bare.json", "--by", "label:pool"], 0);
    assert!(policy(at).contains("        matchLabels:\n          pool: x\n"), "{}", policy(at));
}

#[test]
fn odd_ones_out_are_at_the_end_of_the_policy_and_counted_in_the_summary() {
    let mut nodes = fleet();
    nodes["items"][1]["metadata"]["labels"]["tier"] = "slver".into();
    let directory = with_nodes(&nodes);
    let at = directory.path();
    let (out, _) = init(at, &[]);
    assert!(out.contains("; 2 odd ones out are at the end of policy/policy.yaml\n"), "{out}");
    let text = policy(at);
    let (_, odd) = text.split_once("# Odd ones out, which may be mistakes:\n").unwrap();
    let odd = odd.replace("\n# ", " ");
    let name = nodes["items"][1]["metadata"]["name"].as_str().unwrap();
    assert!(odd.contains(&format!("{name} has tier=slver; the other 49 nodes of gpu-l4 have tier=silver")), "{odd}");
    assert!(odd.contains("label tier is \"slver\" on 1 node, and \"silver\" on 49 nodes"), "{odd}");
    assert_changes_nothing(at, "nodes.json");
}
