//! `nodegate check`: faults of policies, without nodes.

use std::process::{Command, Output};

use serde_json::{Value, json};

fn policy(name: &str, spec: &str) -> String {
    format!("{{apiVersion: nodegate.dev/v1alpha1, kind: NodePolicy, metadata: {{name: {name}}}, spec: {spec}}}")
}

/// Checks a directory of these policies.
fn check(policies: &[(&str, &str)], arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    for (name, spec) in policies {
        std::fs::write(directory.path().join(format!("{name}.yaml")), policy(name, spec)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.arg("check").arg(directory.path()).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const GOLD: (&str, &str) = (
    "gold",
    "{rules: [{name: all, labels: {tier: gold}}, {name: named, match: {names: [a]}, labels: {x: y}}], governance: {required: [{keys: [x]}]}}",
);
const LEAD: (&str, &str) = ("lead", "{rules: [{name: all, labels: {tier: lead}}]}");

#[test]
fn policies_without_faults_are_listed() {
    let output = check(&[GOLD], &["--exit-code"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), " POLICY  RULES  GOVERNANCE ENTRIES\n gold    2      1\n\nno errors\n");
}

#[test]
fn rules_of_different_policies_that_set_other_values_are_warnings() {
    let conflict = "label tier: rule gold/all takes precedence over rule lead/all where both match";
    let output = check(&[GOLD, LEAD], &["-o", "json"]);
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "warnings alone are no failure");
    assert_eq!(checked["warnings"], json!([conflict]));
    assert_eq!(
        checked["policies"],
        json!([{"name": "gold", "rules": 2, "entries": 1}, {"name": "lead", "rules": 1, "entries": 0}])
    );
    let output = check(&[GOLD, LEAD], &["--exit-code"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).ends_with(&format!("\n\nwarning: {conflict}\nno errors, 1 warning\n")),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn a_resource_that_is_almost_a_known_one_is_a_warning() {
    let gpus = (
        "gpus",
        r#"{rules: [{name: gpus, match: {capacity: {nvdia.com/gpu: ">=1", example.com/dongle: ">=1"}}, labels: {tier: gpu}}]}"#,
    );
    let output = check(&[gpus], &["--exit-code"]);
    let warning =
        r#"warning: gpus/gpus: "nvdia.com/gpu" is not a resource that nodegate knows; did you mean "nvidia.com/gpu"?"#;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).ends_with(&format!("\n\n{warning}\nno errors, 1 warning\n")),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn errors_for_other_programs_have_their_place_message_and_help_in_fields() {
    let wrong = ("wrong", "{rules: [{name: a, labels: {tier: 1.10}}]}");
    let output = check(&[wrong], &["-o", "json"]);
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut error = checked["errors"][0].clone();
    assert!(error["file"].take().as_str().unwrap().ends_with("wrong.yaml"));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        error,
        json!({"file": null, "line": 1, "column": 120, "policy": "wrong", "field": "spec.rules[0].labels.tier",
            "message": "expected a string, found 1.10", "help": "write it in quotes: \"1.10\""})
    );
    assert_eq!(checked["errors"].as_array().unwrap().len(), 1, "nothing follows from it: {checked}");
    assert!(text(&output.stderr).starts_with("error: expected a string, found 1.10\n"), "{}", text(&output.stderr));
    let missing = Command::new(env!("CARGO_BIN_EXE_nodegate")).args(["check", "-o", "json", "/missing.yaml"]).output();
    let checked: Value = serde_json::from_slice(&missing.unwrap().stdout).unwrap();
    assert_eq!(checked["errors"][0]["file"], "/missing.yaml");
}

#[test]
fn a_warning_is_one_line_whatever_a_rule_is_named() {
    let odd = ("odd", r#"{rules: [{name: "a\n  no errors", labels: {tier: lead}}]}"#);
    let printed = text(&check(&[GOLD, odd], &[]).stdout);
    assert_eq!(printed.lines().filter(|line| line.starts_with("warning: ")).count(), 1, "{printed}");
    assert!(printed.contains("rule odd/a\\u000a  no errors where both match"), "{printed}");
}

#[test]
fn every_error_is_reported_with_its_file_and_makes_it_exit_with_2() {
    let output = check(&[GOLD, ("wrong", "{rules: [{name: a, lables: {a: b}}, {name: b, labels: {a b: c}}]}")], &[]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
    assert!(
        said.contains("wrong.yaml:1:") && said.contains("did you mean \"labels\"") && said.contains("\"a b\""),
        "{said}"
    );
    let nothing = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("check").output().unwrap();
    assert_eq!(nothing.status.code(), Some(2), "a check of nothing is no success");
}

#[test]
fn what_is_no_text_file_is_an_error_and_never_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(path("policies")).unwrap();
    std::fs::create_dir_all(path("labels/example.com")).unwrap();
    for pipe in ["policies/a.yaml", "labels/example.com/fpga"] {
        assert!(Command::new("mkfifo").arg(path(pipe)).status().unwrap().success());
    }
    // UTF-16, as some editors save it, and text that is cut inside a character.
    let wide: Vec<u8> = "\u{feff}apiVersion: x\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(path("policies/wide.yaml"), wide).unwrap();
    std::fs::write(path("policies/cut.yaml"), b"a: 1\nb: \xc3").unwrap();
    let output = Command::new("timeout")
        .args(["20", env!("CARGO_BIN_EXE_nodegate"), "export", "admission-policies", "--policy", "/dev/zero"])
        .arg("--policy")
        .arg(path("policies"))
        .arg("--labels-dir")
        .arg(path("labels"))
        .output()
        .unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    for (file, why) in [
        ("policies/a.yaml", "is a pipe, a socket or a device; remove it, or put a file in its place"),
        ("labels/example.com/fpga", "is a pipe, a socket or a device; remove it, or put a file in its place"),
        ("policies/wide.yaml", "line 1 is not UTF-8; save the file as UTF-8"),
        ("policies/cut.yaml", "line 2 is not UTF-8; save the file as UTF-8"),
        ("/dev/zero", "is larger than 16 MiB, the maximum"),
    ] {
        assert!(errors.lines().any(|line| line.ends_with(&format!("{file}: {why}"))), "{file}: {why} in\n{errors}");
    }
}

#[test]
fn a_policy_may_come_from_another_programs_output() {
    let document = policy(GOLD.0, GOLD.1);
    let mut shell = Command::new("bash");
    shell.args(["-c", "exec \"$1\" check <(printf %s \"$2\")", "-", env!("CARGO_BIN_EXE_nodegate"), &document]);
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains(" gold    2      1\n"), "{}", text(&output.stdout));
}
