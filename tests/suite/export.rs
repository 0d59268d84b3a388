//! `nodegate export`: what is printed, and what is said of what is not.

use std::process::{Command, Output};

use serde_json::Value;

fn export(policy: &str, arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, policy).unwrap();
    Command::new(env!("CARGO_BIN_EXE_nodegate"))
        .args(["export", "admission-policies", "--policy"])
        .arg(&file)
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn policy(spec: &str) -> String {
    format!("{{apiVersion: nodegate.dev/v1alpha1, kind: NodePolicy, metadata: {{name: p}}, spec: {spec}}}")
}

/// The lines on standard error as (entry, reason).
fn left_out(output: &Output) -> Vec<(String, String)> {
    let lines = text(&output.stderr);
    let columns = |line: &str| {
        let mut columns = line.split("  ").map(str::trim).filter(|column| !column.is_empty()).map(str::to_owned);
        Some((columns.nth(1)?, columns.next()?))
    };
    lines.lines().skip(1).filter_map(columns).collect()
}

#[test]
fn rules_that_cannot_be_exported_are_listed_with_the_reason_and_so_are_those_that_depend_on_them() {
    let spec = r#"{
      rules: [
        {name: static, match: {names: [a]}, labels: {tier: gold}},
        {name: gpu, match: {gpu: {vendor: nvidia}}, labels: {accelerator: nvidia, tier: silver}, priority: 1},
        {name: reader, match: {selector: {matchLabels: {accelerator: nvidia}}}, labels: {fast: "true"}},
        {name: computed, match: {names: [a]}, labels: {kept: "1"}, labelExpressions: {size: "node.metadata.name"}},
        {name: absence, match: {selector: {matchExpressions: [{key: nvidia.com/gpu.present, operator: DoesNotExist}]}}, labels: {plain: "true"}},
        {name: dynamic, match: {expression: 'node.metadata.labels.exists(k, k == "x")'}, labels: {some: "true"}},
        {name: kept-default, labels: {zone: a}, mode: default},
        {name: image, match: {osImage: ["Ubuntu 2?.04*"]}, labels: {imaged: "true"}},
        {name: kernel, match: {kernel: [">=5.15"]}, labels: {modern: "true"}},
      ],
      persist: {labels: [zone]},
      governance: {
        naming: [{name: words, keys: ["*"], pattern: kebab-case}, {name: unicode, keys: ["*"], regex: '\p{Ll}+'}],
        dependencies: [{name: needs, match: {selector: {matchLabels: {a: b}}}, when: {c: "*"}, forbid: [d]}],
        expressions: [{name: whole, expression: 'object.metadata != oldObject.metadata'}],
      },
    }"#;
    let output = export(&policy(spec), &["--exit-code"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let listed = left_out(&output);
    for (entry, reason) in [
        ("gpu", "GPU inference"),
        ("static: label tier", "rule p/gpu, which is not exported, may set it with higher precedence"),
        ("reader", "reads label accelerator, which rule p/gpu may set"),
        ("computed: label size", "computed"),
        ("absence", "publisher"),
        ("dynamic", "reads labels by computed keys"),
        ("persist", "saved state"),
        ("kept-default: label zone", "p/persist"),
        ("image", "osImage glob with ?"),
        ("unicode", "RE2"),
        ("needs", "depends on fields that a write may change"),
        ("whole", "as a whole"),
    ] {
        let found = listed.iter().find(|(listed, _)| listed == entry);
        assert!(found.is_some_and(|(_, said)| said.contains(reason)), "{entry} ({reason}) in {listed:#?}");
    }
    assert_eq!(listed.len(), 12, "{listed:#?}");
    // Validating policies name what rules that are not exported may give.
    let objects = text(&output.stdout);
    let objects = objects.split("kind: ValidatingAdmissionPolicy").next().unwrap();
    assert!(objects.contains("kept") && objects.contains("modern"), "{objects}");
    assert!(!objects.contains("silver") && !objects.contains("fast") && !objects.contains("imaged"), "{objects}");
}

#[test]
fn yaml_and_json_are_the_same_objects_whatever_the_texts() {
    let spec = r#"{rules: [{name: "odd: #name", match: {names: ["n-[0-9]?*"]}, annotations: {
        example.com/a: "two  spaces, \"quotes\", a \\ and\nanother line\t: # end ",
        example.com/b: "a very long text with words that a folding writer might break in two places or in three places, and é€😀"}}]}"#;
    let yaml = export(&policy(spec), &[]);
    let json = export(&policy(spec), &["-o", "json", "--self-user", "me"]);
    assert_eq!((yaml.status.code(), json.status.code()), (Some(0), Some(0)), "{}", text(&yaml.stderr));
    assert!(text(&yaml.stderr).contains("--self-user") && json.stderr.is_empty(), "{}", text(&json.stderr));
    let yaml = export(&policy(spec), &["--self-user", "me"]);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text(&yaml.stdout)).unwrap();
    let list: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(Value::from(documents), list["items"]);
}

#[test]
fn an_invalid_policy_is_not_exported() {
    let output = export(&policy("{rules: [{name: a}]}"), &[]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(text(&output.stderr).contains("sets nothing"), "{}", text(&output.stderr));
}

#[test]
fn a_table_of_many_machines_fits_into_expressions() {
    // cel-go reads expressions of at most 100,000 characters.
    let rules: Vec<String> = (0..600)
        .map(|at| {
            format!(
                "{{name: m{at}, match: {{names: [machine-{at}]}}, labels: {{tier: tier-{}, rack-{at}: x}}}}",
                at % 7
            )
        })
        .collect();
    let output = export(&policy(&format!("{{rules: [{}]}}", rules.join(", "))), &["-o", "json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let texts = list.to_string();
    let longest = texts.split("\"expression\":").map(str::len).max().unwrap();
    assert!(longest < 100_000 && texts.len() < 1_500_000, "{longest} of {}", texts.len());
}
