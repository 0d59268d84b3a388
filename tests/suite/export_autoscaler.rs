//! `nodegate export autoscaler`: what the next node of each pool will have, in the words of autoscalers.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::shared::output::assert_conforms;

const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: fleet}
spec:
  rules:
    - name: gpu
      match: {names: ["gpu-*"]}
      labels: {example.com/hardware_tier: fast, node-role.kubernetes.io/gpu: ""}
      taints: [dedicated=gpu:NoSchedule, alone:NoExecute]
    - {name: one, match: {names: [gpu-1]}, labels: {first: "true"}}
    - name: karpenter
      match: {selector: {matchLabels: {karpenter.sh/nodepool: cpu, size: large}}}
      labels: {example.com/hardware_tier: slow}
    - {name: hidden, match: {selector: {matchLabels: {karpenter.sh/nodepool: cpu}}}, labels: {karpenter.sh/own: x}}
    - {name: inferred, match: {selector: {matchLabels: {example.com/hardware_tier: fast}}}, labels: {inferred: "true"}}
    - name: broken
      match: {expression: 'node.metadata.labels["eks.amazonaws.com/nodegroup"] == "gpu" && node.metadata.labels["absent"] == "a"'}
      labels: {broken: "true"}
"#;

/// Runs the command on these files and returns its exit code, output and notes.
fn export(files: &[(&str, Value)], arguments: &[&str]) -> (Option<i32>, String, String) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("policy.yaml"), POLICY).unwrap();
    fs::create_dir(directory.path().join("state")).unwrap();
    for (name, content) in files {
        fs::write(directory.path().join(name), content.to_string()).unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate"))
        .args(["export", "autoscaler", "--policy", "policy.yaml"])
        .args(arguments)
        .current_dir(directory.path())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn node(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

/// Two nodes of an EKS node group, of which one has a label and a taint from nodegate already, and one node of no group.
fn fleet() -> Value {
    let of_group = json!({"eks.amazonaws.com/nodegroup": "gpu", "kubernetes.io/hostname": "gpu-1"});
    let mut first = node("gpu-1", &of_group);
    first["metadata"]["labels"]["example.com/hardware_tier"] = json!("fast");
    first["spec"] = json!({"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]});
    let second = node("gpu-2", &json!({"eks.amazonaws.com/nodegroup": "gpu"}));
    json!({"apiVersion": "v1", "kind": "List", "items": [first, second, node("lonely", &json!({}))]})
}

/// A NodePool that has no node.
fn node_pool() -> Value {
    json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "cpu"}, "spec": {"template": {
        "metadata": {"labels": {"team": "a"}},
        "spec": {"taints": [{"key": "own", "effect": "NoSchedule"}], "requirements": [
            {"key": "size", "operator": "In", "values": ["large"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]}]}}}})
}

fn parsed(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

#[test]
fn tags_say_what_all_nodes_of_a_group_will_have() {
    let files = [("nodes.json", fleet())];
    let (code, tags, notes) = export(&files, &["nodes.json", "--format", "asg-tags", "-o", "json"]);
    assert_eq!(code, Some(0), "{notes}");
    assert_eq!(
        parsed(&tags),
        json!({"gpu": {
            "k8s.io/cluster-autoscaler/node-template/label/example.com/hardware_tier": "fast",
            "k8s.io/cluster-autoscaler/node-template/label/inferred": "true",
            "k8s.io/cluster-autoscaler/node-template/label/node-role.kubernetes.io/gpu": "",
            "k8s.io/cluster-autoscaler/node-template/taint/alone": ":NoExecute",
            "k8s.io/cluster-autoscaler/node-template/taint/dedicated": "gpu:NoSchedule"}})
    );
    assert!(notes.contains("pool gpu: what rule fleet/broken gives is not known, and is left out"), "{notes}");
    assert!(notes.contains("1 nodes are in no pool"), "{notes}");
    let (_, tags, _) = export(&files, &["nodes.json", "--format", "vmss-tags"]);
    assert!(tags.contains("k8s.io_cluster-autoscaler_node-template_label_example.com_hardware~2tier: fast"), "{tags}");
    assert!(tags.contains("k8s.io_cluster-autoscaler_node-template_taint_dedicated: gpu:NoSchedule"), "{tags}");
    let (_, annotations, _) = export(
        &files,
        &["nodes.json", "--by", "eks.amazonaws.com/nodegroup", "--format", "capi-annotations", "-o", "json"],
    );
    assert_eq!(
        parsed(&annotations)["gpu"],
        json!({
            "capacity.cluster-autoscaler.kubernetes.io/labels": "example.com/hardware_tier=fast,inferred=true,node-role.kubernetes.io/gpu=",
            "capacity.cluster-autoscaler.kubernetes.io/taints": "alone:NoExecute,dedicated=gpu:NoSchedule"})
    );
}

#[test]
fn what_differs_between_the_nodes_of_a_group_is_no_part_of_its_template() {
    let files = [("nodes.json", fleet())];
    let (code, templates, notes) = export(&files, &["nodes.json", "-o", "json"]);
    assert_eq!(code, Some(0), "{notes}");
    let templates = parsed(&templates);
    assert_conforms("templates", &templates);
    assert_eq!(
        templates["pools"][0]["varying"],
        json!([{"field": "label", "key": "first", "values": ["true"], "nodes": 1, "because": "absent", "policy": "fleet", "rule": "one"}])
    );
    let (_, flags, _) = export(&files, &["nodes.json", "--format", "flags"]);
    assert_eq!(flags, "--balancing-ignore-label=first\n");
    let (_, table, _) = export(&files, &["nodes.json"]);
    let row = |key: &str| table.lines().find(|line| line.contains(key)).unwrap_or_default().to_owned();
    assert!(row("first").ends_with("no: only some nodes have it"), "{table}");
    assert!(row("dedicated:NoSchedule").ends_with("yes"), "{table}");
}

#[test]
fn a_pool_without_nodes_is_known_from_its_node_pool() {
    let files = [("pools.json", node_pool())];
    let (code, patch, notes) = export(&files, &["--groups", "pools.json", "--format", "nodepool-patch", "-o", "json"]);
    assert_eq!(code, Some(0), "{notes}");
    let mut whole = node_pool();
    whole["spec"]["template"]["metadata"]["labels"]["example.com/hardware_tier"] = json!("slow");
    assert_eq!(parsed(&patch)["items"], json!([whole]), "what it says already stays");
    assert!(notes.contains("label karpenter.sh/own is left out: NodePools refuse this label"), "{notes}");
}

#[test]
fn the_check_finds_what_an_autoscaler_is_not_told() {
    let tag = |key: &str, value: &str| json!({"Key": format!("k8s.io/cluster-autoscaler/node-template/{key}"), "Value": value});
    let told = |tags: Vec<Value>| {
        let mut tags = tags;
        tags.push(json!({"Key": "eks:nodegroup-name", "Value": "gpu"}));
        json!({"AutoScalingGroups": [{"AutoScalingGroupName": "eks-gpu-1234", "Tags": tags}]})
    };
    let right = vec![
        tag("label/example.com/hardware_tier", "fast"),
        tag("label/inferred", "true"),
        tag("label/node-role.kubernetes.io/gpu", ""),
        tag("taint/alone", ":NoExecute"),
        tag("taint/dedicated", "gpu:NoSchedule"),
    ];
    let check = |groups: Value| {
        let arguments = ["nodes.json", "--groups", "asg.json", "--format", "asg-tags", "--check"];
        let files = [("nodes.json", fleet()), ("asg.json", groups)];
        let (code, words, notes) = export(&files, &arguments);
        let (same_code, json, _) = export(&files, &[&arguments[..], &["-o", "json"]].concat());
        assert_eq!(code, same_code, "{notes}");
        let json = parsed(&json);
        assert_conforms("templates-check", &json);
        (code, words, json)
    };
    let (code, words, _) = check(told(right.clone()));
    assert_eq!((code, &*words), (Some(0), "autoscalers know what the next nodes of 1 pools will have\n"));
    let mut wrong = right;
    wrong[0]["Value"] = json!("slow");
    wrong.remove(4);
    // One node has it; a rule gives it to Karpenter's nodes; no rule gives it to any.
    wrong.extend([tag("label/first", "true"), tag("label/karpenter.sh/own", "x"), tag("label/disk", "ssd")]);
    let (code, words, found) = check(told(wrong));
    assert_eq!(code, Some(1));
    let found: Vec<_> = found["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| json!([one["because"], one["key"], one["told"]]))
        .collect();
    let expected = [
        json!(["value", "example.com/hardware_tier", "slow"]),
        json!(["missing", "dedicated", null]),
        json!(["varies", "first", "true"]),
        json!(["unassigned", "karpenter.sh/own", "x"]),
    ];
    assert_eq!(found, expected);
    assert!(words.contains("Auto Scaling group eks-gpu-1234"), "{words}");
    let (code, words, found) = check(json!({"AutoScalingGroups": []}));
    assert_eq!((code, &found["notFound"]), (Some(1), &json!(["gpu"])));
    assert!(words.contains("pool gpu: nothing was found that tells an autoscaler about it"), "{words}");
}

#[test]
fn a_taint_that_a_node_pool_promises_to_go_away_is_a_difference() {
    let of_pool = node("gpu-1", &json!({"karpenter.sh/nodepool": "gpu"}));
    let taint = json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"});
    let mut pool = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "gpu"}, "spec": {"template": {
        "metadata": {"labels": {"example.com/hardware_tier": "fast", "inferred": "true", "node-role.kubernetes.io/gpu": ""}},
        "spec": {"taints": [{"key": "alone", "effect": "NoExecute"}], "startupTaints": [taint]}}}});
    let check = |pool: &Value| {
        let files = [("node.json", of_pool.clone()), ("pool.json", pool.clone())];
        export(&files, &["node.json", "--groups", "pool.json", "--format", "nodepool-patch", "--check"])
    };
    let (code, words, _) = check(&pool);
    assert!(code == Some(1) && words.contains("that it goes away"), "{words}");
    pool["spec"]["template"]["spec"]["taints"].as_array_mut().unwrap().push(taint);
    let (code, words, _) = check(&pool);
    assert!(code == Some(1) && words.contains("that it goes away"), "Karpenter waits for it to go: {words}");
    pool["spec"]["template"]["spec"]["startupTaints"] = json!([]);
    let (code, words, _) = check(&pool);
    assert_eq!(code, Some(0), "{words}");
    // Of two values, Karpenter may choose the other.
    pool["spec"]["template"]["metadata"]["labels"].as_object_mut().unwrap().remove("inferred");
    pool["spec"]["template"]["spec"]["requirements"] =
        json!([{"key": "inferred", "operator": "In", "values": ["true", "false"]}]);
    let (code, words, _) = check(&pool);
    assert!(code == Some(1) && words.contains("true, false"), "{words}");
}

#[test]
fn a_pool_whose_machine_deployment_has_no_machine_is_proven_by_it() {
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "capi"}, "spec": {
        "presets": ["cluster-api"],
        "rules": [{"name": "gpu", "match": {"pools": ["*-gpu"]}, "labels": {"node-role.kubernetes.io/gpu": ""}}]}});
    let deployment = json!({"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "MachineDeployment", "metadata": {"name": "fleet-gpu", "namespace": "default",
        "annotations": {"capacity.cluster-autoscaler.kubernetes.io/labels": "disk=ssd"}},
        "spec": {"clusterName": "fleet", "template": {"metadata": {"labels": {"node-role.kubernetes.io/gpu": ""}}, "spec": {"clusterName": "fleet"}}}});
    let files = [("capi.json", policy), ("md.json", deployment)];
    let arguments = ["--policy", "capi.json", "--groups", "md.json", "--format", "capi-annotations"];
    let (code, annotations, notes) = export(&files, &[&arguments[..], &["-o", "json"]].concat());
    assert_eq!(code, Some(0), "{notes}");
    let label = "capacity.cluster-autoscaler.kubernetes.io/labels";
    let expected = json!({"fleet-gpu": {label: "disk=ssd,node-role.kubernetes.io/gpu="}});
    assert_eq!(parsed(&annotations), expected, "what it says already stays");
    let (code, words, _) = export(&files, &[&arguments[..], &["--check"]].concat());
    assert_eq!(code, Some(0), "Cluster Autoscaler knows what is copied from the template: {words}");
}

#[test]
fn an_empty_pool_is_promised_nothing_that_follows_from_a_name() {
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "named"}, "spec": {
        "rules": [{"name": "r", "match": {"names": ["cpu-*"]}, "labels": {"named": "true"}}, {"name": "all", "labels": {"all": "true"}}]}});
    let files = [("named.json", policy), ("pools.json", node_pool())];
    let (code, templates, notes) = export(&files, &["--policy", "named.json", "--groups", "pools.json", "-o", "json"]);
    assert_eq!(code, Some(0), "{notes}");
    let pool = &parsed(&templates)["pools"][0];
    let same: Vec<&Value> = pool["same"].as_array().unwrap().iter().map(|key| &key["key"]).collect();
    assert!(same.contains(&&json!("all")) && !same.contains(&&json!("named")), "{pool:#}");
    assert_eq!((&pool["varying"][0]["key"], &pool["varying"][0]["because"]), (&json!("named"), &json!("name")));
}

#[test]
fn one_tag_says_one_taint_of_a_key() {
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "twice"}, "spec": {
        "rules": [{"name": "r", "match": {"names": ["gpu-*"]}, "taints": ["twice=a:NoSchedule", "twice=a:NoExecute"]}]}});
    let files = [("twice.json", policy), ("nodes.json", fleet())];
    let (code, tags, notes) =
        export(&files, &["--policy", "twice.json", "nodes.json", "--format", "asg-tags", "-o", "json"]);
    assert_eq!(code, Some(0), "{notes}");
    assert_eq!(parsed(&tags)["gpu"]["k8s.io/cluster-autoscaler/node-template/taint/twice"], "a:NoSchedule");
    assert!(notes.contains("taint twice:NoExecute is left out"), "{notes}");
    let (code, _, errors) = export(&files, &["nodes.json", "--format", "asg-tags", "--check"]);
    assert!(code == Some(2) && errors.contains("needs --groups FILE"), "{errors}");
}

#[test]
fn a_node_that_still_joins_takes_nothing_out_of_the_template() {
    let labels = json!({"eks.amazonaws.com/nodegroup": "cold"});
    let mut joining = node("cold-2", &labels);
    joining["spec"] = json!({"taints": [{"key": "nodegate.dev/pending", "effect": "NoSchedule"}]});
    let mut whole = labels;
    whole["example.com/hardware_tier"] = json!("fast");
    let nodes = json!({"apiVersion": "v1", "kind": "List", "items": [node("cold-1", &whole), joining]});
    let (code, templates, notes) = export(&[("nodes.json", nodes)], &["nodes.json", "-o", "json"]);
    assert_eq!(code, Some(0), "{notes}");
    let templates = parsed(&templates);
    assert_eq!((&templates["joiningNodes"], &templates["pools"][0]["nodes"]), (&json!(1), &json!(1)));
    assert_eq!(templates["pools"][0]["same"][0]["key"], "inferred", "{templates:#}");
}

#[test]
fn pools_of_one_name_and_different_makers_stay_apart() {
    let node_pool = |version: &str| {
        let mut pool = node_pool();
        (pool["apiVersion"], pool["metadata"]["name"]) = (json!(version), json!("gpu"));
        pool
    };
    let mut nodes = fleet();
    let karpenters = node("k-1", &json!({"karpenter.sh/nodepool": "gpu"}));
    nodes["items"].as_array_mut().unwrap().push(karpenters);
    let files = [("nodes.json", nodes), ("pool.json", node_pool("karpenter.sh/v1"))];
    let (_, templates, notes) = export(&files, &["nodes.json", "--groups", "pool.json", "-o", "json"]);
    let pools: Vec<Value> = parsed(&templates)["pools"].as_array().expect(&notes).clone();
    let names: Vec<Value> = pools.iter().map(|pool| json!([pool["pool"], pool["nodes"]])).collect();
    assert_eq!(names, [json!(["eks.amazonaws.com/nodegroup=gpu", 2]), json!(["karpenter.sh/nodepool=gpu", 1])]);
    let arguments = ["nodes.json", "--groups", "pool.json", "--check", "-o", "json"];
    let (_, found, _) = export(&files, &arguments);
    let found = parsed(&found);
    let of_pools: Vec<&Value> = found["differences"].as_array().unwrap().iter().map(|one| &one["pool"]).collect();
    assert!(!of_pools.contains(&&json!("eks.amazonaws.com/nodegroup=gpu")), "{found:#}");
    assert_eq!(found["notFound"], json!(["eks.amazonaws.com/nodegroup=gpu"]));
    // HyperShift has NodePools as well.
    let files = [files[0].clone(), ("pool.json", node_pool("hypershift.openshift.io/v1beta1"))];
    let (code, _, errors) = export(&files, &arguments);
    assert!(code == Some(2) && errors.contains("pool.json: expected NodePool of karpenter.sh or"), "{errors}");
}

#[test]
fn groups_of_several_clusters_with_one_name_are_refused() {
    let group = |cluster: &str| {
        json!({"AutoScalingGroupName": format!("eks-{cluster}"), "Tags": [
            {"Key": "eks:nodegroup-name", "Value": "gpu"}, {"Key": "eks:cluster-name", "Value": cluster}]})
    };
    let check = |groups: &[Value]| {
        let files = [("nodes.json", fleet()), ("asg.json", json!({"AutoScalingGroups": groups}))];
        export(&files, &["nodes.json", "--groups", "asg.json", "--format", "asg-tags", "--check"])
    };
    let (code, _, errors) = check(&[group("prod"), group("staging")]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(
        errors.contains("Auto Scaling group eks-prod (prod) and Auto Scaling group eks-staging (staging)"),
        "{errors}"
    );
    let (code, words, _) = check(&[group("prod"), group("prod")]);
    assert!(code == Some(1) && words.contains("eks-prod"), "one node group may have several: {words}");
}

#[test]
fn what_a_node_pool_gives_its_nodes_itself_is_no_difference() {
    let nodes = [("k-1", "fast"), ("k-2", "slow")].map(|(name, tier)| {
        node(name, &json!({"karpenter.sh/nodepool": "mixed", "example.com/hardware_tier": tier, "inferred": "true", "first": "x"}))
    });
    let nodes = json!({"apiVersion": "v1", "kind": "List", "items": nodes});
    let mut pool = node_pool();
    (pool["metadata"]["name"], pool["spec"]["template"]["spec"]) = (json!("mixed"), json!({}));
    // A rule gives the first to one of its nodes only, and the second to none.
    pool["spec"]["template"]["metadata"]["labels"] = json!({"inferred": "true", "first": "x"});
    let files = [("nodes.json", nodes), ("pool.json", pool)];
    let (code, words, notes) = export(&files, &["nodes.json", "--groups", "pool.json", "--check"]);
    assert_eq!(code, Some(0), "{words}{notes}");
}

#[test]
fn a_node_decides_nothing_about_a_nodepool_that_its_label_names_and_no_nodeclaim_of_it_does() {
    let pools = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "pools"},
        "spec": {"pools": [{"nameFrom": {"kind": "NodeClaim", "label": "karpenter.sh/nodepool"}}]}});
    let of_cpu = |name: &str| {
        let mut node = node(name, &json!({"karpenter.sh/nodepool": "cpu", "size": "large"}));
        node["metadata"]["uid"] = json!(name);
        node
    };
    let record = |name: &str, proof: Value| {
        let mut record = json!({"nodeName": name, "nodeUID": name, "provisionedFor": name});
        record.as_object_mut().unwrap().extend(proof.as_object().unwrap().clone());
        record
    };
    let claim = |nodepool: &str| {
        json!({"provisionedBy": [{"group": "karpenter.sh", "kind": "NodeClaim", "name": "c", "uid": "u",
        "labels": {"karpenter.sh/nodepool": nodepool}}]})
    };
    let nodes = ["cpu-1", "gpu-8", "gpu-9", "unknown"].map(of_cpu);
    let files = [
        ("pools.json", pools),
        ("nodes.json", json!({"apiVersion": "v1", "kind": "List", "items": nodes})),
        ("state/cpu-1.json", record("cpu-1", claim("cpu"))),
        ("state/gpu-8.json", record("gpu-8", claim("gpu"))),
        ("state/gpu-9.json", record("gpu-9", json!({"notProvisionedBy": ["NodeClaim"]}))),
    ];
    let arguments = ["nodes.json", "--policy", "pools.json", "--state-dir", "state", "-o", "json"];
    let (code, out, notes) = export(&files, &arguments);
    let templates = parsed(&out);
    assert_eq!((code, &templates["refutedNodes"]), (Some(0), &json!(2)), "{out}{notes}");
    assert_eq!((&templates["pools"][0]["pool"], &templates["pools"][0]["nodes"]), (&json!("cpu"), &json!(2)), "{out}");
    assert!(notes.contains("note: left out 2 nodes whose label names a NodePool"), "{notes}");
}
