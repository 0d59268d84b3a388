//! Which machine gets what was saved.

use serde_json::{Value, json};

use super::control_plane::exclusive;
use super::keeping::{config_maps, eventually_state, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};

pub(super) fn machine(name: &str, uuid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
           "status": {"nodeInfo": {"systemUUID": uuid, "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "",
                      "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "linux",
                      "osImage": ""}}})
}

fn setup(identity: &'static [&'static str]) -> Setup<'static> {
    Setup { policies: &["tests/cluster/keeping.yaml"], cluster: true, serve: identity, ..Setup::default() }
}

#[tokio::test]
async fn another_machine_under_an_existing_name_inherits_nothing_and_the_first_one_gets_its_record_back() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &setup(&["--identity", "name+systemUUID"]));
    until_led(&nodegate).await;
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, "named-1").await);
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    admin.delete("named-1").await;
    let uid = kubelet.create(&machine("named-1", "A")).await.unwrap()["metadata"]["uid"].clone();
    eventually_state(&maps, "named-1", "recorded", |state| state["nodeUID"] == uid).await;
    admin.label("named-1", "persist.demo/type", json!("expensive")).await.unwrap();
    eventually_state(&maps, "named-1", "saved", |state| state["labels"]["persist.demo/type"] == "expensive").await;
    admin.delete("named-1").await;

    let other = kubelet.create(&machine("named-1", "B")).await.unwrap();
    assert_eq!(label(&other, "persist.demo/type"), None, "it is another machine");
    let uid = other["metadata"]["uid"].clone();
    eventually_state(&maps, "named-1", "a record of its own", |state| state["nodeUID"] == uid).await;
    let data = maps.get("node-labels-named-1").await.unwrap().data.unwrap();
    assert!(data.values().any(|text| text.contains("systemUUID=A")), "the old record is kept aside: {data:?}");
    admin.delete("named-1").await;

    let back = kubelet.create(&machine("named-1", "A")).await.unwrap();
    assert_eq!(label(&back, "persist.demo/type"), Some("expensive"));
    admin.delete("named-1").await;
}

#[tokio::test]
async fn with_an_id_alone_the_record_follows_the_machine_to_another_name() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &setup(&["--identity", "systemUUID"]));
    until_led(&nodegate).await;
    let admin = Requester::admin(cluster.plane).await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    for name in ["old-name", "new-name"] {
        admin.delete(name).await;
    }
    let create =
        async |name: &str| Requester::kubelet(cluster.plane, name).await.create(&machine(name, "C")).await.unwrap();
    let uid = create("old-name").await["metadata"]["uid"].clone();
    eventually_state(&maps, "old-name", "recorded", |state| state["nodeUID"] == uid).await;
    admin.label("old-name", "persist.demo/type", json!("expensive")).await.unwrap();
    eventually_state(&maps, "old-name", "saved", |state| state["labels"]["persist.demo/type"] == "expensive").await;
    admin.delete("old-name").await;
    let renamed = create("new-name").await;
    assert_eq!(label(&renamed, "persist.demo/type"), Some("expensive"));
    // The record follows: it stands where it stood, with the new name in it.
    let uid = renamed["metadata"]["uid"].clone();
    eventually_state(&maps, "old-name", "of the new name", |state| {
        state["nodeUID"] == uid && state["nodeName"] == "new-name"
    })
    .await;
    // It is no copy: what changes from then on is saved in it, beside its history.
    admin.label("new-name", "persist.demo/type", json!("cheap")).await.unwrap();
    let state =
        eventually_state(&maps, "old-name", "saved again", |state| state["labels"]["persist.demo/type"] == "cheap")
            .await;
    let history = state["history"].as_array().unwrap();
    assert!(history.iter().any(|change| change["new"] == "expensive"), "its history is kept: {state:#}");
    assert!(maps.get_opt("node-labels-new-name").await.unwrap().is_none(), "there is one record of the machine");
    admin.delete("new-name").await;
}
