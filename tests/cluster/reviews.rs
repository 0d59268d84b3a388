//! Whatever review the API server can send is answered: as large as a kubelet can make it, and of every operation.
#![allow(clippy::await_holding_lock, reason = "one test at a time uses the control plane")]

use std::time::Duration;

use futures_util::future::join_all;
use nodegate_webhook::admission::REVIEW_BYTES;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::node;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};
use crate::eventually::{eventually, holds};
use crate::shared::authority::client_config;

/// Nearly as much as etcd takes. The API server writes each character with six bytes, in both objects of an UPDATE.
const CHARACTERS: usize = 1_250_000;

/// A write of `nodes/status` that makes a node as large as that.
fn filled() -> Value {
    let time = "2026-11-20T22:00:00Z";
    let condition = json!({"type": "Large", "status": "True", "reason": "Large", "message": "<".repeat(CHARACTERS),
                           "lastHeartbeatTime": time, "lastTransitionTime": time});
    json!({"status": {"conditions": [condition]}})
}

/// Joins nodes and has their kubelets fill them.
async fn join_filled(plane: &ControlPlane, admin: &Requester, names: &[String]) -> Vec<Requester> {
    let mut kubelets = Vec::new();
    for name in names {
        admin.delete(name).await;
        let kubelet = Requester::kubelet(plane, name).await;
        kubelet.create(&node(name, json!({}))).await.unwrap();
        kubelet.merge_status(name, filled()).await.unwrap();
        kubelets.push(kubelet);
    }
    kubelets
}

fn setup() -> Setup<'static> {
    Setup {
        policies: &["tests/cluster/protect.yaml"],
        render: &["--failure-policy", "Fail"],
        // A debug build beside other tests is not as fast as what is deployed.
        timeout_seconds: 30,
        ..Setup::default()
    }
}

#[tokio::test]
async fn writes_of_large_nodes_are_judged_and_an_administrators_are_not_refused_for_the_size() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &Setup { cluster: true, ..setup() });
    let admin = Requester::admin(cluster.plane).await;
    let name = "large-1".to_owned();
    let kubelets = join_filled(cluster.plane, &admin, std::slice::from_ref(&name)).await;
    let [kubelet] = &kubelets[..] else { panic!() };
    // Through `nodes` the key is put back in the very write.
    let written = kubelet.label(&name, "hardware.tier", json!("gold")).await.unwrap();
    assert_eq!(label(&written, "hardware.tier"), None);
    let through_status = json!({"metadata": {"labels": {"hardware.tier": "gold"}}});
    let refusal = kubelet.merge_status(&name, through_status).await.unwrap_err();
    assert_eq!(refusal.code, 403, "{refusal:?}");
    let stored = admin.label(&name, "team", json!("x")).await.unwrap();
    assert_eq!((label(&stored, "hardware.tier"), label(&stored, "team")), (None, Some("x")));
    // Who made it so large is found afterwards.
    let told = nodegate.log();
    assert!(told.lines().any(|line| line.contains("unusually large") && line.contains(&name)), "{told}");
    let about = format!("involvedObject.name={name},reason=ReadInPart");
    let events = || cluster.plane.kubectl(&["get", "events", "-A", "--field-selector", &about, "-o", "name"], None);
    nodegate.eventually("an event tells it", || !events().unwrap().is_empty()).await;
    assert!(!nodegate.probe("/metrics").unwrap().contains("nodegate_large_reviews_total 0\n"));
    admin.delete(&name).await;
}

#[tokio::test]
async fn kubelets_that_write_large_nodes_at_once_are_all_judged_within_the_memory_of_a_pod() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &setup());
    let admin = Requester::admin(cluster.plane).await;
    // More of them would be a test of the API server, which has 34 s for a write; tests/suite/crowd.rs has sixteen.
    let names: Vec<String> = (0..3).map(|at| format!("large-{at}")).collect();
    let kubelets = join_filled(cluster.plane, &admin, &names).await;
    admin.delete("ordinary-1").await;
    let ordinary = Requester::kubelet(cluster.plane, "ordinary-1").await;
    let gold = json!({"metadata": {"labels": {"hardware.tier": "gold"}}});
    let large = join_all(kubelets.iter().zip(&names).map(|(kubelet, name)| kubelet.merge_status(name, gold.clone())));
    let beside = async {
        ordinary.create(&node("ordinary-1", json!({"hardware.tier": "gold"}))).await.unwrap();
        ordinary.merge_status("ordinary-1", gold.clone()).await.unwrap_err()
    };
    let (large, beside) = tokio::join!(large, beside);
    assert_eq!(beside.code, 403, "{beside:?}");
    for (name, outcome) in names.iter().zip(large) {
        assert_eq!(outcome.as_ref().err().map(|refusal| refusal.code), Some(403), "{name}: {outcome:?}");
        admin.delete(name).await;
    }
    let peak = nodegate.peak_memory();
    println!("peak memory with writers of large nodes: {} MiB", peak / 1024 / 1024);
    assert!(peak < 256 * 1024 * 1024, "{peak} bytes");
    assert_eq!(label(&admin.get("ordinary-1").await, "hardware.tier"), None, "stripped at its join");
    admin.delete("ordinary-1").await;
}

/// Connections of one pod that each send as much as a review may have, faster than nothing and slower than any network, again and again.
async fn send_slowly(port: u16, ca: String) {
    let connector = TlsConnector::from(client_config(ca.as_bytes(), None, rustls::ALL_VERSIONS));
    // 4.6 MiB in a second.
    let piece = vec![b' '; 4_823_449 / 20];
    loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.1.1:0".parse().unwrap()).unwrap();
        let connected = socket.connect(([127, 0, 0, 1], port).into()).await.unwrap();
        let Ok(mut stream) = connector.connect(ServerName::try_from("localhost").unwrap(), connected).await else {
            continue;
        };
        let head = format!(
            "POST /validate?timeout=30s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {REVIEW_BYTES}\r\n\r\n"
        );
        let _ = stream.write_all(head.as_bytes()).await;
        for _ in 0..REVIEW_BYTES / piece.len() {
            if stream.write_all(&piece).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Neither stores the API server a reserved label under `Ignore`, nor does it refuse an administrator's write under `Fail`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_pod_sends_large_bodies_slowly_writes_of_large_nodes_are_judged() {
    let cluster = exclusive();
    let admin = Requester::admin(cluster.plane).await;
    let tenant = Requester::user(cluster.plane, "tenant", &["system:masters", "system:authenticated"]).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    let reserved = json!({"name": "own", "namespaces": ["acme.example.com"], "allow": {"groups": ["acme"]}});
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "p"},
        "spec": {"governance": {"reserved": [reserved]}}});
    std::fs::write(&file, policy.to_string()).unwrap();
    let policies = [file.to_str().unwrap()];
    for failure_policy in ["Ignore", "Fail"] {
        let render = ["--failure-policy", failure_policy];
        let nodegate = Nodegate::start(cluster.plane, &Setup { policies: &policies, render: &render, ..setup() });
        let name = format!("filled-{}", failure_policy.to_lowercase());
        let mut large = node(&name, json!({}));
        large["metadata"]["annotations"] = json!({"filled": "x".repeat(200_000)});
        admin.create(&large).await.unwrap();
        let (port, _) = nodegate.ports();
        let slow: Vec<_> = (0..4).map(|_| tokio::spawn(send_slowly(port, nodegate.ca()))).collect();
        let count = |name: &str| {
            let metrics = nodegate.probe("/metrics").unwrap_or_default();
            metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok()).unwrap_or_default()
        };
        let refused = || count("nodegate_bodies_refused_total{reason=\"slow\"}");
        for at in 0..5 {
            let denied = tenant.label(&name, "acme.example.com/pool", json!("x")).await.unwrap_err();
            assert!(denied.code == 403 && denied.message.contains("acme.example.com/pool"), "{denied:?}");
            let stored = admin.label(&name, "team", json!(at.to_string())).await.unwrap();
            assert_eq!(label(&stored, "acme.example.com/pool"), None, "{failure_policy}");
        }
        nodegate.eventually("the slow bodies stood in the way of others", || refused() > 0).await;
        assert!(slow.iter().all(|sender| !sender.is_finished()), "they never gave up");
        slow.iter().for_each(tokio::task::JoinHandle::abort);
        assert!(count("nodegate_large_reviews_total ") >= 10, "the writes were large reviews");
        admin.delete(&name).await;
    }
}

#[tokio::test]
async fn a_registration_for_every_operation_does_not_block_deletion_of_nodes() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &setup());
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("deleted-1").await;
    admin.create(&node("deleted-1", json!({}))).await.unwrap();
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        let count =
            cluster.plane.kubectl(&["get", kind, "nodegate", "-o", "jsonpath={.webhooks[*].name}"], None).unwrap();
        let operations: Vec<Value> = (0..count.split_whitespace().count())
            .flat_map(|at| {
                let replace = |path: &str, value: Value| json!({"op": "add", "path": format!("/webhooks/{at}/{path}"), "value": value});
                [
                    replace("rules/0/operations", json!(["*"])),
                    replace("rules/0/resources", json!(["nodes", "nodes/*"])),
                    replace("failurePolicy", json!("Fail")),
                    replace("matchConditions", json!([])),
                ]
            })
            .collect();
        let patch = json!(operations).to_string();
        cluster.plane.kubectl(&["patch", kind, "nodegate", "--type=json", "-p", &patch], None).unwrap();
    }
    // The API server has learnt of it when a CONNECT comes here: it is allowed, and there is no kubelet behind it.
    let requests = || nodegate.requests("validate");
    let before = requests();
    eventually("a CONNECT comes", async || {
        let refused =
            cluster.plane.kubectl(&["get", "--raw", "/api/v1/nodes/deleted-1/proxy/healthz"], None).unwrap_err();
        assert!(!refused.contains("nodegate"), "{refused}");
        holds(requests() > before, || refused)
    })
    .await;
    let deleted = cluster.plane.kubectl(&["delete", "node", "deleted-1"], None);
    assert!(deleted.is_ok(), "{deleted:?}");
}
