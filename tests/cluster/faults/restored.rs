//! A cluster that goes back to a backup of etcd, and API servers that are replaced one after the other.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::super::control_plane::exclusive;
use super::super::keeping::{config_maps, eventually_state, node, until_led};
use super::super::nodegate::{Nodegate, Setup};
use super::super::requester::{Requester, label};
use super::{OWN, POLICY, all_right, delete_all, is_right, join_all, names};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_cluster_is_restored_from_a_backup_what_came_later_is_forgotten() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    let saved =
        |value: &'static str| move |state: &Value| state["labels"][OWN] == value && state["deletedAt"].is_null();
    let [again, changed, deleted, gone] = ["kept-again", "kept-changed", "kept-deleted", "kept-gone"];
    let joined = "kept-joined";
    let is_deleted = |state: &Value| state["deletedAt"].is_string();
    for name in [again, changed, deleted, gone] {
        Requester::kubelet(cluster.plane, name).await.create(&node(name, json!({OWN: "then"}))).await.unwrap();
        eventually_state(&maps, name, "saved", saved("then")).await;
    }
    admin.delete(gone).await;
    eventually_state(&maps, gone, "its node is deleted", is_deleted).await;
    let backup = cluster.plane.back_up().await;

    Requester::kubelet(cluster.plane, gone).await.create(&node(gone, json!({}))).await.unwrap();
    for name in [again, changed, gone] {
        admin.label(name, OWN, json!("later")).await.unwrap();
        eventually_state(&maps, name, "saved", saved("later")).await;
    }
    for name in [deleted, gone] {
        admin.delete(name).await;
        eventually_state(&maps, name, "its node is deleted", is_deleted).await;
    }
    Requester::kubelet(cluster.plane, joined).await.create(&node(joined, json!({OWN: "later"}))).await.unwrap();
    eventually_state(&maps, joined, "saved", saved("later")).await;
    nodegate.eventually("five records are known", || nodegate.records() == 5).await;

    block_in_place(|| cluster.plane.restore(&backup));
    nodegate.eventually("the later record is forgotten", || nodegate.records() == 4).await;
    admin.delete(again).await;
    // Nothing but the records tells what the nodes had that are not there.
    for (name, own) in [(gone, json!("then")), (again, json!("then")), (joined, Value::Null)] {
        let created = Requester::kubelet(cluster.plane, name).await.create(&node(name, json!({}))).await.unwrap();
        assert_eq!(label(&created, OWN), own.as_str(), "{created:#}");
    }
    admin.label(changed, OWN, json!("now")).await.unwrap();
    for (name, own) in [(gone, "then"), (again, "then"), (changed, "now"), (deleted, "then")] {
        eventually_state(&maps, name, "its node is there", saved(own)).await;
    }
    for name in [again, changed, deleted, gone, joined] {
        admin.eventually(name, "as it should be", is_right).await;
        admin.delete(name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_api_servers_are_replaced_one_after_the_other_one_replica_leads_all_the_time() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    // No API server is away for as long as that.
    let setup = Setup { policies: POLICY, cluster: true, lease_seconds: 40, ..Setup::default() };
    let nodegate = Nodegate::start(cluster.plane, &setup);
    until_led(&nodegate).await;
    let nodes = names("kept-replaced", 4);
    for name in &nodes {
        block_in_place(|| cluster.plane.restart_api_server(Duration::from_secs(1)));
        let name = std::slice::from_ref(name);
        join_all(cluster.plane, name).await;
        all_right(&admin, name).await;
    }
    assert!(!nodegate.log().contains("no longer the leader"), "{}", nodegate.log());
    delete_all(&admin, &nodes).await;
}
