//! What is kept of nodes that leave, and what happens to nodes while replicas admit and nobody leads.

use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{config_maps, eventually_state, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};

const TYPE: &str = "persist.demo/type";

fn setup() -> Setup<'static> {
    Setup { policies: &["tests/cluster/keeping.yaml"], cluster: true, ..Setup::default() }
}

/// Somebody holds the Lease for an hour and renews it no more.
fn lead_elsewhere(plane: &ControlPlane, namespace: &str) {
    let spec = json!({"holderIdentity": "another", "leaseDurationSeconds": 3600, "leaseTransitions": 9,
        "acquireTime": "2099-01-01T00:00:00.000000Z", "renewTime": "2099-01-01T00:00:00.000000Z"});
    let patch = json!({"spec": spec}).to_string();
    plane.kubectl(&["-n", namespace, "patch", "lease", "nodegate", "--type=merge", "-p", &patch], None).unwrap();
}

fn mark(node: &Value) -> Value {
    let text = node["metadata"]["annotations"]["nodegate.dev/admission"].as_str();
    text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

#[tokio::test]
async fn what_admission_restored_and_people_changed_since_the_next_leader_leaves_alone() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let names = ["gap-changed", "gap-removed", "gap-kept", "gap-forged"];
    for name in names {
        admin.delete(name).await;
    }
    let mut nodegate = Nodegate::start(cluster.plane, &setup());
    until_led(&nodegate).await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    for name in names {
        let kubelet = Requester::kubelet(cluster.plane, name).await;
        kubelet.create(&node(name, json!({TYPE: "expensive"}))).await.unwrap();
        eventually_state(&maps, name, "saved", |state| state["labels"][TYPE] == "expensive").await;
    }
    let namespace = nodegate.namespace.clone();
    nodegate.kill();
    // While no replica is there, a kubelet that joins can forge the mark, but not what it says.
    admin.delete("gap-forged").await;
    let mut forged = node("gap-forged", json!({}));
    forged["metadata"]["annotations"] = json!({"nodegate.dev/admission": "{\"restored\":\"0123456789abcdef\"}"});
    forged["metadata"]["managedFields"] = json!([]);
    Requester::kubelet(cluster.plane, "gap-forged").await.create(&forged).await.unwrap();
    lead_elsewhere(cluster.plane, &namespace);
    let mut nodegate = Nodegate::start(cluster.plane, &Setup { namespace: Some(&namespace), ..setup() });
    let mut uids = Vec::new();
    for name in &names[..3] {
        admin.delete(name).await;
        let created = Requester::kubelet(cluster.plane, name).await.create(&node(name, json!({}))).await.unwrap();
        assert_eq!(label(&created, TYPE), Some("expensive"), "admission restores it");
        assert!(mark(&created)["restored"].is_string(), "{created:#}");
        uids.push(created["metadata"]["uid"].clone());
    }
    admin.label("gap-changed", TYPE, json!("cheap")).await.unwrap();
    admin.label("gap-removed", TYPE, Value::Null).await.unwrap();
    assert!(!nodegate.log().contains("\"leading\""), "somebody else holds the Lease");
    nodegate.kill();
    cluster.plane.kubectl(&["-n", &namespace, "delete", "lease", "nodegate"], None).unwrap();
    let nodegate = Nodegate::start(cluster.plane, &Setup { namespace: Some(&namespace), ..setup() });
    until_led(&nodegate).await;
    for (name, uid) in names.iter().zip(&uids) {
        eventually_state(&maps, name, "recorded", |state| state["nodeUID"] == *uid).await;
    }
    admin.eventually("gap-forged", "restored", |node| label(node, TYPE) == Some("expensive")).await;
    for name in names {
        eventually_state(&maps, name, "its return is told", |state| {
            state["history"].as_array().into_iter().flatten().any(|change| change["how"] == "returned")
        })
        .await;
    }
    nodegate.until_resynced(4).await;
    for (name, expected) in names.iter().zip([Some("cheap"), None, Some("expensive"), Some("expensive")]) {
        let found = admin.get(name).await;
        assert_eq!(label(&found, TYPE), expected, "{name}: {found:#}");
        let saved = expected.map_or(json!({}), |value| json!({TYPE: value}));
        eventually_state(&maps, name, "saved", |state| state["labels"] == saved).await;
        admin.delete(name).await;
    }
}

#[tokio::test]
async fn what_changes_while_a_node_is_being_deleted_is_saved() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let kubelet = Requester::kubelet(cluster.plane, "leaves-1").await;
    admin.delete("leaves-1").await;
    let nodegate = Nodegate::start(cluster.plane, &setup());
    until_led(&nodegate).await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    // As Karpenter and Cluster API do with each node.
    let mut held = node("leaves-1", json!({TYPE: "expensive"}));
    held["metadata"]["finalizers"] = json!(["example.com/termination"]);
    admin.create(&held).await.unwrap();
    eventually_state(&maps, "leaves-1", "saved", |state| state["labels"][TYPE] == "expensive").await;
    admin.try_delete("leaves-1").await.unwrap();
    admin.label("leaves-1", TYPE, json!("cheap")).await.unwrap();
    eventually_state(&maps, "leaves-1", "the new value is saved", |state| state["labels"][TYPE] == "cheap").await;
    admin.merge("leaves-1", json!({"metadata": {"finalizers": null}})).await.unwrap();
    eventually_state(&maps, "leaves-1", "its end is saved", |state| state["deletedAt"].is_string()).await;
    let again = kubelet.create(&node("leaves-1", json!({}))).await.unwrap();
    assert_eq!(label(&again, TYPE), Some("cheap"));
    admin.delete("leaves-1").await;
}

#[tokio::test]
async fn history_tells_the_deletion_at_its_time_and_the_change_right_before_it_although_the_node_is_back_at_once() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let kubelet = Requester::kubelet(cluster.plane, "leaves-2").await;
    admin.delete("leaves-2").await;
    let nodegate = Nodegate::start(cluster.plane, &setup());
    until_led(&nodegate).await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    kubelet.create(&node("leaves-2", json!({TYPE: "expensive"}))).await.unwrap();
    eventually_state(&maps, "leaves-2", "saved", |state| state["labels"][TYPE] == "expensive").await;
    admin.label("leaves-2", "colour", json!("red")).await.unwrap();
    let before = jiff::Timestamp::now();
    admin.try_delete("leaves-2").await.unwrap();
    let after = jiff::Timestamp::now();
    kubelet.create(&node("leaves-2", json!({}))).await.unwrap();
    let told = |state: &Value| {
        let how = |change: &Value| format!("{} {}", change["how"].as_str().unwrap(), change["key"].as_str().unwrap());
        state["history"].as_array().into_iter().flatten().map(how).collect::<Vec<String>>()
    };
    let state = eventually_state(&maps, "leaves-2", "all is told", |state| {
        let told = told(state);
        let at = |what: &str| told.iter().position(|one| one == what);
        at("user colour").is_some() && at("user colour") < at("deleted ") && at("deleted ") < at("returned ")
    })
    .await;
    let deleted = state["history"].as_array().unwrap().iter().find(|change| change["how"] == "deleted").unwrap();
    let at: jiff::Timestamp = deleted["time"].as_str().unwrap().parse().unwrap();
    let latest = after + jiff::SignedDuration::from_secs(2);
    assert!(before <= at && at <= latest, "{before} {at} {after}");
    admin.delete("leaves-2").await;
}
