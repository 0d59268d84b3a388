//! The key of the pending taint on the command line: what is refused, and what is warned of.

use serde_json::Value;

use super::serve::{Serve, command};

const UNKNOWN: &str = "example.com/wait";

#[test]
fn a_key_that_no_autoscaler_knows_is_told_when_the_server_starts() {
    let told = |arguments: &[&str]| {
        let serve = Serve::start(arguments, &[], |_| {});
        let about = |line: &Value| line["message"].as_str().is_some_and(|text| text.starts_with("no autoscaler knows"));
        let line = serve.lines().into_iter().find(about)?;
        assert_eq!(line["level"], "WARN");
        Some(line["key"].as_str().unwrap().to_owned())
    };
    let key = ["--pending-taint-key", UNKNOWN];
    assert_eq!(told(&key).as_deref(), Some(UNKNOWN));
    assert_eq!(told(&[&key as &[&str], &["--pending-taint", "never"]].concat()), None, "it is never set");
    assert_eq!(told(&["--pending-taint-key", "readiness.k8s.io/x"]), None);
    assert_eq!(told(&[]), None);
}

#[test]
fn check_warns_of_what_makes_nodes_wait_with_such_a_key() {
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy.yaml");
    let text = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: roles}\nspec:\n  rules:\n    \
                - {name: worker, labels: {node-role.kubernetes.io/worker: \"\"}}\n";
    std::fs::write(&policy, text).unwrap();
    let checked = |arguments: &[&str], key: &str| {
        let output =
            command().arg("check").arg(&policy).args(arguments).env("NODEGATE_PENDING_TAINT_KEY", key).output();
        let output = output.unwrap();
        let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
        let lints = checked["lints"].as_array().unwrap().iter().map(|lint| lint["lint"].as_str().unwrap().to_owned());
        (output.status.code(), lints.collect::<Vec<_>>())
    };
    let json = ["--strict", "-o", "json"];
    assert_eq!(checked(&json, UNKNOWN), (Some(1), vec!["waits-unknown".to_owned()]));
    assert_eq!(checked(&json, "auto"), (Some(0), vec![]));
}

#[test]
fn a_status_taint_is_refused() {
    for arguments in [&["serve"] as &[&str], &["init"], &["report"]] {
        let key = ["--pending-taint-key", "status-taint.cluster-autoscaler.kubernetes.io/x"];
        let output = command().args(arguments).args(key).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains("write auto, or a key that begins with startup-taint.cluster-autoscaler"), "{told}");
    }
}
