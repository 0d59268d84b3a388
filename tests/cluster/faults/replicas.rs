//! Replicas of nodegate that are killed, away, or have much to do at once.

use std::time::Duration;

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::super::control_plane::exclusive;
use super::super::keeping::{config_maps, eventually_state, node, until_led};
use super::super::nodegate::{Nodegate, Setup};
use super::super::requester::{Requester, taints};
use super::{POLICY, all_right, delete_all, is_right, join_all, names};

#[tokio::test]
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
    join_all(cluster.plane, &after).await;
    until_led(&follower).await;
    all_right(&admin, &after).await;
    delete_all(&admin, &before).await;
    delete_all(&admin, &after).await;
}

#[tokio::test]
async fn a_leader_killed_between_any_two_writes_is_continued_by_the_next() {
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
        let owned = |state: &Value| state["owned"]["labels"]["hardware.tier"] == "standard";
        eventually_state(&maps, name, "what was written is owned", owned).await;
    }
    delete_all(&admin, &nodes).await;
}

#[tokio::test]
async fn nodes_that_join_or_are_recreated_while_nodegate_is_down_are_repaired() {
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
    eventually_state(&maps, &nodes[0], "saved", |state| state["labels"]["persist.demo/own"] == "kept-w-0").await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_concurrently_joining_nodes_get_their_labels_and_taints() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    // Beside other work, two seconds may be too short for one of a thousand calls, and then it fails open.
    let setup = Setup {
        policies: POLICY,
        cluster: true,
        serve: &["--writes-per-second", "1000"],
        timeout_seconds: 30,
        ..Setup::default()
    };
    let nodegate = Nodegate::start(cluster.plane, &setup);
    until_led(&nodegate).await;
    let nodes = names("kept-m", 1000);
    let joins = futures_util::stream::iter(nodes.clone()).map(|name| async move {
        let created = Requester::kubelet(cluster.plane, &name).await.create(&node(&name, json!({}))).await.unwrap();
        let log = || cluster.plane.api_server_log();
        assert!(taints(&created).contains(&"fleet=kept:NoSchedule".to_owned()), "{name}: {created:#}\n{}", log());
    });
    joins.buffer_unordered(50).collect::<Vec<()>>().await;
    for name in &nodes {
        admin.eventually(name, "exactly as it should be", is_right).await;
    }
    let deletions = futures_util::stream::iter(&nodes).map(|name| admin.delete(name));
    deletions.buffer_unordered(50).collect::<Vec<()>>().await;
}
