//! Case files run by the real `nodegate test`: the examples, and a table for each part of the semantics.

use std::process::Command;

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
        assert!(has_policy || !path.is_dir() || path.ends_with("apply-job"), "{} has no policy", path.display());
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
fn a_case_that_does_not_hold_fails_with_what_differs() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("test.yaml");
    let text = "apiVersion: nodegate.dev/v1alpha1\nkind: PolicyTest\npolicy: {rules: [{name: r, labels: {a: \"1\"}}]}\ncases:\n  - {name: wrong, node: {name: n}, expect: {labels: {a: \"2\"}, deferred: [x]}}\n";
    std::fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("test").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("label a: expected \"2\", is \"1\"") && text.contains("deferred: expected"), "{text}");
    std::fs::write(&file, "apiVersion: nodegate.dev/v1alpha1\nkind: PolicyTest\ncasez: []\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("test").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains(":3:1: casez: unknown field; did you mean \"cases\"?"));
}
