//! The label operator that nodegate replaces: each row of its authority model and each of its edge cases.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::control_plane::{Exclusive, exclusive};
use super::keeping::{config_maps, eventually_state, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label, taints};
use crate::eventually::eventually;

/// Persists `persist.demo/*` and the taint `dedicated`; looks at every node again after five seconds.
fn setup() -> Setup<'static> {
    Setup { policies: &["tests/cluster/keeping.yaml"], cluster: true, ..Setup::default() }
}

/// A cluster with nodegate leading.
struct Led<'a> {
    nodegate: Nodegate<'a>,
    admin: Requester,
    maps: Api<ConfigMap>,
}

impl<'a> Led<'a> {
    async fn start(cluster: &'a Exclusive) -> Self {
        let nodegate = Nodegate::start(cluster.plane, &setup());
        until_led(&nodegate).await;
        let maps = config_maps(cluster.plane, &nodegate.namespace).await;
        Self { nodegate, admin: Requester::admin(cluster.plane).await, maps }
    }

    /// A node that joins anew with these labels, once everything of it is saved.
    async fn join(&self, cluster: &Exclusive, name: &str, labels: Value) -> Value {
        self.admin.delete(name).await;
        self.rejoin(cluster, name, labels).await
    }

    /// The same while the one of before has just been deleted, or never was.
    async fn rejoin(&self, cluster: &Exclusive, name: &str, labels: Value) -> Value {
        let kubelet = Requester::kubelet(cluster.plane, name).await;
        let created = kubelet.create(&node(name, labels)).await.unwrap();
        let uid = created["metadata"]["uid"].clone();
        eventually_state(&self.maps, name, "this object is recorded", |state| state["nodeUID"] == uid).await;
        created
    }

    async fn saved(&self, name: &str, labels: Value) -> Value {
        eventually_state(&self.maps, name, &format!("{labels} saved"), |state| state["labels"] == labels).await
    }

    async fn data(&self, config_map: &str) -> std::collections::BTreeMap<String, String> {
        self.maps.get(config_map).await.unwrap().data.unwrap_or_default()
    }
}

fn config_map(name: &str, state: &str) -> ConfigMap {
    let data = json!({"state.json": state, "notes": "not ours"});
    serde_json::from_value(json!({"metadata": {"name": format!("node-labels-{name}")}, "data": data})).unwrap()
}

/// What the operator wrote of a node, as it wrote it.
fn operators(name: &str) -> String {
    json!({"nodeName": name, "labels": {"persist.demo/type": "expensive"}, "capturedAt": "2026-01-14T17:00:00Z"})
        .to_string()
}

/// Makes the ConfigMap of a node, and waits until admission, which reads from memory, would restore what it says.
async fn made(cluster: &Exclusive, led: &Led<'_>, map: &ConfigMap, name: &str) {
    led.maps.create(&PostParams::default(), map).await.unwrap();
    let user = format!("system:node:{name}");
    let nodes = Api::<Node>::all(cluster.plane.client(Some((&user, &["system:nodes", "system:authenticated"]))).await);
    let joining: Node = serde_json::from_value(node(name, json!({}))).unwrap();
    let trying = PostParams { dry_run: true, ..PostParams::default() };
    eventually(&format!("{name} would get its labels"), async || {
        let labels = nodes.create(&trying, &joining).await.unwrap().metadata.labels.unwrap_or_default();
        if labels.contains_key("persist.demo/type") { Ok(()) } else { Err(format!("{labels:?}")) }
    })
    .await;
}

/// Makes a ConfigMap, and waits until it is logged that it is not used.
async fn made_in_vain(led: &Led<'_>, map: &ConfigMap) {
    led.maps.create(&PostParams::default(), map).await.unwrap();
    let name = map.metadata.name.as_deref().unwrap();
    led.nodegate.eventually(&format!("{name} is read"), || led.nodegate.log().contains(name)).await;
}

#[tokio::test]
async fn a_new_node_has_what_the_operators_config_map_says_in_the_object_the_create_returns() {
    let cluster = exclusive();
    let led = Led::start(&cluster).await;
    made(&cluster, &led, &config_map("ref-new", &operators("ref-new")), "ref-new").await;
    let created = led.join(&cluster, "ref-new", json!({"persist.demo/own": "x"})).await;
    assert_eq!(label(&created, "persist.demo/type"), Some("expensive"));
    assert_eq!(label(&created, "persist.demo/own"), Some("x"));
    // Adopted where it stands.
    led.saved("ref-new", json!({"persist.demo/own": "x", "persist.demo/type": "expensive"})).await;
    assert_eq!(led.data("node-labels-ref-new").await["notes"], "not ours");
    led.admin.delete("ref-new").await;
}

#[tokio::test]
async fn a_recreated_node_has_its_labels_and_taints_in_the_object_the_create_returns() {
    let cluster = exclusive();
    let led = Led::start(&cluster).await;
    led.join(&cluster, "ref-back", json!({})).await;
    let dedicated = json!([{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]);
    led.admin.label("ref-back", "persist.demo/type", json!("expensive")).await.unwrap();
    led.admin.merge("ref-back", json!({"spec": {"taints": dedicated}})).await.unwrap();
    eventually_state(&led.maps, "ref-back", "label and taint saved", |state| {
        state["labels"]["persist.demo/type"] == "expensive" && state["taints"][0]["key"] == "dedicated"
    })
    .await;
    led.admin.delete("ref-back").await;
    let again = led.rejoin(&cluster, "ref-back", json!({})).await;
    assert_eq!(label(&again, "persist.demo/type"), Some("expensive"));
    assert!(taints(&again).contains(&"dedicated=ml:NoSchedule".to_owned()), "{:?}", taints(&again));
    led.admin.delete("ref-back").await;
}

#[tokio::test]
async fn a_changed_label_of_an_existing_node_is_saved() {
    let cluster = exclusive();
    let led = Led::start(&cluster).await;
    led.join(&cluster, "ref-changed", json!({"persist.demo/type": "expensive"})).await;
    led.saved("ref-changed", json!({"persist.demo/type": "expensive"})).await;
    led.admin.label("ref-changed", "persist.demo/type", json!("cheap")).await.unwrap();
    led.saved("ref-changed", json!({"persist.demo/type": "cheap"})).await;
    assert_eq!(label(&led.admin.get("ref-changed").await, "persist.demo/type"), Some("cheap"), "the node wins");
    led.admin.delete("ref-changed").await;
}

#[tokio::test]
async fn a_deleted_label_of_an_existing_node_is_no_longer_saved_and_does_not_come_back() {
    let cluster = exclusive();
    let led = Led::start(&cluster).await;
    led.join(&cluster, "ref-unset", json!({"persist.demo/type": "expensive", "persist.demo/own": "x"})).await;
    led.saved("ref-unset", json!({"persist.demo/own": "x", "persist.demo/type": "expensive"})).await;
    led.admin.label("ref-unset", "persist.demo/type", Value::Null).await.unwrap();
    led.saved("ref-unset", json!({"persist.demo/own": "x"})).await;
    led.admin.delete("ref-unset").await;
    let again = led.rejoin(&cluster, "ref-unset", json!({})).await;
    assert_eq!(label(&again, "persist.demo/type"), None);
    assert_eq!(label(&again, "persist.demo/own"), Some("x"));
    led.admin.delete("ref-unset").await;
}

#[tokio::test]
async fn a_deleted_node_leaves_its_config_map() {
    let cluster = exclusive();
    let led = Led::start(&cluster).await;
    led.join(&cluster, "ref-gone", json!({"persist.demo/type": "expensive"})).await;
    led.saved("ref-gone", json!({"persist.demo/type": "expensive"})).await;
    led.admin.delete("ref-gone").await;
    let ended =
        eventually_state(&led.maps, "ref-gone", "its end is noted", |state| state["deletedAt"].is_string()).await;
    assert_eq!(ended["labels"], json!({"persist.demo/type": "expensive"}));
}

#[tokio::test]
async fn an_invalid_config_map_counts_as_empty_and_is_logged_and_kept() {
    let cluster = exclusive();
    let led = Led::start(&cluster).await;
    made_in_vain(&led, &config_map("ref-corrupt", "{nonsense")).await;
    let created = led.join(&cluster, "ref-corrupt", json!({"persist.demo/own": "x"})).await;
    assert_eq!(label(&created, "persist.demo/type"), None);
    led.saved("ref-corrupt", json!({"persist.demo/own": "x"})).await;
    let data = led.data("node-labels-ref-corrupt").await;
    assert!(data.iter().any(|(key, text)| key.starts_with("corrupt-") && text == "{nonsense"), "{data:?}");
    assert_eq!(data["notes"], "not ours");
    let told =
        led.nodegate.log().lines().any(|line| line.contains("ERROR") && line.contains("node-labels-ref-corrupt"));
    assert!(told, "{}", led.nodegate.log());
    assert!(!led.nodegate.probe("/metrics").unwrap().contains("\nnodegate_unreadable_states_total 0\n"));
    led.admin.delete("ref-corrupt").await;
}

#[tokio::test]
async fn invalid_state_of_a_living_node_is_replaced_by_its_current_labels() {
    let cluster = exclusive();
    let led = Led::start(&cluster).await;
    led.join(&cluster, "ref-edited", json!({"persist.demo/type": "expensive"})).await;
    led.saved("ref-edited", json!({"persist.demo/type": "expensive"})).await;
    let nonsense = Patch::Merge(json!({"data": {"state.json": "[]"}}));
    led.maps.patch("node-labels-ref-edited", &PatchParams::default(), &nonsense).await.unwrap();
    led.saved("ref-edited", json!({"persist.demo/type": "expensive"})).await;
    led.admin.delete("ref-edited").await;
}

/// Somebody who writes into the same ConfigMap, and takes care to lose nothing himself.
async fn write_beside(maps: &Api<ConfigMap>, name: &str, count: usize) {
    for at in 0..count {
        loop {
            let mut map = match maps.get_opt(name).await.unwrap() {
                Some(map) => map,
                None => serde_json::from_value(json!({"metadata": {"name": name}})).unwrap(),
            };
            map.data.get_or_insert_default().insert(format!("other-{at}"), at.to_string());
            let written = if map.metadata.resource_version.is_some() {
                maps.replace(name, &PostParams::default(), &map).await
            } else {
                maps.create(&PostParams::default(), &map).await
            };
            match written {
                Ok(_) => break,
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[tokio::test]
async fn concurrent_writers_of_the_same_config_map_lose_no_data() {
    const TIMES: usize = 60;
    let cluster = exclusive();
    let led = Led::start(&cluster).await;
    led.admin.delete("ref-race").await;
    let labels = async {
        // From before there is a ConfigMap: it is made by both at once.
        let kubelet = Requester::kubelet(cluster.plane, "ref-race").await;
        kubelet.create(&node("ref-race", json!({"persist.demo/first": "x"}))).await.unwrap();
        for at in 0..TIMES {
            led.admin.label("ref-race", "persist.demo/count", json!(at.to_string())).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::join!(labels, write_beside(&led.maps, "node-labels-ref-race", TIMES));
    let last = (TIMES - 1).to_string();
    led.saved("ref-race", json!({"persist.demo/count": last, "persist.demo/first": "x"})).await;
    let data = led.data("node-labels-ref-race").await;
    for at in 0..TIMES {
        assert_eq!(data.get(&format!("other-{at}")), Some(&at.to_string()), "lost: {data:?}");
    }
    led.admin.delete("ref-race").await;
}

#[tokio::test]
async fn changes_made_while_the_controller_is_away_are_found_when_it_is_back() {
    let cluster = exclusive();
    let mut led = Led::start(&cluster).await;
    let names = ["ref-away-1", "ref-away-2", "ref-away-3"];
    for name in names {
        led.join(&cluster, name, json!({"persist.demo/type": "expensive"})).await;
        led.saved(name, json!({"persist.demo/type": "expensive"})).await;
    }
    led.nodegate.kill();
    led.admin.label(names[0], "persist.demo/type", json!("cheap")).await.unwrap();
    led.admin.label(names[1], "persist.demo/type", Value::Null).await.unwrap();
    led.admin.delete(names[2]).await;
    let kubelet = Requester::kubelet(cluster.plane, names[2]).await;
    let bare = kubelet.create(&node(names[2], json!({}))).await.unwrap();
    assert_eq!(label(&bare, "persist.demo/type"), None, "nobody was there to give it");
    let namespace = led.nodegate.namespace.clone();
    let _back = Nodegate::start(cluster.plane, &Setup { namespace: Some(&namespace), ..setup() });
    led.saved(names[0], json!({"persist.demo/type": "cheap"})).await;
    led.saved(names[1], json!({})).await;
    led.admin.eventually(names[2], "restored", |node| label(node, "persist.demo/type") == Some("expensive")).await;
    for name in names {
        led.admin.delete(name).await;
    }
}

#[tokio::test]
async fn a_copy_of_a_record_is_neither_used_nor_changed_and_its_deletion_forgets_nothing() {
    let cluster = exclusive();
    let led = Led::start(&cluster).await;
    led.admin.delete("ref-copied").await;
    // Its name sorts before that of the record.
    made_in_vain(&led, &config_map("a-copy", &operators("ref-copied"))).await;
    let kubelet = Requester::kubelet(cluster.plane, "ref-copied").await;
    let created = kubelet.create(&node("ref-copied", json!({}))).await.unwrap();
    assert_eq!(label(&created, "persist.demo/type"), None, "the copy is not the record");
    led.admin.label("ref-copied", "persist.demo/type", json!("cheap")).await.unwrap();
    led.saved("ref-copied", json!({"persist.demo/type": "cheap"})).await;
    assert_eq!(led.data("node-labels-a-copy").await["state.json"], operators("ref-copied"));
    let log = led.nodegate.log();
    assert!(
        log.contains("it is a copy, because the record of node ref-copied is ConfigMap node-labels-ref-copied"),
        "{log}"
    );
    led.maps.delete("node-labels-a-copy", &DeleteParams::default()).await.unwrap();
    led.admin.delete("ref-copied").await;
    let again = kubelet.create(&node("ref-copied", json!({}))).await.unwrap();
    assert_eq!(label(&again, "persist.demo/type"), Some("cheap"));
    led.admin.delete("ref-copied").await;
}

#[tokio::test]
async fn a_resync_finds_changes_without_an_event() {
    const RECORD: &str = "ref-resync-0123456789abcdef";
    let cluster = exclusive();
    let led = Led::start(&cluster).await;
    // The record may have a name with a hash, which does not say whose it is: its deletion wakes no node.
    led.admin.delete("ref-resync").await;
    made(&cluster, &led, &config_map(RECORD, &operators("ref-resync")), "ref-resync").await;
    let kubelet = Requester::kubelet(cluster.plane, "ref-resync").await;
    let created = kubelet.create(&node("ref-resync", json!({}))).await.unwrap();
    assert_eq!(label(&created, "persist.demo/type"), Some("expensive"));
    eventually_state(&led.maps, RECORD, "recorded where it stands", |state| {
        state["nodeUID"] == created["metadata"]["uid"]
    })
    .await;
    led.maps.delete(&format!("node-labels-{RECORD}"), &DeleteParams::default()).await.unwrap();
    led.saved("ref-resync", json!({"persist.demo/type": "expensive"})).await;
    led.admin.delete("ref-resync").await;
}
