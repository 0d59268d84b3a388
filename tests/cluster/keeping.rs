//! The controller at a real API server: what is deferred, repaired, removed, and what comes back.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use nodegate_policy::PendingTaints;
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};
use crate::eventually::eventually;

const POLICY: &[&str] = &["tests/cluster/keeping.yaml"];

pub(crate) fn setup() -> Setup<'static> {
    Setup { policies: POLICY, cluster: true, ..Setup::default() }
}

pub(crate) fn node(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
}

pub(crate) fn is_pending(node: &Value) -> bool {
    let pending = PendingTaints::default();
    taints(node).iter().any(|taint| pending.all().iter().any(|id| taint.starts_with(&format!("{}=", id.key))))
}

pub(crate) async fn config_maps(plane: &ControlPlane, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(plane.client(None).await, namespace)
}

pub(crate) async fn state(maps: &Api<ConfigMap>, node: &str) -> Value {
    let map = maps.get_opt(&format!("node-labels-{node}")).await.unwrap();
    map.and_then(|map| serde_json::from_str(map.data?.get("state.json")?).ok()).unwrap_or_default()
}

pub(crate) async fn eventually_state(
    maps: &Api<ConfigMap>,
    node: &str,
    what: &str,
    holds: impl Fn(&Value) -> bool,
) -> Value {
    eventually(&format!("the state of {node}: {what}"), async || {
        let state = state(maps, node).await;
        if holds(&state) { Ok(state) } else { Err(format!("{state:#}")) }
    })
    .await
}

/// Whether the history of a state tells a change of a key. It does so when the leader has processed the node after that.
pub(crate) fn tells(state: &Value, key: &str, old: Option<&str>, new: Option<&str>) -> bool {
    state["history"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|change| change["key"] == key && (change["old"].as_str(), change["new"].as_str()) == (old, new))
}

/// Starts a server that leads, and that has seen every node that is created from now on join.
pub(crate) async fn leading<'a>(plane: &'a ControlPlane, setup: &Setup<'_>) -> Nodegate<'a> {
    let nodegate = Nodegate::start(plane, setup);
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    nodegate
}

/// Waits until somebody leads, so that `--pending-taint auto` sets the taint.
pub(crate) async fn until_led(nodegate: &Nodegate<'_>) {
    let leads = || nodegate.probe("/metrics").is_some_and(|text| text.contains("\nnodegate_leading 1\n"));
    nodegate.eventually("somebody leads", leads).await;
}

/// Waits until the leader has published which policies are in force, for commands that judge by them.
pub(crate) async fn until_published(maps: &Api<ConfigMap>) {
    eventually("the policies in force are published", async || {
        let map = maps.get_opt("nodegate-in-force").await.unwrap();
        map.and_then(|map| map.data).is_some_and(|data| data.contains_key("policies.json"))
    })
    .await;
}

#[tokio::test]
async fn deferred_keys_are_set_and_then_the_pending_taint_is_removed() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &setup());
    until_led(&nodegate).await;
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("kept-1").await;
    let created = Requester::kubelet(cluster.plane, "kept-1").await.create(&node("kept-1", json!({}))).await.unwrap();
    assert!(is_pending(&created), "{:?}", taints(&created));
    assert_eq!(label(&created, "hardware.tier"), Some("standard"));
    let done = admin.eventually("kept-1", "not pending", |node| !is_pending(node)).await;
    assert_eq!(label(&done, "node-role.kubernetes.io/worker"), Some(""), "never lifted before the role is there");
    assert!(taints(&done).contains(&"fleet=kept:NoSchedule".to_owned()));
    admin.delete("kept-1").await;
}

#[tokio::test]
async fn drift_and_existing_nodes_are_repaired_and_a_second_pass_writes_nothing() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("kept-2").await;
    admin.create(&node("kept-2", json!({"mine": "stays"}))).await.unwrap();
    let nodegate = Nodegate::start(cluster.plane, &setup());
    let filled = admin
        .eventually("kept-2", "filled", |node| {
            label(node, "node-role.kubernetes.io/worker").is_some() && label(node, "hardware.tier") == Some("standard")
        })
        .await;
    assert_eq!(label(&filled, "mine"), Some("stays"));
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    eventually_state(&maps, "kept-2", "owned", |state| state["owned"]["labels"]["hardware.tier"] == "standard").await;
    // A status write reaches the node behind the mutating webhook's back.
    admin.merge_status("kept-2", json!({"metadata": {"labels": {"hardware.tier": "forged"}}})).await.unwrap();
    admin.eventually("kept-2", "repaired", |node| label(node, "hardware.tier") == Some("standard")).await;
    // Both are told together, when nothing is left to be written.
    let is_told = |state: &Value| tells(state, "hardware.tier", Some("forged"), Some("standard"));
    eventually_state(&maps, "kept-2", "the repair is told", is_told).await;
    let quiet = admin.get("kept-2").await["metadata"]["resourceVersion"].clone();
    let version = maps.get("node-labels-kept-2").await.unwrap().metadata.resource_version;
    nodegate.until_resynced(1).await;
    assert_eq!(admin.get("kept-2").await["metadata"]["resourceVersion"], quiet, "a resync wrote to the node");
    assert_eq!(maps.get("node-labels-kept-2").await.unwrap().metadata.resource_version, version, "or to its state");
    admin.delete("kept-2").await;
}

#[tokio::test]
async fn owned_keys_are_removed_when_their_rule_is_false_and_foreign_ones_stay() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    for name in ["own-1", "foreign-1"] {
        admin.delete(name).await;
    }
    let nodegate = Nodegate::start(cluster.plane, &setup());
    until_led(&nodegate).await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    admin.create(&node("own-1", json!({"team": "ml"}))).await.unwrap();
    admin.create(&node("foreign-1", json!({"team": "ml", "team.example.com/quota": "large"}))).await.unwrap();
    let owned = |state: &Value| state["owned"]["labels"]["team.example.com/quota"] == "large";
    eventually_state(&maps, "own-1", "owned: nobody claims it", owned).await;
    let foreign = eventually_state(&maps, "foreign-1", "recorded", |state| state["nodeUID"].is_string()).await;
    assert!(!owned(&foreign), "its requester claims it: {foreign:#}");
    for name in ["own-1", "foreign-1"] {
        admin.label(name, "team", Value::Null).await.unwrap();
    }
    admin.eventually("own-1", "removed", |node| label(node, "team.example.com/quota").is_none()).await;
    // What happened to the other one is told later than the rule's removals are due.
    eventually_state(&maps, "foreign-1", "its change is told", |state| tells(state, "team", Some("ml"), None)).await;
    assert_eq!(label(&admin.get("foreign-1").await, "team.example.com/quota"), Some("large"));
    for name in ["own-1", "foreign-1"] {
        admin.delete(name).await;
    }
}

#[tokio::test]
async fn saved_state_of_a_deleted_node_is_kept_for_the_retention_and_no_longer() {
    let cluster = exclusive();
    let policies: &[&str] = &["tests/cluster/retention.yaml"];
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let admin = Requester::admin(cluster.plane).await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    for name in ["gone-1", "stays-1"] {
        admin.delete(name).await;
        admin.create(&node(name, json!({"persist.demo/type": "expensive"}))).await.unwrap();
        eventually_state(&maps, name, "saved", |state| state["labels"]["persist.demo/type"] == "expensive").await;
    }
    admin.delete("gone-1").await;
    eventually("it is collected", async || maps.get_opt("node-labels-gone-1").await.unwrap().is_none()).await;
    assert!(maps.get_opt("node-labels-stays-1").await.unwrap().is_some(), "its node lives");
    admin.delete("stays-1").await;
}

#[tokio::test]
async fn no_pending_taint_is_set_while_the_leader_is_dead() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("kept-dead").await;
    // Somebody holds the Lease for an hour and renews it no more.
    let namespace = "nodegate-dead";
    let _ = cluster.plane.kubectl(&["create", "namespace", namespace], None);
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "nodegate", "namespace": namespace},
        "spec": {"holderIdentity": "dead", "leaseDurationSeconds": 3600, "leaseTransitions": 1,
                 "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2099-01-01T00:00:00.000000Z"}});
    cluster
        .plane
        .kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], Some(&lease.to_string()))
        .unwrap();
    let nodegate =
        Nodegate::start(cluster.plane, &Setup { policies: POLICY, namespace: Some(namespace), ..Setup::default() });
    let kubelet = Requester::kubelet(cluster.plane, "kept-dead").await;
    let created = kubelet.create(&node("kept-dead", json!({}))).await.unwrap();
    assert!(!is_pending(&created), "nobody would lift it: {:?}", taints(&created));
    assert!(taints(&created).contains(&"fleet=kept:NoSchedule".to_owned()), "{:?}", taints(&created));
    assert!(!nodegate.probe("/metrics").unwrap().contains("\nnodegate_leading 1\n"));
    admin.delete("kept-dead").await;
}

#[tokio::test]
async fn a_node_that_is_pending_for_too_long_gets_an_event_and_is_released_if_configured() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("kept-stuck").await;
    // Somebody else's policy refuses what ours wants to write.
    let refusal = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "no-workers"},
         "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}]},
                  "validations": [{"expression": "!('node-role.kubernetes.io/worker' in object.metadata.?labels.orValue({}))"}]}},
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "no-workers"},
         "spec": {"policyName": "no-workers", "validationActions": ["Deny"],
                  "matchResources": {"objectSelector": {"matchLabels": {"stuck": "yes"}}}}}]}"#;
    cluster.plane.kubectl(&["apply", "-f", "-"], Some(refusal)).unwrap();
    let serve: &[&str] = &["--pending-timeout", "2s", "--release-pending"];
    let nodegate =
        Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, serve, ..Setup::default() });
    until_led(&nodegate).await;
    admin.create(&node("stuck-probe", json!({"stuck": "yes"}))).await.unwrap();
    let probe = ["label", "--dry-run=server", "node", "stuck-probe", "node-role.kubernetes.io/worker="];
    let is_refused = || cluster.plane.kubectl(&probe, None).is_err_and(|error| error.contains("no-workers"));
    nodegate.eventually("the other policy acts", is_refused).await;
    admin.delete("stuck-probe").await;
    let kubelet = Requester::kubelet(cluster.plane, "kept-stuck").await;
    let created = kubelet.create(&node("kept-stuck", json!({"stuck": "yes"}))).await.unwrap();
    assert!(is_pending(&created));
    let released = admin.eventually("kept-stuck", "released", |node| !is_pending(node)).await;
    assert_eq!(label(&released, "node-role.kubernetes.io/worker"), None, "it was refused");
    let events = || cluster.plane.kubectl(&["get", "events", "-A", "-o", "jsonpath={.items[*].reason}"], None).unwrap();
    nodegate.eventually("an event tells it", || events().contains("PendingTooLong")).await;
    cluster.plane.kubectl(&["delete", "-f", "-"], Some(refusal)).unwrap();
    admin.eventually("kept-stuck", "made up for", |node| label(node, "node-role.kubernetes.io/worker").is_some()).await;
    admin.delete("kept-stuck").await;
}
