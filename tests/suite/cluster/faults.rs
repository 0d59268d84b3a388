//! What goes wrong in a real cluster. After each: every node has what it should, and nothing is pending.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{config_maps, is_pending, node, state, until_led};
use super::nodegate::{Nodegate, Setup, with_cluster};
use super::requester::{Requester, label, taints};

const POLICY: &[&str] = &["tests/suite/cluster/keeping.yaml"];

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{prefix}-{at}")).collect()
}

async fn join_all(plane: &ControlPlane, names: &[String]) {
    for name in names {
        Requester::kubelet(plane, name).await.create(&node(name, json!({"persist.demo/own": name}))).await.unwrap();
    }
}

async fn delete_all(admin: &Requester, names: &[String]) {
    for name in names {
        admin.delete(name).await;
    }
}

/// Whether a node of the policy `keeping` is exactly as it should be.
fn is_right(node: &Value) -> bool {
    label(node, "node-role.kubernetes.io/worker").is_some()
        && label(node, "hardware.tier") == Some("standard")
        && taints(node).contains(&"fleet=kept:NoSchedule".to_owned())
        && !is_pending(node)
}

async fn all_right(admin: &Requester, names: &[String]) {
    for name in names {
        let node = admin.eventually(name, "exactly as it should be", is_right).await;
        assert_eq!(label(&node, "persist.demo/own"), Some(name.as_str()), "a persisted label was lost");
    }
}

/// Runs `nodegate` with the cluster, to its end.
fn command(plane: &ControlPlane, namespace: &str, arguments: &[&str]) -> (i32, String) {
    let connect = with_cluster(plane, namespace, false).into_iter().take(4);
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate"))
        .args(arguments)
        .args(connect)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap_or(-1), text)
}

#[tokio::test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn another_replica_leads_when_the_leader_is_killed() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let (before, after) = (names("kept-a", 3), names("kept-b", 3));
    delete_all(&admin, &before).await;
    delete_all(&admin, &after).await;
    let mut leader = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&leader).await;
    let namespace = leader.namespace.clone();
    let follower = Nodegate::start(
        cluster.plane,
        &Setup { policies: POLICY, namespace: Some(&namespace), unregistered: true, ..Setup::default() },
    );
    assert!(!follower.probe("/metrics").unwrap().contains("\nnodegate_leading 1\n"), "two lead");
    join_all(cluster.plane, &before).await;
    all_right(&admin, &before).await;
    leader.kill();
    let killed = Instant::now();
    join_all(cluster.plane, &after).await;
    until_led(&follower).await;
    // The Lease holds for 3 s; the rest is waiting for a turn and this machine's slowness.
    assert!(killed.elapsed() < Duration::from_secs(15), "took over after {:?}", killed.elapsed());
    all_right(&admin, &after).await;
    delete_all(&admin, &before).await;
    delete_all(&admin, &after).await;
}

#[tokio::test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn killed_between_any_two_writes_it_goes_on_where_it_was() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodes = names("kept-k", 12);
    delete_all(&admin, &nodes).await;
    let setup = Setup { policies: POLICY, cluster: true, unregistered: true, ..Setup::default() };
    let mut nodegate = Nodegate::start(cluster.plane, &setup);
    let namespace = nodegate.namespace.clone();
    // Without the webhook everything is the controller's to write: two records and a change for each node.
    join_all(cluster.plane, &nodes).await;
    for delay in [20, 60, 110, 170, 240] {
        until_led(&nodegate).await;
        tokio::time::sleep(Duration::from_millis(delay)).await;
        nodegate.kill();
        nodegate = Nodegate::start(
            cluster.plane,
            &Setup { namespace: Some(&namespace), serve: &["--writes-per-second", "20"], ..setup.clone() },
        );
    }
    all_right(&admin, &nodes).await;
    let maps = config_maps(cluster.plane, &namespace).await;
    for name in &nodes {
        let deadline = Instant::now() + Duration::from_secs(20);
        while state(&maps, name).await["owned"]["labels"]["hardware.tier"] != "standard" {
            assert!(Instant::now() < deadline, "{name}: what was written is not owned: {:#}", state(&maps, name).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    delete_all(&admin, &nodes).await;
}

#[tokio::test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn the_api_server_goes_away_and_comes_back() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodes = names("kept-r", 5);
    delete_all(&admin, &nodes).await;
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    join_all(cluster.plane, &nodes[..2]).await;
    cluster.plane.restart_api_server(Duration::from_secs(5));
    join_all(cluster.plane, &nodes[2..]).await;
    all_right(&admin, &nodes).await;
    delete_all(&admin, &nodes).await;
}

#[tokio::test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn fifty_nodes_join_while_the_webhook_is_away_and_one_is_recreated_while_the_controller_is() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodes = names("kept-w", 50);
    delete_all(&admin, &nodes).await;
    let mut nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let namespace = nodegate.namespace.clone();
    join_all(cluster.plane, &nodes[..1]).await;
    all_right(&admin, &nodes[..1]).await;
    let maps = config_maps(cluster.plane, &namespace).await;
    while state(&maps, &nodes[0]).await["labels"]["persist.demo/own"] != "kept-w-0" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    nodegate.kill();
    admin.delete(&nodes[0]).await;
    let kubelet = Requester::kubelet(cluster.plane, &nodes[0]).await;
    kubelet.create(&node(&nodes[0], json!({"hardware.tier": "forged"}))).await.unwrap();
    join_all(cluster.plane, &nodes[1..]).await;
    let _back =
        Nodegate::start(cluster.plane, &Setup { policies: POLICY, namespace: Some(&namespace), ..Setup::default() });
    all_right(&admin, &nodes).await;
    delete_all(&admin, &nodes).await;
}

#[tokio::test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn a_policy_that_would_strip_the_fleet_strips_nothing_until_it_is_confirmed() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodes = names("kept-s", 12);
    delete_all(&admin, &nodes).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let policy = |rules: &str| {
        let text = format!(
            "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: strip}}\nspec:\n  rules: [{rules}]\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    policy(
        r#"{name: tier, match: {names: ["kept-s-*"]}, labels: {tier: gold}, removeAfter: 0s}, {name: other, labels: {other: x}}"#,
    );
    let path = file.to_str().unwrap();
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: &[path], cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    for name in &nodes {
        admin.create(&node(name, json!({}))).await.unwrap();
    }
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    for name in &nodes {
        while state(&maps, name).await["owned"]["labels"]["tier"] != "gold" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    policy(r#"{name: other, labels: {other: x}}"#);
    let held = |count: &str| {
        let text = nodegate.probe("/metrics").unwrap_or_default();
        text.contains(&format!("\nnodegate_removals_held_back_nodes {count}\n"))
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !held("12") {
        assert!(Instant::now() < deadline, "the brake did not come:\n{}", nodegate.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    for name in &nodes {
        assert_eq!(label(&admin.get(name).await, "tier"), Some("gold"));
    }
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["apply", "--policy", path]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("--confirm"), "{text}");
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["apply", "--policy", path, "--confirm"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("12 removed"), "{text}");
    for name in &nodes {
        assert_eq!(label(&admin.get(name).await, "tier"), None);
    }
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["apply", "--policy", path]);
    assert_eq!((code, text.contains(" 0 keys set, 0 changed, 0 removed")), (0, true), "{text}");
    delete_all(&admin, &nodes).await;
}

#[tokio::test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn history_says_who_changed_what_and_takes_it_back() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("history-1").await;
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    admin.create(&node("history-1", json!({"color": "red"}))).await.unwrap();
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    while state(&maps, "history-1").await["nodeUID"].is_null() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.plane.kubectl(&["label", "node", "history-1", "color=blue", "--overwrite"], None).unwrap();
    let history = async || state(&maps, "history-1").await["history"].as_array().cloned().unwrap_or_default();
    while history().await.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["history", "history-1"]);
    assert_eq!(code, 0, "{text}");
    for part in ["kubectl-label", "update", "color", r#""red" → "blue""#] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let id = history().await[0]["id"].to_string();
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["history", "history-1", "--revert", &id]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(label(&admin.get("history-1").await, "color"), Some("red"));
    let (code, text) = command(cluster.plane, &nodegate.namespace, &["history", "nobody"]);
    assert_eq!(code, 2, "{text}");
    admin.delete("history-1").await;
}

#[tokio::test]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn somebody_who_undoes_a_repair_again_and_again_is_left_alone() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("kept-f").await;
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    admin.create(&node("kept-f", json!({}))).await.unwrap();
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    while state(&maps, "kept-f").await["owned"]["labels"]["hardware.tier"].is_null() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Through nodes/status, which no mutating webhook may see.
    for turn in 0..5 {
        admin.eventually("kept-f", "repaired", |node| label(node, "hardware.tier") == Some("standard")).await;
        let value = format!("mine-{turn}");
        admin.merge_status("kept-f", json!({"metadata": {"labels": {"hardware.tier": value}}})).await.unwrap();
        if turn < 4 {
            admin.eventually("kept-f", "repaired", |node| label(node, "hardware.tier") == Some("standard")).await;
        }
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let events = || cluster.plane.kubectl(&["get", "events", "-A", "-o", "jsonpath={.items[*].reason}"], None).unwrap();
    while !events().split(' ').collect::<BTreeSet<_>>().contains("LeftAlone") {
        assert!(Instant::now() < deadline, "no event:\n{}", nodegate.log());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    // The fifth revert was still repaired; from now on it is not.
    admin.merge_status("kept-f", json!({"metadata": {"labels": {"hardware.tier": "mine"}}})).await.unwrap();
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(label(&admin.get("kept-f").await, "hardware.tier"), Some("mine"));
    admin.delete("kept-f").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn a_thousand_nodes_join_at_once() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let setup = Setup { policies: POLICY, cluster: true, serve: &["--writes-per-second", "1000"], ..Setup::default() };
    let nodegate = Nodegate::start(cluster.plane, &setup);
    until_led(&nodegate).await;
    let nodes = names("kept-m", 1000);
    let joins = futures_util::stream::iter(nodes.clone()).map(|name| async move {
        let created = Requester::kubelet(cluster.plane, &name).await.create(&node(&name, json!({}))).await.unwrap();
        assert!(taints(&created).contains(&"fleet=kept:NoSchedule".to_owned()), "{name}");
    });
    joins.buffer_unordered(50).collect::<Vec<()>>().await;
    let deadline = Instant::now() + Duration::from_secs(120);
    for name in &nodes {
        while !is_right(&admin.get(name).await) {
            assert!(Instant::now() < deadline, "{name} is not as it should be:\n{}", admin.get(name).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let deletions = futures_util::stream::iter(&nodes).map(|name| admin.delete(name));
    deletions.buffer_unordered(50).collect::<Vec<()>>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn etcd_hangs_for_longer_than_the_lease_holds() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodes = names("kept-e", 10);
    delete_all(&admin, &nodes).await;
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    join_all(cluster.plane, &nodes[..5]).await;
    tokio::task::block_in_place(|| cluster.plane.stall_etcd(Duration::from_secs(8)));
    assert!(nodegate.log().contains("not leading any more"), "it wrote on with a Lease it could not renew");
    join_all(cluster.plane, &nodes[5..]).await;
    all_right(&admin, &nodes).await;
    delete_all(&admin, &nodes).await;
}

/// Takes the one place that a priority level without shares has, for up to 30 s: a write that waits for a webhook which
/// accepts connections and says nothing.
async fn occupy(plane: &ControlPlane, user: &str) -> (std::net::TcpListener, tokio::task::JoinHandle<()>) {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let webhook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "silent"}, "webhooks": [{
            "name": "silent.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore", "timeoutSeconds": 30,
            "clientConfig": {"url": format!("https://{}/", silent.local_addr().unwrap())},
            "matchConditions": [{"name": "this-one", "expression": "object.metadata.name == 'occupant'"}],
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]}]});
    plane.kubectl(&["apply", "-f", "-"], Some(&webhook.to_string())).unwrap();
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::default_namespaced(plane.client(Some((user, &["system:authenticated"]))).await);
    let occupant = serde_json::from_value(json!({"metadata": {"name": "occupant"}})).unwrap();
    let task = tokio::spawn(async move { drop(maps.create(&kube::api::PostParams::default(), &occupant).await) });
    (silent, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(not(control_plane), ignore = "needs a control plane: just control-plane")]
async fn the_api_server_answers_429_for_a_while() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodes = names("kept-t", 5);
    delete_all(&admin, &nodes).await;
    let namespace = "nodegate-throttled";
    let user = format!("system:serviceaccount:{namespace}:nodegate");
    let binding = format!("--user={user}");
    let bind = ["create", "clusterrolebinding", "throttled", "--clusterrole=cluster-admin", binding.as_str()];
    let _ = cluster.plane.kubectl(&bind, None);
    let setup = Setup { policies: POLICY, namespace: Some(namespace), own_rights: true, ..Setup::default() };
    let nodegate = Nodegate::start(cluster.plane, &setup);
    until_led(&nodegate).await;
    // Writes of nodes and ConfigMaps by this user have one place between them, and that one is taken.
    let throttle = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": {"name": "nothing"},
         "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
                                                 "limitResponse": {"type": "Reject"}}}},
        {"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "nothing"},
         "spec": {"matchingPrecedence": 2, "priorityLevelConfiguration": {"name": "nothing"},
                  "rules": [{"subjects": [{"kind": "User", "user": {"name": user}}],
                             "resourceRules": [{"verbs": ["create", "update", "patch"], "apiGroups": [""], "resources": ["nodes", "configmaps"],
                                                "clusterScope": true, "namespaces": ["*"]}]}]}}]})
    .to_string();
    cluster.plane.kubectl(&["apply", "-f", "-"], Some(&throttle)).unwrap();
    // The webhook and the priority level are in force a moment later than they are written.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (silent, occupant) = occupy(cluster.plane, &user).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    join_all(cluster.plane, &nodes).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let held = admin.get(&nodes[0]).await;
    assert!(is_pending(&held), "it was not turned away, so nothing is shown: {:?}", taints(&held));
    let counted = cluster.plane.kubectl(&["get", "--raw", "/metrics"], None).unwrap();
    let rejected = "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"nothing\"";
    assert!(counted.lines().any(|line| line.starts_with(rejected)), "nobody was answered 429");
    cluster.plane.kubectl(&["delete", "-f", "-"], Some(&throttle)).unwrap();
    drop(silent);
    occupant.abort();
    cluster.plane.kubectl(&["delete", "validatingwebhookconfiguration/silent"], None).unwrap();
    let _ = cluster.plane.kubectl(&["delete", "configmap/occupant"], None);
    all_right(&admin, &nodes).await;
    delete_all(&admin, &nodes).await;
    cluster.plane.kubectl(&["delete", "clusterrolebinding", "throttled"], None).unwrap();
}
