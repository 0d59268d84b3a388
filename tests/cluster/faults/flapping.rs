//! Somebody who undoes every repair as fast as it comes, and calls itself something else each time.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::commands::run;
use super::super::control_plane::exclusive;
use super::super::keeping::{config_maps, eventually_state, node, until_led};
use super::super::nodegate::{Nodegate, Setup};
use super::super::requester::{Requester, label};
use super::{POLICY, events, until_told};
use crate::eventually::{eventually, holds};

/// Undoes a label for so long, under a new name of a field manager each time; answers how often it was repaired.
async fn undo(admin: &Requester, name: &str, key: &str, right: &str, length: Duration) -> usize {
    let (start, mut repaired, mut turn) = (Instant::now(), 0, 0);
    while start.elapsed() < length {
        if label(&admin.get(name).await, key) == Some(right) {
            repaired += 1;
            turn += 1;
            let forged = json!({"metadata": {"labels": {key: format!("forged-{turn}")}}});
            admin.merge_status_as(name, forged, &format!("writer-{turn}")).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    repaired
}

#[tokio::test]
async fn a_key_is_no_longer_repaired_after_five_reverts_by_a_writer_that_changes_its_name() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("kept-names").await;
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies: POLICY, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    // The API server notes who writes to an object only where somebody claims something of it from the start.
    admin.create(&node("kept-names", json!({"mine": "x"}))).await.unwrap();
    let maps = config_maps(cluster.plane, &nodegate.namespace).await;
    eventually_state(&maps, "kept-names", "owned", |state| !state["owned"]["labels"]["hardware.tier"].is_null()).await;
    let repaired = undo(&admin, "kept-names", "hardware.tier", "standard", Duration::from_secs(40)).await;
    assert!((5..=7).contains(&repaired), "it was there {repaired} times: at first, and after five reverts");
    let told = until_told(cluster.plane, &nodegate, "kept-names", "LeftAlone").await;
    assert!(["writer-3", "writer-4", "writer-5"].iter().all(|writer| told.contains(writer)), "{told:?}");
    let arguments = ["explain", "kept-names", "hardware.tier", "--namespace", &nodegate.namespace, "-o", "json"];
    eventually("the controller publishes what it leaves alone", async || {
        let explained: serde_json::Value = serde_json::from_str(&run(cluster.plane, None, &arguments).with(0)).unwrap();
        holds(explained["missing"][0]["why"] == "fight", || format!("{explained:#}"))
    })
    .await;
    admin.delete("kept-names").await;
}

#[tokio::test]
async fn a_protected_key_is_always_repaired_within_the_write_budget_of_its_own_node() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    for name in ["kept-flaps", "kept-calm"] {
        admin.delete(name).await;
    }
    let policies: &[&str] = &["tests/cluster/keeping.yaml", "tests/cluster/protect.yaml"];
    let setup =
        Setup { policies, cluster: true, unregistered: true, serve: &["--writes-per-second", "5"], ..Setup::default() };
    let nodegate = Nodegate::start(cluster.plane, &setup);
    until_led(&nodegate).await;
    for name in ["kept-flaps", "kept-calm"] {
        admin.create(&node(name, json!({}))).await.unwrap();
        admin.eventually(name, "labelled", |node| label(node, "hardware.tier") == Some("standard")).await;
    }
    let started = Instant::now();
    let flapping = undo(&admin, "kept-flaps", "hardware.tier", "standard", Duration::from_secs(40));
    let calm = async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        admin.merge_status("kept-calm", json!({"metadata": {"labels": {"hardware.tier": "forged"}}})).await.unwrap();
        admin.eventually("kept-calm", "repaired", |node| label(node, "hardware.tier") == Some("standard")).await;
    };
    let (repaired, ()) = tokio::join!(flapping, calm);
    let most = 20 + started.elapsed().as_secs() as usize / 3 + 2;
    assert!(repaired <= most, "repaired {repaired} times; one node may cost {most} writes in that time");
    assert!(repaired > 8, "a protected key is not given up: {repaired}");
    until_told(cluster.plane, &nodegate, "kept-flaps", "WriteBudgetSpent").await;
    assert!(!events(cluster.plane, "LeftAlone").contains("kept-flaps: "), "a protected key was left alone");
    admin
        .eventually("kept-flaps", "repaired once it is calm", |node| label(node, "hardware.tier") == Some("standard"))
        .await;
    for name in ["kept-flaps", "kept-calm"] {
        admin.delete(name).await;
    }
}
