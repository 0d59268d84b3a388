//! An API server that is away, hangs, turns requests away, or has forgotten what a watch wants to know.

use std::time::Duration;

use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::control_plane::{ControlPlane, exclusive};
use super::super::keeping::{config_maps, eventually_state, is_pending, until_led};
use super::super::nodegate::{Nodegate, Setup};
use super::super::requester::{Requester, taints};
use super::{POLICY, all_right, delete_all, join_all, names};
use crate::eventually::{PATIENCE, eventually, holds};

#[tokio::test]
async fn nodes_are_reconciled_after_a_restart_of_the_api_server() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_stops_while_etcd_hangs_and_nodes_are_reconciled_afterwards() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodes = names("kept-e", 10);
    delete_all(&admin, &nodes).await;
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    join_all(cluster.plane, &nodes[..5]).await;
    tokio::task::block_in_place(|| cluster.plane.stall_etcd(Duration::from_secs(8)));
    assert!(nodegate.log().contains("no longer the leader"), "it wrote on with a Lease it could not renew");
    join_all(cluster.plane, &nodes[5..]).await;
    all_right(&admin, &nodes).await;
    delete_all(&admin, &nodes).await;
}

/// Takes the one place that a priority level without shares has, for 30 s at a time: a write that waits for a webhook which
/// accepts connections and says nothing. Returns once the first one waits.
async fn occupy(plane: &ControlPlane, user: &str) -> ((TcpListener, TcpStream), JoinHandle<()>) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
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
    let dry_run = kube::api::PostParams { dry_run: true, ..Default::default() };
    let task = tokio::spawn(async move {
        // Nothing holds one before the API server knows the webhook.
        loop {
            drop(maps.create(&dry_run, &occupant).await);
        }
    });
    let (called, _) = timeout(PATIENCE, silent.accept()).await.expect("the API server calls the webhook").unwrap();
    ((silent, called), task)
}

/// How many requests of the flow schema `nothing` were turned away.
fn turned_away(plane: &ControlPlane) -> f64 {
    let counted = plane.kubectl(&["get", "--raw", "/metrics"], None).unwrap();
    let rejected = "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"nothing\"";
    let lines = counted.lines().filter(|line| line.starts_with(rejected));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_reconciled_after_the_api_server_answered_429() {
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
    // The API server says so once it goes by the schema and its level.
    let path = "jsonpath={.status.conditions[?(@.type==\"Dangling\")].status}";
    eventually("the priority level is in force", async || {
        let dangles = cluster.plane.kubectl(&["get", "flowschema", "nothing", "-o", path], None);
        holds(dangles == Ok("False".to_owned()), || format!("{dangles:?}"))
    })
    .await;
    let (silent, occupant) = occupy(cluster.plane, &user).await;
    let before = turned_away(cluster.plane);
    join_all(cluster.plane, &nodes).await;
    // Each of the writes that they wait for was tried again.
    let least = before + 2.0 * nodes.len() as f64;
    nodegate.eventually("nodegate is answered 429", || turned_away(cluster.plane) >= least).await;
    let held = admin.get(&nodes[0]).await;
    assert!(is_pending(&held), "it was not turned away, so nothing is shown: {:?}", taints(&held));
    cluster.plane.kubectl(&["delete", "-f", "-"], Some(&throttle)).unwrap();
    drop(silent);
    occupant.abort();
    cluster.plane.kubectl(&["delete", "validatingwebhookconfiguration/silent"], None).unwrap();
    all_right(&admin, &nodes).await;
    delete_all(&admin, &nodes).await;
    cluster.plane.kubectl(&["delete", "clusterrolebinding", "throttled"], None).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_watch_is_restarted_with_a_new_listing() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodes = names("kept-x", 6);
    delete_all(&admin, &nodes).await;
    // The term outlives the pause, and its watch of nodes with it.
    let setup = Setup { policies: POLICY, cluster: true, lease_seconds: 90, ..Setup::default() };
    let nodegate = Nodegate::start(cluster.plane, &setup);
    until_led(&nodegate).await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    join_all(cluster.plane, &nodes[..4]).await;
    all_right(&admin, &nodes[..4]).await;
    for name in &nodes[..4] {
        eventually_state(&maps, name, "saved", |state| state["labels"]["persist.demo/own"] == name.as_str()).await;
    }

    nodegate.signal("-STOP");
    // Its connections are gone first, or what changes would wait for it in them.
    tokio::task::block_in_place(|| cluster.plane.restart_api_server(Duration::ZERO));
    admin.merge_status(&nodes[0], json!({"metadata": {"labels": {"hardware.tier": "forged"}}})).await.unwrap();
    admin.label(&nodes[1], "persist.demo/more", json!("x")).await.unwrap();
    admin.delete(&nodes[2]).await;
    join_all(cluster.plane, &nodes[4..]).await;
    // An API server that is started anew remembers nothing of what was before.
    tokio::task::block_in_place(|| cluster.plane.restart_api_server(Duration::ZERO));
    nodegate.signal("-CONT");

    let right: Vec<String> = [0, 1, 3, 4, 5].map(|at| nodes[at].clone()).to_vec();
    all_right(&admin, &right).await;
    eventually_state(&maps, &nodes[1], "saved", |state| state["labels"]["persist.demo/more"] == "x").await;
    eventually_state(&maps, &nodes[2], "its end is noted", |state| state["deletedAt"].is_string()).await;
    let log = nodegate.log();
    let expired = |line: &str| line.contains("the watch of nodes failed") && line.contains("too old resource version");
    assert!(log.lines().any(expired), "the watch of nodes did not expire, so nothing is shown:\n{log}");
    assert!(!log.contains("no longer the leader"), "another term began, so nothing is shown:\n{log}");
    delete_all(&admin, &right).await;
}
