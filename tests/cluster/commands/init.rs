//! `nodegate init` in a cluster, also as kubectl's plugin.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use super::super::control_plane::{ControlPlane, exclusive, kubectl_program};
use super::super::requester::Requester;
use super::{Ran, finish, run};
use crate::shared::commands::plugin_in;

/// Runs `kubectl` with this directory, which holds the plugin, on `PATH`.
pub(super) fn kubectl(plane: &ControlPlane, directory: &Path, arguments: &[&str]) -> Ran {
    let file = plane.kubeconfig_file("plugin", None);
    let path = std::env::var("PATH").unwrap_or_default();
    // kubectl takes no flags before the name of a plugin.
    let mut command = Command::new(kubectl_program());
    command.args(arguments).env("PATH", format!("{}:{path}", directory.display())).env("KUBECONFIG", &file);
    finish(command.current_dir(directory).stdin(Stdio::null()))
}

async fn create(admin: &Requester) {
    for (name, tier) in [("first-gpu-1", "gold"), ("first-gpu-2", "gold"), ("first-cpu-1", "tin")] {
        admin.delete(name).await;
        let labels = json!({"first.example.com/tier": tier, "kubernetes.io/hostname": name});
        let taints = json!([{"key": "first.example.com/dedicated", "value": tier, "effect": "NoSchedule"}]);
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}});
        admin.create(&node).await.unwrap();
    }
}

#[tokio::test]
async fn init_reads_the_nodes_of_a_cluster_and_its_policy_changes_nothing_there() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    create(&admin).await;
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("policy").display().to_string();
    let ran = run(plane, None, &["init", "--dir", &at]);
    assert_eq!(ran.errors, "");
    let summary = ran.with(0);
    assert!(summary.ends_with("commands-admin.kubeconfig\n"), "{summary}");
    assert!(summary.contains(" first-gpu-*") && summary.contains("first.example.com/tier=gold"), "{summary}");
    let nodes = directory.path().join("nodes.yaml");
    std::fs::write(&nodes, plane.kubectl(&["get", "nodes", "-o", "yaml"], None).unwrap()).unwrap();
    let nodegate = |arguments: &[&str]| finish(Command::new(env!("CARGO_BIN_EXE_nodegate")).args(arguments));
    let policy = format!("{at}/policy.yaml");
    nodegate(&["check", &policy, "--exit-code"]).with(0);
    nodegate(&["test", &at]).with(0);
    nodegate(&["plan", "--policy", &policy, "--exit-code", nodes.to_str().unwrap()]).with(0);

    plugin_in(directory.path());
    let listed = kubectl(plane, directory.path(), &["plugin", "list"]);
    assert!(listed.output.contains("/kubectl-nodegate\n"), "{}{}", listed.output, listed.errors);
    let ran = kubectl(plane, directory.path(), &["nodegate", "init", "--dir", "as-plugin"]);
    assert!(
        ran.errors.starts_with("note: using kubectl's context ") && ran.errors.lines().count() == 1,
        "{}",
        ran.errors
    );
    let next = "  kubectl nodegate test as-plugin/test.yaml\n  kubectl nodegate plan --policy as-plugin/policy.yaml\n";
    assert!(ran.with(0).ends_with(next));
    let written = |of: &str| std::fs::read_to_string(directory.path().join(of).join("policy.yaml")).unwrap();
    assert_eq!(written("as-plugin"), written("policy"));
    // On the files, and on the cluster itself.
    for nodes in [&["nodes.yaml"] as &[&str], &[]] {
        let plan = ["nodegate", "plan", "--policy", "as-plugin/policy.yaml", "--exit-code"];
        kubectl(plane, directory.path(), &[&plan, nodes].concat()).with(0);
    }
    let usage = kubectl(plane, directory.path(), &["nodegate", "check"]);
    assert!(usage.code == 2 && usage.errors.contains("Usage: kubectl nodegate check "), "{}", usage.errors);
    for name in ["first-gpu-1", "first-gpu-2", "first-cpu-1"] {
        admin.delete(name).await;
    }
}
