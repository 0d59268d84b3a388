//! The race between a node's taint and the scheduler.

use std::time::Duration;

use super::control_plane::exclusive;
use super::keeping::until_led;
use super::nodegate::{Nodegate, Setup};
use super::requester::taints;
use super::scheduling::{PODS, Waiting};
use crate::eventually::{eventually, for_a_while, holds};

#[tokio::test]
async fn no_waiting_pod_is_bound_to_a_node_that_joins_tainted() {
    let cluster = exclusive();
    let policies: &[&str] = &["tests/cluster/keeping.yaml"];
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    // Pods that no node at all could take are retried by a timer; those that some node refuses wait for the next to join.
    let occupied = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "occupied-race"},
        "spec": {"taints": [{"key": "occupied", "effect": "NoSchedule"}]}}"#;
    cluster.plane.kubectl(&["apply", "-f", "-"], Some(occupied)).unwrap();
    let _scheduler = cluster.plane.component("kube-scheduler", &[]);
    // They tolerate not-ready: nothing but the policy's taint keeps them away.
    let waiting = Waiting::start(cluster.plane, true).await;
    let joined = waiting.join("kept-race").await;
    assert!(taints(&joined).contains(&"fleet=kept:NoSchedule".to_owned()), "{:?}", taints(&joined));
    // The scheduler does not tell that it has passed a node by.
    for_a_while(Duration::from_secs(4)).await;
    assert_eq!(waiting.bound("kept-race").await, 0);
    // The scheduler was there all the time: it fills a node that no policy taints.
    waiting.join("free-race").await;
    eventually("the scheduler binds all pods", async || {
        let bound = waiting.bound("free-race").await;
        holds(bound == PODS, || format!("{bound} of {PODS}"))
    })
    .await;
    assert_eq!(waiting.bound("kept-race").await, 0);
    waiting.clear(&["kept-race", "free-race", "occupied-race"]).await;
}
