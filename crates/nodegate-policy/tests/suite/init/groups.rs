//! First policies for nodes whose names say nothing: by a label, and by pools.

use nodegate_policy::init::{By, FirstPolicy, InitError, Wishes, first_policy};
use nodegate_policy::simulate::{node_of, run_case};
use serde_json::{Value, json};

use super::{assert_holds, compiled_with_trust, fleet, node};

const NODE_GROUP: &str = "eks.amazonaws.com/nodegroup";

/// A node of EKS. Its name is an address.
fn of_group(group: &str, number: usize, more: &Value, taints: &[&str]) -> Value {
    let mut labels = json!({NODE_GROUP: group, "team": "ml"});
    labels.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    node(&format!("ip-10-0-{}-{number}.eu-central-1.compute.internal", group.len()), &labels, taints)
}

/// 30 GPU nodes with a role and a taint, and 30 others in two groups that have the same.
fn on_eks() -> Vec<Value> {
    let gpu = json!({"tier": "gold", "node-role.kubernetes.io/gpu": ""});
    let gpus = (0..30).map(|at| of_group("gpu-l4", at, &gpu, &["dedicated=gpu:NoSchedule"]));
    let others = (0..30).map(|at| of_group(["blue", "green"][at % 2], at, &json!({"tier": "tin"}), &[]));
    gpus.chain(others).collect()
}

fn by(nodes: &[Value], by: By) -> Result<FirstPolicy, InitError> {
    first_policy(&fleet(nodes), &Wishes { by, ..Wishes::default() })
}

fn label(key: &str) -> By {
    By::Labels(vec![key.to_owned()])
}

fn yaml(first: &FirstPolicy) -> String {
    first.policy_yaml("fleet", "nodepolicy.schema.json").unwrap()
}

const BY_LABEL: &str = "  rules:
  - name: blue-and-green
    match:
      selector:
        matchExpressions:
        - key: eks.amazonaws.com/nodegroup
          operator: In
          values:
          - blue
          - green
    labels:
      team: ml
      tier: tin
  # Do you trust every kubelet not to claim this value of eks.amazonaws.com/nodegroup? The answer here is no, so the
  # rule does not give what kubelets may not set: node-role.kubernetes.io/gpu=\"\". If it is yes, use --trust-kubelet.
  # With --by pool there is nothing to trust.
  - name: gpu-l4
    match:
      selector:
        matchLabels:
          eks.amazonaws.com/nodegroup: gpu-l4
    labels:
      team: ml
      tier: gold
    taints:
    - key: dedicated
      value: gpu
      effect: NoSchedule
";

#[test]
fn where_names_say_nothing_rules_match_the_label_of_the_node_group() {
    let nodes = on_eks();
    let first = by(&nodes, By::Auto).unwrap();
    assert_holds(&nodes, &first);
    let text = yaml(&first);
    assert!(text.ends_with(BY_LABEL), "{text}");
    assert!(first.names_say_nothing && text.contains("addresses") && text.contains("--by pool (3 groups)"), "{text}");
    let titles: Vec<&str> = first.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(
        titles,
        [
            "a node with eks.amazonaws.com/nodegroup=blue joins with its labels",
            "a node with eks.amazonaws.com/nodegroup=gpu-l4 joins with its labels and taints",
            "a node without the label eks.amazonaws.com/nodegroup gets nothing",
        ]
    );
    // The attacker's case: whoever claims the group is not given the role.
    assert_eq!(first.cases[1].expect.absent, ["node-role.kubernetes.io/gpu"]);
    assert_eq!(first.cases[1].expect.deferred, Some(Vec::new()));
    let withheld = first.left_out.iter().find(|out| out.key == "node-role.kubernetes.io/gpu").unwrap();
    assert!(withheld.nodes == 30 && withheld.reason.contains("--trust-kubelet"), "{withheld:?}");
    // The same, asked for.
    assert_eq!(by(&nodes, label(NODE_GROUP)).unwrap().rules, first.rules);
}

#[test]
fn names_that_mean_something_stay_in_the_rules() {
    let named: Vec<Value> =
        (0..30).map(|at| node(&format!("gpu-{at}"), &json!({"tier": "gold", NODE_GROUP: "gpu-l4"}), &[])).collect();
    let first = by(&named, By::Auto).unwrap();
    assert!(!first.names_say_nothing && first.rules[0].names() == ["gpu-*"], "{first:#?}");
    // Addresses without any label that groups them: a few are listed, many are not.
    let of = |count: usize| -> Vec<Value> {
        (0..count).map(|at| node(&format!("ip-10-0-0-{at}.x.internal"), &json!({"tier": "gold"}), &[])).collect()
    };
    let (few, many) = (by(&of(3), By::Auto).unwrap(), by(&of(30), By::Auto).unwrap());
    assert_holds(&of(30), &many);
    assert!(few.names_say_nothing && few.rules[0].names().len() == 3, "{few:#?}");
    assert!(many.rules.is_empty() && many.left_out[0].reason.contains("use --by KEY"), "{many:#?}");
}

#[test]
fn with_trust_a_rule_by_label_gives_what_kubelets_may_not_set() {
    let nodes = on_eks();
    let wishes = Wishes { by: label(NODE_GROUP), trust_kubelet: true, ..Wishes::default() };
    let first = first_policy(&fleet(&nodes), &wishes).unwrap();
    let (set, trusting) = compiled_with_trust(&first);
    assert_eq!(trusting, 1);
    let rule = first.rules.iter().find(|rule| rule.rule.trust_kubelet == Some(true)).unwrap();
    assert_eq!(rule.rule.labels["node-role.kubernetes.io/gpu"], "");
    let text = yaml(&first);
    let question = "\n  # Do you trust every kubelet not to claim this value of eks.amazonaws.com/nodegroup? Your answer is yes (--trust-kubelet): ";
    assert!(text.contains("\n  # Do you trust") && text.replace("\n  # (", " (").contains(question), "{text}");
    assert!(first.cases.iter().any(|case| case.name.ends_with("from anyone else")), "{:#?}", first.cases);
    for case in &first.cases {
        assert_eq!(run_case(&set, case, node_of(case).unwrap().unwrap()).unwrap(), [""; 0], "{case:#?}");
    }
}

#[test]
fn rules_by_pool_give_everything_and_trust_nobody() {
    let karpenter = |pool: &str, number: usize| {
        let labels = json!({"karpenter.sh/nodepool": pool, "node-role.kubernetes.io/batch": ""});
        node(&format!("ip-10-1-0-{number}.x.internal"), &labels, &[])
    };
    let aks = |number: usize| {
        let labels = json!({"kubernetes.azure.com/agentpool": "win", "tier": "tin"});
        node(&format!("aks-win-12345678-vmss00000{number}"), &labels, &[])
    };
    let nodes: Vec<Value> =
        on_eks().into_iter().chain((0..4).map(|at| karpenter("batch", at))).chain((0..4).map(aks)).collect();
    let first = by(&nodes, By::Pool).unwrap();
    let (set, trusting) = compiled_with_trust(&first);
    assert_eq!(trusting, 0);
    for case in &first.cases {
        assert_eq!(run_case(&set, case, node_of(case).unwrap().unwrap()).unwrap(), [""; 0], "{case:#?}");
    }
    let text = yaml(&first);
    assert!(text.contains("  presets:\n  - baseline\n  - karpenter\n  - eks\n  - aks\n"), "{text}");
    assert!(
        text.contains(
            "    match:\n      pools:\n      - gpu-l4\n    labels:\n      node-role.kubernetes.io/gpu: \"\"\n"
        ),
        "{text}"
    );
    assert!(text.contains("IAM role"), "on EKS the pool is the role, which is told: {text}");
    let claims = first.cases.iter().filter(|case| case.name.contains("only says it is of pool")).count();
    assert_eq!((first.rules.len(), claims), (4, 4));

    let bare: Vec<Value> = (0..3).map(|at| node(&format!("n{at}"), &json!({"tier": "gold"}), &[])).collect();
    let error = by(&bare, By::Pool).unwrap_err().to_string();
    assert!(error.contains("Karpenter") && error.contains("--by KEY"), "{error}");
}

#[test]
fn a_key_that_does_not_group_the_nodes_is_an_error_that_names_those_that_do() {
    let mut nodes = on_eks();
    for (at, node) in nodes.iter_mut().enumerate() {
        node["metadata"]["labels"]["serial"] = format!("s{at}").into();
    }
    let error = |key: &str| by(&nodes, label(key)).unwrap_err().to_string();
    assert!(error("absent").contains("no node has the label absent; use --by pool (3 groups) or --by eks."));
    assert!(error("serial").contains("60 values on 60 nodes") && error("serial").contains(NODE_GROUP));
    assert!(error("a b").contains("\"a b\" is not a valid label key"));
}

#[test]
fn a_node_is_in_the_group_of_the_first_key_that_it_has() {
    let mut nodes: Vec<Value> = (0..10).map(|at| of_group("system", at, &json!({"tier": "tin"}), &[])).collect();
    for at in 10..40 {
        let labels = json!({"karpenter.sh/nodepool": "batch", "team": "ml", "tier": "gold"});
        nodes.push(node(&format!("ip-10-0-6-{at}.eu-central-1.compute.internal"), &labels, &[]));
    }
    let first = by(&nodes, By::Auto).unwrap();
    assert_holds(&nodes, &first);
    let keys: Vec<&str> =
        first.rules.iter().map(|rule| rule.groups.as_ref().unwrap().key.as_deref().unwrap()).collect();
    assert_eq!(keys, ["karpenter.sh/nodepool", NODE_GROUP]);
    let text = yaml(&first);
    assert!(text.contains("        - key: karpenter.sh/nodepool\n          operator: DoesNotExist\n"), "{text}");
}

#[test]
fn a_group_that_has_only_what_kubelets_may_not_set_has_no_rule_and_is_told() {
    let role = |at: usize| {
        node(&format!("ip-10-0-0-{at}.x"), &json!({"pool": "cp", "node-role.kubernetes.io/infra": ""}), &[])
    };
    let nodes: Vec<Value> =
        (0..4).map(role).chain([node("ip-10-0-1-1.x", &json!({"pool": "w", "tier": "gold"}), &[])]).collect();
    let first = by(&nodes, label("pool")).unwrap();
    assert_holds(&nodes, &first);
    assert_eq!((first.rules.len(), first.withheld.len()), (1, 1));
    assert!(yaml(&first).contains("# No rule for pool cp: "), "{}", yaml(&first));
}

#[test]
fn odd_ones_out_are_listed_at_the_end() {
    let mut nodes = on_eks();
    nodes[7]["metadata"]["labels"]["tier"] = "glod".into();
    nodes[8]["metadata"]["labels"]["accelerator"] = "gpu_l4".into();
    for node in &mut nodes[9..30] {
        node["metadata"]["labels"]["accelerator"] = "gpu-l4".into();
    }
    nodes[29]["spec"]["taints"] = json!([]);
    let first = by(&nodes, By::Auto).unwrap();
    assert_holds(&nodes, &first);
    let text = yaml(&first);
    let (_, odd) = text.split_once("# Odd ones out, which may be mistakes:\n").unwrap();
    let odd = odd.replace("\n# ", " ");
    assert!(
        odd.contains(
            "ip-10-0-6-7.eu-central-1.compute.internal has tier=glod; the other 29 nodes of gpu-l4 have tier=gold"
        ),
        "{odd}"
    );
    assert!(odd.contains("ip-10-0-6-29.eu-central-1.compute.internal has no dedicated; the other 29 nodes of gpu-l4 have dedicated=gpu:NoSchedule"), "{odd}");
    assert!(odd.contains("label accelerator is \"gpu_l4\" on 1 node, and \"gpu-l4\" on 21 nodes"), "{odd}");
    assert!(odd.contains("label tier is \"glod\" on 1 node, and \"gold\" on 29 nodes"), "{odd}");
    assert_eq!((first.odd_ones.len(), first.more_odd_ones), (4, 0), "{odd}");
    // What one node lacks is in no rule, and in the list of what is left out.
    assert!(first.left_out.iter().any(|out| out.key == "tier" && out.reason == "not all nodes of its group have it"));
}

#[test]
fn a_policy_proposes_to_protect_the_labels_that_only_rules_beyond_kubelets_give() {
    let role =
        json!({"tier": "gold", "example.com/rack": "a1", "node-role.kubernetes.io/gpu": "", NODE_GROUP: "gpu-l4"});
    let named: Vec<Value> = (0..30).map(|at| node(&format!("gpu-{at}"), &role, &[])).collect();
    let text = yaml(&by(&named, By::Auto).unwrap());
    let proposed = "  - baseline\n  # Kubelets may set these labels themselves, also on nodes that no rule gives them. If none has a reason to, use this:\n  # protect: {keys: [example.com/rack, tier]}\n  rules:\n";
    assert!(text.contains(proposed), "{text}");
    // Whoever claims the group gets its labels anyway.
    let text = yaml(&by(&named, label(NODE_GROUP)).unwrap());
    assert!(!text.contains("protect"), "{text}");
}

#[test]
fn what_few_nodes_of_a_group_lack_is_told_with_their_names() {
    let mut nodes = on_eks();
    for at in [3, 5, 11] {
        nodes[at]["metadata"]["labels"].as_object_mut().unwrap().remove("tier");
    }
    // Of 15 nodes, two are too many.
    for at in [30, 32] {
        nodes[at]["metadata"]["labels"].as_object_mut().unwrap().remove("tier");
    }
    let first = by(&nodes, By::Auto).unwrap();
    assert_holds(&nodes, &first);
    let names = [11, 3, 5].map(|at| nodes[at]["metadata"]["name"].as_str().unwrap()).join(", ");
    assert_eq!(first.odd_ones, [format!("27 of the 30 nodes of gpu-l4 have tier=gold, but not {names}")]);
    nodes[4]["metadata"]["labels"].as_object_mut().unwrap().remove("tier");
    assert!(by(&nodes, By::Auto).unwrap().odd_ones.is_empty(), "a tenth is few, more is not");
    let many: Vec<Value> = (0..80)
        .map(|at| of_group("gpu-l4", at, &if at < 8 { json!({}) } else { json!({"tier": "gold"}) }, &[]))
        .collect();
    let told = by(&many, By::Auto).unwrap().odd_ones;
    assert!(told.len() == 1 && told[0].ends_with("-4.eu-central-1.compute.internal, and 3 more"), "{told:?}");
}

#[test]
fn the_list_of_odd_ones_is_short_in_any_fleet() {
    let group = |at: usize| ["a", "b", "c", "d", "e"].map(|end| format!("rack{at}{end}"));
    let nodes: Vec<Value> = (0..40)
        .flat_map(|at| {
            group(at).into_iter().enumerate().map(move |(of, name)| {
                let name = format!("{name}-{of}");
                let rack = format!("r{at}");
                let tier = if of == 0 { "tin" } else { "gold" };
                node(&name, &json!({"rack": rack, "tier": tier}), &[])
            })
        })
        .collect();
    let first = by(&nodes, label("rack")).unwrap();
    assert_eq!((first.odd_ones.len(), first.more_odd_ones), (20, 20));
    assert!(yaml(&first).ends_with("# - and 20 more\n"), "{}", yaml(&first));
}
