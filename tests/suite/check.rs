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
    let output = check(&[GOLD], &["--strict"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), " POLICY  RULES  GOVERNANCE ENTRIES\n gold    2      1\n\nno errors\n");
}

#[test]
fn rules_of_one_priority_that_set_other_values_are_warnings() {
    let conflict = "rule gold/all takes precedence over rule lead/all on every node, only because its policy's name sorts \
                    first (label tier: \"gold\", not \"lead\")";
    let help = "give the rule that should win a higher priority, such as \"priority: 10\"";
    let output = check(&[GOLD, LEAD], &["-o", "json"]);
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "warnings alone are no failure");
    let mut lint = checked["lints"][0].clone();
    assert!(lint["file"].take().as_str().unwrap().ends_with("lead.yaml"));
    assert_eq!(
        lint,
        json!({"lint": "conflict", "file": null, "line": 1, "column": 121, "policy": "lead", "field": "spec.rules[0].labels.tier",
            "message": conflict, "help": help})
    );
    let sentence = checked["warnings"][0].as_str().unwrap();
    assert!(
        sentence.ends_with(&format!("lead.yaml:1:121: rule \"all\" (spec.rules[0].labels.tier): {conflict}; {help}"))
    );
    assert_eq!(
        checked["policies"],
        json!([{"name": "gold", "rules": 2, "entries": 1}, {"name": "lead", "rules": 1, "entries": 0}])
    );
    for strict in ["--strict", "--exit-code"] {
        let output = check(&[GOLD, LEAD], &[strict]);
        assert_eq!(output.status.code(), Some(1));
        let printed = text(&output.stdout);
        assert!(printed.contains(&format!("\n\nwarning[conflict]: {conflict}\n")), "{printed}");
        assert!(printed.contains("lead.yaml:1:121\n") && printed.ends_with("\nno errors, 1 warning\n"), "{printed}");
    }
    let higher = ("lead", "{rules: [{name: all, labels: {tier: lead}, priority: 10}]}");
    assert_eq!(check(&[GOLD, higher], &["--strict"]).status.code(), Some(0));
}

#[test]
fn the_examples_and_presets_have_no_warnings() {
    let mut policies = Vec::new();
    let mut directories = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples"))];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.file_name().is_some_and(|name| name == "policy.yaml") {
                policies.push(path);
            }
        }
    }
    assert!(policies.len() > 3, "{policies:?}");
    for path in policies {
        let output =
            Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("check").arg(&path).arg("--strict").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}: {}", path.display(), text(&output.stdout));
    }
    let presets = (
        "all",
        "{presets: [aliases, aks, baseline, cluster-api, eks, gpu, karpenter, kubeadm, openshift, vendor-guard]}",
    );
    let output = check(&[presets], &["--strict"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn a_resource_that_is_almost_a_known_one_is_a_warning() {
    let gpus = (
        "gpus",
        r#"{rules: [{name: gpus, match: {capacity: {nvdia.com/gpu: ">=1", example.com/dongle: ">=1"}}, labels: {tier: gpu}}]}"#,
    );
    let output = check(&[gpus], &["--strict"]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    let warning = r#"warning[mistyped-resource]: "nvdia.com/gpu" is not a resource that nodegate knows"#;
    assert!(printed.contains(&format!("\n\n{warning}\n")), "{printed}");
    assert!(printed.contains(r#"help: did you mean "nvidia.com/gpu"?"#), "{printed}");
    assert!(printed.ends_with("\nno errors, 1 warning\n"), "{printed}");
}

/// The warnings of `check --strict`: each with its name and field.
fn warned(spec: &str) -> Vec<String> {
    let output = check(&[("warned", spec)], &["--strict", "-o", "json"]);
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lints = checked["lints"].as_array().unwrap();
    let of = |lint: &Value| {
        format!("{} {}", lint["lint"].as_str().unwrap_or_default(), lint["field"].as_str().unwrap_or_default())
    };
    assert_eq!(output.status.code(), Some(i32::from(!lints.is_empty())), "{checked}");
    lints.iter().map(of).collect()
}

#[test]
fn what_opens_a_gate_or_matches_nobody_is_a_warning() {
    let reserved = |allow: &str| format!("{{governance: {{reserved: [{{name: r, keys: [tier]{allow}}}]}}}}");
    let allow = "spec.governance.reserved[0].allow";
    for (given, lint, field) in [
        ("groups: [system:authenticated]", "open-gate", "groups[0]"),
        ("groups: [\"*\"]", "open-gate", "groups[0]"),
        ("users: [\"*\"]", "open-gate", "users[0]"),
        ("serviceAccounts: [\"*:*\"]", "open-gate", "serviceAccounts[0]"),
        ("serviceAccounts: [\"?*:*\"]", "open-gate", "serviceAccounts[0]"),
        ("users: [\"**\"]", "open-gate", "users[0]"),
        ("users: [\"system:*\"]", "open-gate", "users[0]"),
        ("users: [\"system:serviceaccount:*\"]", "open-gate", "users[0]"),
        ("users: [\"system:node:*\"]", "open-gate", "users[0]"),
        ("groups: [\"system:auth*\"]", "open-gate", "groups[0]"),
        ("groups: [team, system:master]", "mistyped-subject", "groups[1]"),
        ("users: [\"kube-system:node-controller\"]", "mistyped-subject", "users[0]"),
    ] {
        assert_eq!(warned(&reserved(&format!(", allow: {{{given}}}"))), [format!("{lint} {allow}.{field}")], "{given}");
    }
    assert_eq!(warned(&reserved("")), ["nobody-allowed spec.governance.reserved[0]"]);
    let fine = ", allow: {groups: [system:masters, system:serviceaccounts:ops, team], users: [alice, \"system:serviceaccount:a:b\"], serviceAccounts: [\"a:b\"]}";
    assert_eq!(warned(&reserved(fine)), [""; 0]);
    let glass = "{governance: {naming: [{name: n, keys: [tier], maxLength: 9, except: {users: [\"*\"], serviceAccounts: [\"*:*\"]}}], breakGlass: {groups: [\"*\"]}}}";
    assert_eq!(
        warned(glass),
        ["open-gate spec.governance.naming[0].except.users[0]", "open-gate spec.governance.breakGlass.groups[0]"]
    );
    let evict = "{rules: [{name: a, taints: [{key: k, effect: NoExecute}], evict: true}, {name: b, match: {names: [x]}, taints: [{key: l, effect: NoExecute}], evict: true}]}";
    assert_eq!(warned(evict), ["evicts-everywhere spec.rules[0].evict"]);
    for every in ["{}", "{names: [\"*\"]}"] {
        let evict =
            format!("{{rules: [{{name: a, match: {every}, taints: [{{key: k, effect: NoExecute}}], evict: true}}]}}");
        assert_eq!(warned(&evict), ["evicts-everywhere spec.rules[0].evict"], "{every}");
    }
    let covers = |entry: &str| warned(&format!("{{governance: {{reserved: [{{name: r, {entry}}}]}}}}"));
    let admins = "allow: {groups: [platform-team]}";
    for forgets in [
        "namespaces: [node.kubernetes.io]",
        "namespaces: [\"*.kubernetes.io\"]",
        "keys: [node.kubernetes.io/unreachable]",
    ] {
        let found = covers(&format!("{forgets}, {admins}"));
        assert_eq!(found, ["covers-control-plane spec.governance.reserved[0]"], "{forgets}");
    }
    for fine in [
        "namespaces: [node.kubernetes.io], allow: {serviceAccounts: [\"kube-system:*\"], users: [system:kube-controller-manager]}",
        "namespaces: [example.com], allow: {groups: [platform-team]}",
        "keys: [node.kubernetes.io/unreachable], of: [labels], allow: {groups: [platform-team]}",
    ] {
        assert_eq!(covers(fine), [""; 0], "{fine}");
    }
}

#[test]
fn a_pool_that_nobody_defines_is_a_warning() {
    let matched = |pools: &str, matched: &str| {
        warned(&format!(
            "{{{pools}rules: [{{name: a, match: {{anyOf: [{{pools: [{matched}]}}]}}, labels: {{a: b}}}}]}}"
        ))
    };
    let place = "unknown-pool spec.rules[0].match.anyOf[0].pools[0]";
    assert_eq!(matched("", "gpu"), [place]);
    let pools = "pools: [{name: gpu-h100, names: [a]}], ";
    for unknown in ["gpu-h10", "\"cpu-*\""] {
        assert_eq!(matched(pools, unknown), [place], "{unknown}");
    }
    for fine in ["gpu-h100", "\"gpu-*\"", "\"*\""] {
        assert_eq!(matched(pools, fine), [""; 0], "{fine}");
    }
}

#[test]
fn what_a_file_may_have_and_apply_refuses_is_a_warning() {
    let rule = |taint: &str| warned(&format!("{{rules: [{{name: a, taints: [{taint}]}}]}}"));
    for text in ["dedicated=ml:NoSchedule", "\"dedicated:NoSchedule\"", "'key:NoExecute'"] {
        assert_eq!(rule(text), ["only-in-files spec.rules[0].taints[0]"], "{text}");
    }
    for mapping in ["{key: dedicated, effect: NoSchedule}", "{\"effect\": NoSchedule, \"key\": k}"] {
        assert_eq!(rule(mapping), [""; 0], "{mapping}");
    }
    let matched = |taint: &str| {
        warned(&format!("{{rules: [{{name: a, match: {{anyOf: [{{taints: [{taint}]}}]}}, labels: {{a: b}}}}]}}"))
    };
    assert_eq!(matched("dedicated:NoSchedule"), [""; 0]);
    assert_eq!(matched("{key: dedicated}"), ["only-in-files spec.rules[0].match.anyOf[0].taints[0]"]);
    let file = |metadata: &str| {
        let directory = tempfile::tempdir().unwrap();
        let head = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nspec: {}\n";
        std::fs::write(directory.path().join("a.yaml"), format!("{head}metadata: {{name: a, {metadata}}}\n")).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("check").arg(directory.path()).output().unwrap();
        format!("{}{}", text(&output.stdout), text(&output.stderr))
    };
    assert!(!file("labels: {a: b}, annotations: {c: d}").contains("only-in-files"));
    let told = file("lables: {a: b}");
    for part in ["only-in-files", "the field \"lables\" of metadata", "did you mean \"labels\"?"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let many = (0..2_001).map(|at| format!("{{name: r{at}, labels: {{l{at}: x}}}}")).collect::<Vec<_>>().join(", ");
    assert_eq!(warned(&format!("{{rules: [{many}]}}")), ["only-in-files spec.rules"]);
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
fn a_warning_has_one_title_whatever_a_rule_is_named() {
    let odd = ("odd", r#"{rules: [{name: "a\n  no errors", labels: {tier: lead}}]}"#);
    let printed = text(&check(&[GOLD, odd], &[]).stdout);
    assert_eq!(printed.lines().filter(|line| line.starts_with("warning[conflict]: ")).count(), 1, "{printed}");
    assert!(printed.contains("rule odd/a\\u000a  no errors on every node"), "{printed}");
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
    // Texts that are cut inside a character, in UTF-16 and in UTF-8.
    let mut wide: Vec<u8> = "\u{feff}apiVersion: x\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    wide.push(b'k');
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
        ("policies/wide.yaml", "line 2 is not UTF-16; save the file as UTF-8"),
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

#[test]
fn a_directory_that_init_has_written_is_accepted_where_policies_are() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {team: ml}}\n";
    std::fs::write(directory.path().join("nodes.yaml"), nodes).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(arguments).current_dir(directory.path()).output().unwrap()
    };
    assert!(run(&["init", "nodes.yaml"]).status.success());
    for arguments in [&["check", "policy", "--strict"] as &[&str], &["plan", "--policy", "policy", "nodes.yaml"]] {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    }
    for command in ["check", "test", "plan"] {
        let told = |arguments: &[&str]| text(&run(arguments).stderr).matches("skipped").count();
        let from = if command == "plan" { vec!["--policy", "policy", "nodes.yaml"] } else { vec!["policy"] };
        assert_eq!(told(&[&[command], &*from].concat()), 0, "{command}");
        assert!(told(&[&[command, "-v"], &*from].concat()) > 0, "{command}");
    }
    // Named by itself, it is an error, and so is a directory without a policy.
    assert_eq!(run(&["check", "policy/test.yaml"]).status.code(), Some(2));
    std::fs::remove_file(directory.path().join("policy/policy.yaml")).unwrap();
    let without = run(&["check", "policy"]);
    assert_eq!(without.status.code(), Some(2));
    assert!(
        text(&without.stderr).contains("contains no NodePolicy, only tests or schemas"),
        "{}",
        text(&without.stderr)
    );
}
