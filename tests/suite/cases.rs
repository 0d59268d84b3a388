//! Case files run by the real `nodegate test`: the examples, and a table for each part of the semantics.

use std::collections::BTreeSet;
use std::process::Command;

use nodegate_policy::api::policy::{ConditionsSpec, GovernanceSpec};
use nodegate_policy::api::schema::schema_of;
use schemars::JsonSchema;
use serde_json::Value;

/// The names of the fields of a part of a policy.
fn fields_of<T: JsonSchema>() -> BTreeSet<String> {
    schema_of::<T>()["properties"].as_object().unwrap().keys().cloned().collect()
}

fn passes(path: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate"))
        .args(["test", path])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        text.lines().last().is_some_and(|line| line.ends_with(" passed, 0 failed") && !line.starts_with("0 ")),
        "{text}"
    );
}

#[test]
fn every_example_passes_its_cases() {
    for example in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap() {
        let path = example.unwrap().path();
        let has_policy = path.join("policy.yaml").is_file();
        let of_others =
            ["apply-job", "descheduler", "gitops", "monitoring", "probe"].iter().any(|name| path.ends_with(name));
        assert!(has_policy || !path.is_dir() || of_others, "{} has no policy", path.display());
        if has_policy {
            passes(path.to_str().unwrap());
        }
    }
}

#[test]
fn every_table_case_passes() {
    passes("tests/cases");
}

#[test]
fn every_condition_and_every_kind_of_governance_has_cases() {
    let (mut conditions, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        for document in documents.iter().filter(|document| document.get("cases").is_some()) {
            let policy = &document["policy"];
            for rule in policy["rules"].as_array().into_iter().flatten() {
                let alternatives = rule["match"]["anyOf"].as_array().into_iter().flatten();
                let groups = [&rule["match"]].into_iter().chain(alternatives).filter_map(Value::as_object);
                conditions.extend(groups.flat_map(|group| group.keys().cloned()));
            }
            kinds.extend(policy["governance"].as_object().into_iter().flat_map(|kinds| kinds.keys().cloned()));
        }
    }
    let without: Vec<String> = fields_of::<ConditionsSpec>().difference(&conditions).cloned().collect();
    assert!(without.is_empty(), "no file in tests/cases has a rule that matches on {without:?}");
    let without: Vec<String> = fields_of::<GovernanceSpec>().difference(&kinds).cloned().collect();
    assert!(without.is_empty(), "no file in tests/cases has cases for governance.{without:?}");
}

#[test]
fn a_failing_case_reports_the_differences() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("test.yaml");
    let text = "apiVersion: nodegate.dev/v1alpha1\nkind: PolicyTest\npolicy: {rules: [{name: r, labels: {a: \"1\"}}]}\ncases:\n  - {name: wrong, node: {name: n}, expect: {labels: {a: \"2\"}, absent: [a], deferred: [x, b], pending: true, verdict: deny}}\n";
    std::fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("test").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    for difference in [
        "label a: expected \"2\", got \"1\"\n",
        "a: expected absent, got \"1\"\n",
        "deferred: expected [b, x], got []\n",
        "pending: expected true, got false\n",
        "verdict: expected \"deny\", got \"allow\"\n",
    ] {
        assert!(text.contains(difference), "{difference}: {text}");
    }
    std::fs::write(&file, "apiVersion: nodegate.dev/v1alpha1\nkind: PolicyTest\ncasez: []\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("test").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    for part in ["error: unknown field \"casez\"", "test.yaml:3:1", "3 | casez: []", "help: did you mean \"cases\"?"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// Runs the real binary: exit code and both outputs together.
fn nodegate(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_field_without_a_value_is_an_error_in_policies_cases_and_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let head = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: p}\nspec:\n";
    let node = write("node.yaml", "{apiVersion: v1, kind: Node, metadata: {name: n, creationTimestamp: null}}");
    for (spec, place, remedy) in [
        ("  rules:\n", "policy.yaml:5:3", "write a list"),
        ("  rules:\n  - name: tier\n    match:\n    labels: {a: b}\n", "policy.yaml:7:5", "write {}"),
        ("  rules:\n  - {name: tier, labels: {key: , a: b}}\n", "policy.yaml:6:27", "write \"\""),
        ("  governance: {breakGlass: {groups: }}\n", "policy.yaml:5:29", "write a list"),
    ] {
        let policy = write("policy.yaml", &format!("{head}{spec}"));
        let (code, text) = nodegate(&["plan", "--policy", &policy, &node]);
        assert!(code == Some(2) && text.contains("error: the field has no value"), "{spec}: {text}");
        assert!(text.contains(place) && text.contains(&format!("help: {remedy}")), "{spec}: {text}");
    }
    let policy = write("policy.yaml", &format!("{head}  protect: {{keys: [a, ]}}\n  persist: {{labels: [~]}}\n"));
    let (code, text) = nodegate(&["plan", "--policy", &policy, &node]);
    assert!(code == Some(2) && text.contains("expected a string, found nothing"), "{text}");
    let test = |cases: &str| {
        let head = "apiVersion: nodegate.dev/v1alpha1\nkind: PolicyTest\n";
        nodegate(&["test", &write("test.yaml", &format!("{head}{cases}"))])
    };
    for (cases, place) in [
        (
            "policy: {rules: [{name: a, labels: {key: }}]}\ncases: [{name: x, node: {name: n}, expect: {}}]\n",
            "test.yaml:3:37",
        ),
        ("policy: {}\ncases: [{name: x, node: {name: n, labels: {key: }}, expect: {}}]\n", "test.yaml:4:44"),
        ("policy: {}\ncases: [{name: x, node: {name: n}, expect: {labels: {key: }}}]\n", "test.yaml:4:54"),
        ("policy: {}\ncases: [{name: x, node: {name: n}, expect: }]\n", "test.yaml:4:36"),
        ("policy:\ncases: [{name: x, node: {name: n}, expect: {}}]\n", "test.yaml:3:1"),
    ] {
        let (code, text) = test(cases);
        assert!(code == Some(2) && text.contains(place) && text.contains("the field has no value"), "{cases}: {text}");
    }
    let policy = write("policy.yaml", &format!("{head}  rules: [{{name: a, labels: {{a: b}}}}]\n"));
    let valueless = write("valueless.yaml", "kind: Node\nmetadata:\n  name: n\n  labels:\n    key:\n");
    let (code, text) = nodegate(&["plan", "--policy", &policy, &valueless]);
    assert!(
        code == Some(2) && text.contains("\"key\" has no value\n --> ") && text.contains("valueless.yaml:5:5\n"),
        "{text}"
    );
    let (code, text) = nodegate(&["plan", "--policy", &policy, &node]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn input_without_policies_nodes_or_cases_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let folder = directory.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("README.md"), "nothing").unwrap();
    let folder = folder.to_str().unwrap();
    let node = write("node.yaml", "{kind: Node, metadata: {name: n}}");
    let policy = write(
        "policy.yaml",
        "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: p}\nspec: {rules: [{name: a, labels: {a: b}}]}\n",
    );
    let sound = write(
        "test.yaml",
        "apiVersion: nodegate.dev/v1alpha1\nkind: PolicyTest\npolicy: {}\ncases: [{name: x, node: {name: n}, expect: {}}]\n",
    );
    let empty = [write("empty.yaml", ""), write("comment.yaml", "---\n# nothing\n---\n"), folder.to_owned()];
    for nothing in &empty {
        let commands: [&[&str]; 5] = [
            &["plan", "--policy", &policy, nothing],
            &["plan", "--policy", nothing, &node],
            &["test", nothing],
            &["test", &sound, nothing],
            &["render", "webhooks", "--url", "https://127.0.0.1:1", "--policy", nothing],
        ];
        for command in commands {
            let (code, text) = nodegate(command);
            let name = std::path::Path::new(nothing).file_name().unwrap().to_str().unwrap();
            assert!(code == Some(2) && text.contains(name) && text.contains(": contains no "), "{command:?}: {text}");
        }
    }
    let list = write("list.yaml", "{apiVersion: v1, kind: List, items: []}");
    let (code, text) = nodegate(&["plan", "--policy", &policy, &list]);
    assert!(code == Some(2) && text.contains("list.yaml: contains no Node"), "{text}");
    let untested = write("untested.yaml", "apiVersion: nodegate.dev/v1alpha1\nkind: PolicyTest\npolicy: {}\n");
    let (code, text) = nodegate(&["test", &untested]);
    assert!(code == Some(2) && text.contains("the PolicyTest has no cases; add cases"), "{text}");
}
