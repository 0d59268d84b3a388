//! `nodegate init --from-kyverno` and `--from-nfd`.

use std::path::Path;

use serde_json::{Value, json};

use super::{nodegate, printed};
use crate::shared::output::assert_conforms;

const KYVERNO: &str = r#"apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: nodes}
spec:
  rules:
    - name: gpu
      match: {any: [{resources: {kinds: [Node], names: ["gpu-*"], selector: {matchLabels: {pool: gpu}}}}]}
      mutate:
        patchStrategicMerge:
          metadata: {labels: {tier: high}, annotations: {example.com/by: policy}}
          spec: {taints: [{key: pool, value: gpu, effect: NoSchedule}]}
    - name: joined
      match: {any: [{resources: {kinds: [Node], operations: [CREATE]}}]}
      exclude: {any: [{resources: {names: [a]}}]}
      mutate: {patchStrategicMerge: {metadata: {labels: {joined: "yes"}}}}
"#;

const SUMMARY: &str = r#" RULE       FROM            SETS
 nodes-gpu  kyverno.yaml:6  tier=high, example.com/by=policy, pool=gpu:NoSchedule

 LEFT OUT  RULE    WHERE            REASON
 1         joined  kyverno.yaml:13  the rule is not for all writes that create or update a node, but nodegate also gives existing nodes what a rule sets; `mode: default` by hand is the closest
 1         joined  kyverno.yaml:14  `exclude` of the rule has no exact translation

wrote policy/policy.yaml (1 rule) and policy/test.yaml (3 cases); 1 rule stays where it is

Next, review the rules in policy/policy.yaml, run its tests, and see what it changes:
  nodegate test policy/test.yaml
  kubectl get nodes -o json | nodegate plan --policy policy/policy.yaml -
"#;

fn folder(kyverno: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("kyverno.yaml"), kyverno).unwrap();
    directory
}

/// What a command that ends with 2 says.
fn refused(at: &Path, arguments: &[&str], input: &str) -> String {
    let output = nodegate(at, arguments, input);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    error
}

#[test]
fn a_translation_passes_its_tests_and_lists_what_stays() {
    let directory = folder(KYVERNO);
    let at = directory.path();
    assert_eq!(printed(at, &["init", "--from-kyverno", "kyverno.yaml"], 0), SUMMARY);
    let checked = printed(at, &["check", "--strict", "policy/policy.yaml"], 0);
    assert!(checked.ends_with("\nno errors\n"), "{checked}");
    let tested = printed(at, &["test", "policy"], 0);
    assert!(tested.ends_with("\n3 passed, 0 failed\n"), "{tested}");
    let policy = std::fs::read_to_string(at.join("policy/policy.yaml")).unwrap();
    let begins = "# yaml-language-server: $schema=nodepolicy.schema.json\n# What `nodegate init --from-kyverno` translated. 1 rule was left out";
    assert!(policy.starts_with(begins), "{policy}");
    // Without one of the conditions the tests fail.
    for without in ["      names:\n      - gpu-*\n", "      selector:\n        matchLabels:\n          pool: gpu\n"] {
        assert!(policy.contains(without), "{policy}");
        std::fs::write(at.join("policy/policy.yaml"), policy.replace(without, "")).unwrap();
        printed(at, &["test", "policy"], 1);
    }
    // What is there is kept, unless the user says so; the same comes from standard input and from a directory.
    assert!(refused(at, &["init", "--from-kyverno", "kyverno.yaml"], "").contains("already exist"));
    let from_input = nodegate(at, &["init", "--from-kyverno", "-", "--force"], KYVERNO);
    assert!(from_input.status.success(), "{}", String::from_utf8_lossy(&from_input.stderr));
    assert_eq!(std::fs::read_to_string(at.join("policy/policy.yaml")).unwrap(), policy);
    let other = tempfile::tempdir().unwrap();
    let arguments = ["init", "--from-kyverno", ".", "--dir", other.path().to_str().unwrap(), "--name", "mine"];
    std::fs::remove_dir_all(at.join("policy")).unwrap();
    printed(at, &arguments, 0);
    let mine = std::fs::read_to_string(other.path().join("policy.yaml")).unwrap();
    assert_eq!(mine.replace("name: mine\n", "name: fleet\n"), policy);
}

#[test]
fn the_summary_of_a_translation_is_structured_too() {
    let directory = folder(KYVERNO);
    let text = printed(directory.path(), &["init", "--from-kyverno", "kyverno.yaml", "-o", "json"], 0);
    let summary: Value = serde_json::from_str(&text).unwrap();
    assert_conforms("init-from", &summary);
    let from = |number: u32, rule: &str, line: u32| json!({"file": "kyverno.yaml", "document": 1, "object": "ClusterPolicy nodes", "number": number, "rule": rule, "line": line});
    let sets = json!([{"field": "label", "key": "tier", "value": "high"},
        {"field": "annotation", "key": "example.com/by", "value": "policy"},
        {"field": "taint", "key": "pool", "value": "gpu", "effect": "NoSchedule"}]);
    assert_eq!(summary["rules"], json!([{"rule": "nodes-gpu", "from": from(1, "gpu", 6), "sets": sets}]));
    assert_eq!(summary["leftOut"][0]["from"], from(2, "joined", 12));
    assert_eq!(
        summary["leftOut"][0]["reasons"][1],
        json!({"line": 14, "reason": "`exclude` of the rule has no exact translation"})
    );
    assert_eq!((&summary["cases"], summary["files"].as_array().unwrap().len()), (&json!(3), 4));
}

#[test]
fn files_without_a_rule_that_can_be_translated_write_nothing() {
    let directory = folder(
        &KYVERNO
            .replace("kinds: [Node]", "kinds: [Node, Pod]")
            .replace("[Node, Pod], operations", "[Node], operations"),
    );
    let at = directory.path();
    let left = refused(at, &["init", "--from-kyverno", "kyverno.yaml"], "");
    assert!(left.contains("no rule has an exact translation, so no file was written"), "{left}");
    let listed = nodegate(at, &["init", "--from-kyverno", "kyverno.yaml", "-o", "json"], "");
    let summary: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_conforms("init-from", &summary);
    assert_eq!((&summary["files"], summary["leftOut"].as_array().unwrap().len()), (&json!([]), 2));
    let pods = KYVERNO.replace("[Node]", "[Pod]");
    let none = refused(at, &["init", "--from-kyverno", "-"], &pods);
    assert!(none.contains("found no rule that changes nodes"), "{none}");
    let wrong = refused(at, &["init", "--from-nfd", "kyverno.yaml"], "");
    assert!(wrong.contains("kyverno.yaml:2:7") && wrong.contains("pass NodeFeatureRules"), "{wrong}");
    let twice = refused(at, &["init", "--from-kyverno", "-"], "kind: ClusterPolicy\nkind: ClusterPolicy\n");
    assert!(twice.contains("standard input:2:1"), "{twice}");
    let flags = ["--from-nfd", "--by", "--include", "--kubeconfig", "--pending-taint-key"];
    for more in flags.map(|flag| [flag, "example.com/a"]) {
        let both = refused(at, &[&["init", "--from-kyverno", "kyverno.yaml"], &more[..]].concat(), "");
        assert!(both.contains("cannot be used with"), "{both}");
    }
    assert!(!at.join("policy").exists());
}

#[test]
fn rules_that_cannot_be_one_policy_write_nothing() {
    // Each rule by itself takes a third of what all may take.
    let long = ["a".repeat(60), "b".repeat(60), "c".repeat(60), "d".repeat(50)].join(".");
    let mut rules = KYVERNO.split("    - name").next().unwrap().to_owned();
    for number in 0..4 {
        let names = (0..100).map(|at| format!("\"{long}-{number}-{at}*x*y*\"")).collect::<Vec<_>>().join(", ");
        rules.push_str(&format!(
            "    - name: r{number}\n      match: {{any: [{{resources: {{kinds: [Node], names: [{names}]}}}}]}}\n      \
             mutate: {{patchStrategicMerge: {{metadata: {{labels: {{l{number}: x}}}}}}}}\n"
        ));
    }
    let directory = folder(&rules);
    let error = refused(directory.path(), &["init", "--from-kyverno", "kyverno.yaml"], "");
    for part in ["the 4 rules that have an exact translation cannot be one policy: ", "32 MiB", "; no file was written"]
    {
        assert!(error.contains(part), "{error}");
    }
    assert!(!directory.path().join("policy").exists());
}

#[test]
fn the_comment_of_a_translation_is_about_its_rules() {
    let comment = |flag: &str, rules: &str| {
        let directory = tempfile::tempdir().unwrap();
        assert!(nodegate(directory.path(), &["init", flag, "-"], rules).status.success());
        let policy = std::fs::read_to_string(directory.path().join("policy/policy.yaml")).unwrap();
        policy.lines().skip(1).take_while(|line| line.starts_with('#')).collect::<Vec<_>>().join("\n")
    };
    let taint = "          spec: {taints: [{key: pool, value: gpu, effect: NoSchedule}]}\n";
    assert!(comment("--from-kyverno", KYVERNO).contains("adds taints"));
    let without = comment("--from-kyverno", &KYVERNO.replace(taint, ""));
    assert!(without.ends_with("says why.") && !without.contains("taint"), "{without}");
    let nfd = |conditions: &str| {
        format!(
            "apiVersion: nfd.k8s-sigs.io/v1alpha1\nkind: NodeFeatureRule\nmetadata: {{name: a}}\nspec: {{rules: [{{labels: {{b: c}}{conditions}}}]}}\n"
        )
    };
    let major = ", matchFeatures: [{feature: kernel.version, matchExpressions: {major: {op: Exists}}}]";
    assert!(comment("--from-nfd", &nfd(major)).contains("keep Node Feature"));
    assert_eq!(comment("--from-nfd", &nfd("")), "# What `nodegate init --from-nfd` translated.");
}

#[test]
fn rules_of_nfd_are_translated_by_the_labels_that_its_worker_publishes() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let rules = "apiVersion: nfd.k8s-sigs.io/v1alpha1\nkind: NodeFeatureRule\nmetadata: {name: a}\nspec:\n  rules:\n    \
                 - name: new\n      labels: {new: \"true\"}\n      matchFeatures:\n        \
                 - {feature: kernel.version, matchExpressions: {major: {op: Gt, value: [\"5\"]}}}\n    \
                 - {name: gpu, labels: {gpu: \"true\"}, matchFeatures: [{feature: pci.device, matchExpressions: {vendor: {op: In, value: [10de]}}}]}\n";
    std::fs::write(at.join("nfd.yaml"), rules.replace("10de", "\"10de\"")).unwrap();
    let summary = printed(at, &["init", "--from-nfd", "nfd.yaml"], 0);
    assert!(summary.contains("a-new  nfd.yaml:6  feature.node.kubernetes.io/new=true"), "{summary}");
    assert!(summary.contains("pci.device (vendor) has no exact counterpart"), "{summary}");
    let tested = printed(at, &["test", "policy"], 0);
    assert!(tested.ends_with("\n3 passed, 0 failed\n"), "{tested}");
    printed(at, &["check", "policy/policy.yaml"], 0);
}
