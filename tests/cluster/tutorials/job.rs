//! What stands in for the pod of a Job.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::commands::finish;
use crate::control_plane::ControlPlane;

/// Runs the container of a Job on this machine with the rights of its account, and returns what it prints.
pub(super) fn run_as_its_account(plane: &ControlPlane, name: &str, namespace: &str) -> String {
    let job = plane.kubectl(&["get", "job", name, "-n", namespace, "-o", "json"], None).unwrap();
    let job: Value = serde_json::from_str(&job).unwrap();
    assert_eq!(job["spec"]["ttlSecondsAfterFinished"], 300, "Kubernetes deletes it when it has finished");
    let annotation = |name: &str| &job["metadata"]["annotations"][format!("argocd.argoproj.io/{name}")];
    assert_eq!(annotation("sync-wave"), "-1", "before anything else is deployed");
    assert_eq!(annotation("sync-options"), "Replace=true", "a Job cannot be changed");
    let pod = &job["spec"]["template"]["spec"];
    let account = format!("system:serviceaccount:{namespace}:{}", pod["serviceAccountName"].as_str().unwrap());
    let groups: &[&str] = &["system:serviceaccounts", "system:authenticated"];
    let kubeconfig = plane.kubeconfig_file("job", Some((&account, groups)));
    let arguments = pod["containers"][0]["args"].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(arguments).arg("--kubeconfig").arg(kubeconfig).stdin(Stdio::null());
    finish(&mut command).with(0)
}
