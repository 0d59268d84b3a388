//! `nodegate report` on files.

mod pools;
mod topologies;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::shared::output::assert_conforms;

const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: fleet}
spec:
  rules: [{name: named, match: {names: ["gpu-*"]}, labels: {node-type: gpu}}]
  governance:
    required: [{name: tier, keys: [tier]}, {name: type, keys: [node-type], mode: audit}]
    allowed: [{name: tiers, key: tier, values: [gold], mode: warn}]
    expressions: [{name: slots, expression: 'int(object.metadata.labels[?"slots"].orValue("1")) > 0', message: no slots}]
    reserved: [{name: ours, namespaces: [corp.example]}]
"#;

const NODES: &str = r#"
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: gpu-1, labels: {tier: gold, corp.example/a: b}}}
  - {apiVersion: v1, kind: Node, metadata: {name: cpu-1, labels: {tier: tin, slots: "0"}}}
  - {apiVersion: v1, kind: Node, metadata: {name: cpu-2, labels: {slots: many, node-type: x}}}
"#;

fn report(directory: &Path, arguments: &[&str]) -> Output {
    let command = || Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command().args(["report", "--violations"]).args(arguments).current_dir(directory).output().unwrap()
}

#[test]
fn violations_of_nodes_in_files_are_listed_and_are_findings() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("policy.yaml"), POLICY).unwrap();
    std::fs::write(directory.path().join("nodes.yaml"), NODES).unwrap();
    let output = report(directory.path(), &["--policy", "policy.yaml", "-o", "json", "nodes.yaml"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let judged: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&judged["policies"]["names"], &judged["nodes"]), (&json!(["fleet"]), &json!(3)));
    assert!(judged["policies"]["hash"].as_str().unwrap().starts_with("sha256:"));
    let found: Vec<String> = judged["violations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| ["node", "rule", "mode"].map(|field| line[field].as_str().unwrap()).join(" "))
        .collect();
    // What the policy itself gives (node-type of gpu-1) is there; who wrote corp.example/a is not asked.
    let expected =
        ["cpu-1 slots enforce", "cpu-1 tiers warn", "cpu-1 type audit", "cpu-2 tier enforce", "cpu-2 slots unknown"];
    assert_eq!(found, expected);
    let table = report(directory.path(), &["--policy", "policy.yaml", "nodes.yaml"]);
    let table = String::from_utf8(table.stdout).unwrap();
    let sum = "3 nodes, 2 with violations: 2 in enforce mode, 1 in warn mode, 1 in audit mode; 1 expression failed to evaluate, \
               which counts as a finding\npolicies: fleet (sha256:";
    assert!(table.contains("no slots") && table.contains(sum), "{table}");
}

/// A file says nothing of how a node joined, so nothing on it was claimed by its kubelet.
#[test]
fn a_persons_label_on_a_node_of_a_file_is_no_claim_of_its_kubelet() {
    let directory = tempfile::tempdir().unwrap();
    let managed = json!([{"manager": "kubectl-label", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:team.owner": {}}}}}]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1", "labels": {"team.owner": "mine"}, "managedFields": managed}});
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "fleet"},
        "spec": {"protect": {"keys": ["team.owner"]}, "rules": [{"name": "all", "labels": {"team.owner": "vision"}}]}});
    std::fs::write(directory.path().join("policy.json"), policy.to_string()).unwrap();
    std::fs::write(directory.path().join("node.json"), node.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["report", "--policy", "policy.json", "node.json"]).current_dir(directory.path());
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(text.contains("team.owner") && !text.contains("Rejected claims"), "{text}");
}

/// An entry that forbids only removals says nothing of a node that never had the label.
#[test]
fn a_state_violates_only_entries_that_judge_how_it_comes_about() {
    let directory = tempfile::tempdir().unwrap();
    let required = |operations: &str| {
        POLICY
            .replace("{name: tier, keys: [tier]}", &format!("{{name: tier, keys: [tier], operations: [{operations}]}}"))
    };
    std::fs::write(directory.path().join("nodes.yaml"), NODES).unwrap();
    for (operations, listed) in [("remove", false), ("change", false), ("add, remove", true)] {
        std::fs::write(directory.path().join("policy.yaml"), required(operations)).unwrap();
        let output = report(directory.path(), &["--policy", "policy.yaml", "nodes.yaml"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.contains(r#"label "tier" is required"#), listed, "{operations}: {text}");
    }
}

#[test]
fn violations_are_judged_by_a_policy_from_another_programs_output() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("nodes.yaml"), NODES).unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-c", "exec \"$1\" report --violations --policy <(printf %s \"$2\") nodes.yaml", "-"]);
    shell.args([env!("CARGO_BIN_EXE_nodegate"), POLICY]).current_dir(directory.path());
    let output = shell.output().unwrap();
    let (table, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{table}{errors}");
    assert!(table.contains("policies: fleet (sha256:"), "{table}{errors}");
}

#[test]
fn an_expression_that_fails_to_evaluate_is_a_finding() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("policy.yaml"), POLICY).unwrap();
    let node = "{apiVersion: v1, kind: Node, metadata: {name: gpu-1, labels: {tier: gold, slots: many}}}";
    std::fs::write(directory.path().join("nodes.yaml"), node).unwrap();
    let output = report(directory.path(), &["--policy", "policy.yaml", "nodes.yaml"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn nodes_without_violations_are_no_finding_and_no_nodes_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("policy.yaml"), POLICY).unwrap();
    let node = "{apiVersion: v1, kind: Node, metadata: {name: gpu-1, labels: {tier: gold}}}";
    std::fs::write(directory.path().join("nodes.yaml"), node).unwrap();
    let output = report(directory.path(), &["--policy", "policy.yaml", "nodes.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("1 node, 0 with violations"));
    let output = report(directory.path(), &["--policy", "policy.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no nodes are selected"));
}

const FLEET: &str = r#"
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: gpu-1, labels: {tier: gold, node-type: gpu, team: ml, node.kubernetes.io/instance-type: p4d.24xlarge}},
     status: {capacity: {cpu: "96", memory: 1Ti, nvidia.com/gpu: "8"}}}
  - {apiVersion: v1, kind: Node, metadata: {name: gpu-2, labels: {tier: gold, node-type: cpu, team: ml}},
     spec: {taints: [{key: dedicated, effect: NoSchedule}]}, status: {capacity: {cpu: 500m, memory: 2Gi}}}
  - {apiVersion: v1, kind: Node, metadata: {name: cpu-1, labels: {tier: tin}}, status: {capacity: {}}}
"#;

const RULES: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: fleet}
spec:
  rules:
    - {name: named, priority: 1, match: {names: ["gpu-*"]}, labels: {node-type: gpu}}
    - {name: second, match: {names: [gpu-2]}, labels: {node-type: second}}
  governance:
    required: [{name: owner, keys: [team]}]
    allowed: [{name: tiers, key: tier, values: [gold], mode: warn}]
"#;

const PODS: &str = r#"
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {nodeName: gpu-2}}
  - {apiVersion: v1, kind: Pod, metadata: {name: fine, namespace: shop}, spec: {nodeName: gpu-1}}
"#;

/// A report on the fleet: exit code, standard output and standard error.
fn fleet(arguments: &[&str]) -> (Option<i32>, String, String) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [("policy.yaml", RULES), ("nodes.yaml", FLEET), ("pods.yaml", PODS)] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let prices = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/prices.yaml");
    std::fs::copy(prices, directory.path().join("prices.yaml")).unwrap();
    std::fs::write(directory.path().join("wrong.yaml"), "currency: EUR\nresources: {cpu: -1}\n").unwrap();
    std::fs::write(directory.path().join("none.yaml"), "currency: EUR\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["report", "--policy", "policy.yaml"]).args(arguments).current_dir(directory.path());
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_report_says_what_the_fleet_is_and_what_is_wrong_with_it() {
    let expected = "\
3 nodes; policies: fleet

By node-type:
       1  gpu
       1  cpu
       1  (without the label)

Violations:
  enforce fleet/owner: label \"team\" is required and missing: cpu-1
  warn fleet/tiers: label \"tier\" may not be \"tin\": the allowed values are gold: cpu-1

Drift from the policies:
  ~ label node-type=gpu, was cpu (rule fleet/named): gpu-2

Conflicts:
  label node-type: rule fleet/named takes precedence over rule fleet/second: gpu-2

No rule assigns anything to:
  cpu-1

Stranded pods:
  pod shop/web on gpu-2: taint dedicated:NoSchedule is not tolerated
";
    let (code, text, errors) = fleet(&["nodes.yaml", "--stranded-pods", "--pods", "pods.yaml"]);
    assert_eq!((code, errors.as_str()), (Some(1), ""));
    assert_eq!(text, expected);
}

#[test]
fn rejected_claims_of_kubelets_are_told_as_labels_taints_and_owners() {
    let directory = tempfile::tempdir().unwrap();
    let mark = json!({"rejected": {"node-type": "forged"}, "rejectedTaints": {"dedicated:NoSchedule": ""}, "owners": true, "more": 2, "own": 1});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1", "uid": "u",
        "annotations": {"nodegate.dev/admission": mark.to_string()}, "labels": {"node-type": "gpu"}},
        "spec": {"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]}});
    let rule = json!({"name": "named", "match": {"names": ["gpu-*"]}, "labels": {"node-type": "gpu"},
        "taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]});
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "fleet"},
        "spec": {"rules": [rule]}});
    std::fs::write(directory.path().join("policy.json"), policy.to_string()).unwrap();
    std::fs::write(directory.path().join("node.json"), node.to_string()).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(["report", "--policy", "policy.json", "node.json"]).args(arguments).current_dir(directory.path());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let text = run(&[]);
    let expected = "\nRejected claims of kubelets:\n  3 more keys (nodegate/unnamed): gpu-1\n  metadata.ownerReferences (nodegate/owners): gpu-1\n  \
        node-type=\"forged\" (fleet/named): gpu-1\n  taint dedicated:NoSchedule with \"\" (fleet/named): gpu-1\n";
    assert!(text.contains(expected), "{text}");
    let report: Value = serde_json::from_str(&run(&["-o", "json"])).unwrap();
    assert_conforms("report", &report);
    let claim = |key: &str, asserted: &str, rule: &str| {
        let policy = if rule == "named" { "fleet" } else { "nodegate" };
        json!({"node": "gpu-1", "key": key, "asserted": asserted, "policy": policy, "rule": rule})
    };
    let of_field = |field: &str, mut claim: Value| {
        claim["field"] = json!(field);
        claim
    };
    let expected = [
        claim("3 more keys", "", "unnamed"),
        claim("metadata.ownerReferences", "", "owners"),
        of_field("label", claim("node-type", "forged", "named")),
        of_field("taint", claim("dedicated:NoSchedule", "", "named")),
    ];
    assert_eq!(report["rejected"], json!(expected));
    let page = run(&["--html", "-"]);
    for (claim, value, by) in [
        ("taint <code>dedicated:NoSchedule</code>", "<code>&quot;&quot;</code>", "fleet/named"),
        ("label <code>node-type</code>", "<code>forged</code>", "fleet/named"),
        ("<code>metadata.ownerReferences</code>", "", "nodegate/owners"),
        ("<code>3 more keys</code>", "", "nodegate/unnamed"),
    ] {
        let cell = |column: &str, text: &str| format!("<td role=\"cell\" data-column=\"{column}\">{text}</td>");
        let row = cell("Claim", claim) + &cell("Claimed value", value) + &cell("Rejected by", by);
        assert!(page.contains(&row), "{row}\n{page}");
    }
}

#[test]
fn a_violation_that_concerns_no_key_conforms_to_the_schema() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: fleet}\nspec:\n  governance:\n    \
        expressions: [{name: named, expression: 'object.metadata.name == \"x\"', message: another name}]\n";
    let node = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}"#;
    std::fs::write(directory.path().join("policy.yaml"), policy).unwrap();
    std::fs::write(directory.path().join("nodes.json"), node).unwrap();
    for (kind, flags) in [("report", &[][..]), ("violations", &["--violations"])] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(["report", "nodes.json", "--policy", "policy.yaml", "-o", "json"]).args(flags);
        let output = command.current_dir(directory.path()).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&report["violations"][0]["rule"], &report["violations"][0]["key"]),
            (&json!("named"), &Value::Null)
        );
        assert_conforms(kind, &report);
    }
}

#[test]
fn an_empty_value_is_shown_as_quotes() {
    let directory = tempfile::tempdir().unwrap();
    let node = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"team": ""}}}"#;
    std::fs::write(directory.path().join("nodes.json"), node).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["report", "nodes.json", "--by", "team", "--cost"]).current_dir(directory.path());
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(text.contains("By team:\n       1  \"\"\n"), "{text}");
    assert!(text.lines().any(|line| line.starts_with(" \"\" ")), "the table of costs: {text}");
}

#[test]
fn json_of_a_report_has_the_documented_fields() {
    let all = [
        "nodes.yaml",
        "--by",
        "team",
        "--by",
        "tier",
        "--cost",
        "--prices",
        "prices.yaml",
        "--stranded-pods",
        "--pods",
        "pods.yaml",
        "-o",
        "json",
    ];
    let report: Value = serde_json::from_str(&fleet(&all).1).unwrap();
    assert_conforms("report", &report);
    assert_eq!(report["by"], json!({"team": {"ml": 2}, "tier": {"gold": 2, "tin": 1}}));
    assert_eq!(report["without"], json!({"team": 1, "tier": 0}));
    assert_eq!(report["missing"], json!([{"node": "cpu-1", "key": "team", "policy": "fleet", "rule": "owner"}]));
    let change = json!({"op": "change", "field": "label", "key": "node-type", "value": "gpu", "was": "cpu", "policy": "fleet", "rule": "named"});
    assert_eq!(report["drift"], json!([{"node": "gpu-2", "change": change}]));
    assert_eq!((&report["unmanaged"], &report["stranded"][0]["name"]), (&json!(["cpu-1"]), &json!("web")));
    let violations: Value = serde_json::from_str(&fleet(&["nodes.yaml", "--violations", "-o", "json"]).1).unwrap();
    assert_conforms("violations", &violations);
    assert_eq!(violations["violations"], report["violations"]);
}

#[test]
fn cost_is_the_price_of_the_instance_type_or_of_the_resources() {
    let (_, csv, errors) = fleet(&["nodes.yaml", "--cost", "--by", "team", "--prices", "prices.yaml", "-o", "csv"]);
    // 30 for the p4d.24xlarge; half a core and 2 GiB cost 0.015 + 0.008.
    let expected = "\
label,value,nodes,cpu,memoryGib,gpu,perHour,perMonth,currency,unpriced,hasLabel
team,,1,0,0.00,0,0.0000,0.0000,EUR,1,false
team,ml,2,96.5,1026.00,8,30.0230,21916.7900,EUR,0,true
";
    assert_eq!((csv.as_str(), errors.as_str()), (expected, ""));
    let table = fleet(&["nodes.yaml", "--cost", "--by", "team"]).1;
    let expected = "\nCost by team:\n VALUE                NODES  CPU   GIB     GPU\n (without the label)  1      0     0.0     0\n ml                   2      96.5  1026.0  8\n";
    assert!(table.ends_with(expected), "{table}");
}

#[test]
fn wrong_input_of_a_report_is_an_error_that_says_what_is_wrong() {
    for (arguments, expected) in [
        (&[] as &[&str], "no nodes are selected; pass files with nodes"),
        (&["absent.yaml"], "absent.yaml"),
        (&["nodes.yaml", "--cost"], "--by"),
        (&["nodes.yaml", "--by", "team", "--prices", "prices.yaml"], "--cost"),
        (&["nodes.yaml", "--cost", "--by", "team", "--prices", "absent.yaml"], "--prices absent.yaml"),
        (
            &["nodes.yaml", "--cost", "--by", "team", "--prices", "wrong.yaml"],
            "resources.cpu is -1; expected a price per hour",
        ),
        (
            &["nodes.yaml", "--cost", "--by", "team", "--prices", "none.yaml"],
            "contains no price; add instanceTypes or resources",
        ),
        (&["nodes.yaml", "--cost", "--by", "team", "--prices", "pods.yaml"], "unknown field"),
        (&["nodes.yaml", "-o", "csv"], "-o csv requires --cost"),
        (&["nodes.yaml", "--violations", "--cost", "--by", "x"], "cannot be used with"),
        (&["nodes.yaml", "--by", "a b"], "a b"),
    ] {
        let (code, text, said) = fleet(arguments);
        assert_eq!((code, text.as_str()), (Some(2), ""), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn a_file_with_prices_of_another_form_is_shown_where_it_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("nodes.yaml"), FLEET).unwrap();
    for (text, said) in [
        ("{\"prices\": [\n", "prices.yaml:1:12"),
        ("currency: EUR\nprices: 7\n", "error: unknown field \"prices\"\n --> prices.yaml:2:1"),
        ("currency: EUR\nresources: {cpu: cheap}\n", "error: expected a number, found \"cheap\""),
        ("# nothing\n", "error: the file is empty"),
    ] {
        std::fs::write(directory.path().join("prices.yaml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        let command = command.args(["report", "nodes.yaml", "--cost", "--by", "team", "--prices", "prices.yaml"]);
        let output = command.current_dir(directory.path()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(
            errors.contains(said) && errors.ends_with("error: found 1 error in the file with prices\n"),
            "{errors}"
        );
    }
}
