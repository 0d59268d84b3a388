//! Commands in a cluster without nodes, without permission, and ended half-way.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::super::barrier::Barrier;
use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, node, state};
use super::super::requester::{Requester, label};
use super::{Ran, finish};
use crate::eventually::eventually_blocking;
use crate::shared::commands::{OF_A_CLUSTER, POLICY};
use crate::shared::output::assert_conforms;

/// A command line in a directory with a policy, against the namespace `default`.
fn command(plane: &ControlPlane, user: Option<&str>, directory: &Path, line: &str) -> Command {
    let impersonated: Option<(&str, &[&str])> = user.map(|user| (user, &["system:authenticated"] as &[&str]));
    command_with(
        &plane.kubeconfig_file(&format!("failures-{}", user.unwrap_or("admin")), impersonated),
        directory,
        line,
    )
}

fn command_with(kubeconfig: &Path, directory: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(line.split_whitespace()).args(["--namespace", "default", "--kubeconfig"]).arg(kubeconfig);
    command.current_dir(directory).stdin(Stdio::null());
    command
}

fn run(plane: &ControlPlane, user: Option<&str>, directory: &Path, line: &str) -> Ran {
    finish(&mut command(plane, user, directory, line))
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("policy.yaml"), POLICY).unwrap();
    directory
}

/// Gives a user these rights.
fn permit(plane: &ControlPlane, user: &str, rules: &Value) {
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": user},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
         "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]}]});
    plane.kubectl(&["apply", "-f", "-"], Some(&objects.to_string())).unwrap();
}

fn may_read(group: &str, resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list"]})
}

#[tokio::test]
async fn a_cluster_without_nodes_and_a_user_without_rights_are_errors() {
    let cluster = exclusive();
    // A cluster of its own, in which there has never been a node.
    let plane = cluster.plane.another_api_server(&["--etcd-prefix=/failures".to_owned()]);
    let directory = directory();
    let at = directory.path();
    let empty = "the cluster has no nodes";
    for (line, code, expected) in [
        ("plan --policy policy.yaml", 2, empty),
        ("init", 2, empty),
        ("report", 2, empty),
        ("report --stranded-pods", 2, empty),
        ("report --violations", 2, empty),
        ("explain n", 2, "no node n in the cluster"),
        ("history n", 2, "no saved state for node n"),
        ("history --all", 0, "no changes are recorded"),
        ("migrate old new", 2, "because no `nodegate serve` has been leader in this namespace"),
        ("migrate old new --confirm", 2, "start `nodegate serve` in the cluster, which moves the labels"),
        ("migrate old old", 2, "OLD and NEW are the same key"),
        ("migrate status", 0, "no migrations are in force"),
        ("migrate status old", 2, "no migration from old is in force; add the new key"),
        ("migrate status old old", 2, "OLD and NEW are the same key"),
        ("migrate status old new", 0, "nothing uses old"),
        ("pools adopt gpu --node n", 2, "the policies in force have no pools"),
        ("pools forget --selector a=b", 2, "--selector a=b: no node has such labels"),
        ("pools forget --selector a=b=c", 2, "--selector a=b=c: could not list nodes"),
        ("cleanup --node n", 2, "no node n in the cluster"),
        ("cleanup", 0, "nothing to clean up"),
        ("cleanup --confirm", 0, "nothing to clean up"),
        // A Job may run it before the first node joins.
        ("apply --policy policy.yaml", 0, "0 nodes: "),
    ] {
        let ran = run(&plane, None, at, line);
        let said = if code == 0 { &ran.output } else { &ran.errors };
        assert!(ran.code == code && said.contains(expected), "{line}: {}{}", ran.output, ran.errors);
        assert!(code == 0 || ran.output.is_empty(), "{line}: {}", ran.output);
    }
    assert!(!at.join("policy").exists());

    let admin = Requester::admin(&plane).await;
    admin.create(&node("n", json!({"tier": "tin"}))).await.unwrap();
    for line in OF_A_CLUSTER {
        let ran = run(&plane, Some("nobody"), at, line);
        assert_eq!((ran.code, &*ran.output), (2, ""), "{line}: {}", ran.errors);
        let named = ran.errors.contains("is forbidden: User \"nobody\" cannot");
        assert!(named, "{line}: {}", ran.errors);
        assert_eq!(ran.errors.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{line}: {}", ran.errors);
    }
    assert_eq!(label(&admin.get("n").await, "tier"), Some("tin"));
    without_some_rights(&plane, at).await;
    plane.kubectl(&["delete", "node", "n"], None).unwrap();
}

/// What a user gets who may read something.
async fn without_some_rights(plane: &ControlPlane, at: &Path) {
    let nodes = may_read("", &["nodes", "configmaps"]);
    let policies = may_read("nodegate.dev", &["nodepolicies"]);
    permit(plane, "no-pods", &json!([nodes, policies]));
    permit(plane, "only-sets", &json!([nodes, policies, may_read("apps", &["daemonsets"])]));
    permit(plane, "only-nodes", &json!([may_read("", &["nodes"]), policies]));
    // The API server learns of rights by a watch.
    let eventually = |user: &str, line: &str, holds: &dyn Fn(&Ran) -> bool| {
        eventually_blocking(&format!("{user}: {line}"), || {
            let ran = run(plane, Some(user), at, line);
            if holds(&ran) { Ok(ran) } else { Err(format!("{}{}", ran.output, ran.errors)) }
        })
    };
    let table = "plan --policy policy.yaml";
    // Pods that cannot be read are said to be unknown: "0 affected" would be wrong.
    for (user, what) in [("no-pods", "DaemonSets"), ("only-sets", "pods")] {
        let unknown = format!("The effect on pods is unknown: could not list {what}: the API server answered 403: ");
        let ran = eventually(user, table, &|ran| ran.output.contains(&unknown));
        assert!(ran.code == 0 && ran.output.contains("~ label tier=gold, was tin"), "{}", ran.output);
        assert!(ran.errors.contains("could not read webhook configuration"), "{}", ran.errors);
        let plan: Value =
            serde_json::from_str(&run(plane, Some(user), at, &format!("{table} -o json")).with(0)).unwrap();
        assert_conforms("plan", &plan);
        let unknown = plan["podsUnknown"].as_str().unwrap();
        assert!(unknown.starts_with(&format!("could not list {what}: ")) && plan["pods"] == json!([]), "{plan:#}");
        let none = run(plane, Some(user), at, &format!("{table} --no-pods")).with(0);
        assert!(none.contains("The effect on pods is unknown: --no-pods is set"), "{none}");
        let stranded = run(plane, Some(user), at, "report --stranded-pods");
        assert_eq!((stranded.code, &*stranded.output), (2, ""), "{}", stranded.errors);
        assert!(stranded.errors.contains("error: could not list pods: the API server answered 403: "));
        let report = run(plane, Some(user), at, "report --policy policy.yaml -o json").with(0);
        assert_conforms("report", &serde_json::from_str(&report).unwrap());
    }
    // Without saved state it is unknown what nodegate owns.
    for line in ["plan --policy policy.yaml --only", "report"] {
        let ran = eventually("only-nodes", line, &|ran| ran.errors.contains("could not read saved state"));
        assert!(ran.code == 2 && ran.output.is_empty() && ran.errors.contains("403"), "{line}: {}", ran.errors);
    }
    run(plane, Some("only-nodes"), at, "init --dir first").with(0);
    let applied = run(plane, Some("no-pods"), at, "apply --policy policy.yaml");
    assert!(applied.code == 2 && applied.output.is_empty(), "{}{}", applied.output, applied.errors);
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::zombie_processes, reason = "it is waited for unless the test fails")]
async fn an_interrupted_apply_leaves_no_node_without_its_record_and_goes_on() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let directory = directory();
    let names: Vec<String> = (0..8).map(|number| format!("applied-{number}")).collect();
    for name in &names {
        admin.delete(name).await;
        admin.create(&node(name, json!({}))).await.unwrap();
    }
    let maps = config_maps(plane, "default").await;
    let changed = async || {
        let mut changed = Vec::new();
        for name in &names {
            if label(&admin.get(name).await, "tier").is_some() {
                changed.push(name.clone());
            }
        }
        changed
    };
    // Everything that is set is recorded, before it is set.
    let recorded = async || {
        for name in changed().await {
            assert_eq!(state(&maps, &name).await["owned"]["labels"]["tier"], "gold", "{name}");
        }
    };
    // Returns when it has changed two more nodes.
    let begun = async || {
        let mut barrier = Barrier::start(plane, 2).await;
        let through = plane.kubeconfig_file_through("apply", &barrier.server);
        let mut command = command_with(&through, directory.path(), "apply --policy policy.yaml");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        barrier.holds().await;
        (child, barrier)
    };
    // Not SIGINT, which a background job of a shell ignores.
    let (child, _gate) = begun().await;
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(sent.success() && !output.status.success() && output.stdout.is_empty());
    assert_eq!(changed().await.len(), 2);
    recorded().await;

    // The same when the connection is lost.
    let (child, barrier) = begun().await;
    drop(barrier);
    let output = tokio::task::block_in_place(|| child.wait_with_output()).unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(matches!(output.status.code(), Some(1 | 2)), "{said}");
    assert_eq!(changed().await.len(), 4, "{said}");
    recorded().await;

    let done = run(plane, None, directory.path(), "apply --policy policy.yaml").with(0);
    assert!(done.contains("; 0 nodes failed"), "{done}");
    assert_eq!(changed().await.len(), names.len());
    recorded().await;
    // A closed pipe hides no failure.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(plane, None, directory.path(), "apply --policy policy.yaml").stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    run(plane, None, directory.path(), "cleanup --confirm").with(0);
    assert_eq!(changed().await, Vec::<String>::new());
    for name in &names {
        admin.delete(name).await;
    }
}
