//! What a kubelet makes of its own node, as large and as deep as the API server stores it, is judged all the same, within the
//! memory of a replica.
#![allow(clippy::await_holding_lock, reason = "one test at a time uses the control plane")]

use std::process::Command;

use futures_util::future::join_all;
use serde_json::json;

use super::control_plane::{ControlPlane, exclusive};
use super::nodegate::{Nodegate, Setup};
use super::requester::Requester;

const TIER: &str = "size.example.com/tier";
const POOL: &str = "size.example.com/pool";

fn setup() -> Setup<'static> {
    // A debug build beside other tests is not as fast as what is deployed.
    Setup { policies: &["tests/cluster/large_nodes.yaml"], timeout_seconds: 30, ..Setup::default() }
}

/// The memory a replica may take (the chart's limit).
const LIMIT: u64 = 256 << 20;

/// As deep as was observed to be stored, and deeper than what reads whole objects into Rust's JSON can take.
const LEVELS: usize = 150;

fn managed_fields() -> String {
    let deep = format!("{}{{}}{}", r#"{"f:x":"#.repeat(LEVELS), "}".repeat(LEVELS));
    format!(
        r#"[{{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{{"f:status":{deep}}}}}]"#
    )
}

/// `kubectl` as somebody: the tests' own client cannot read such a node either.
fn kubectl(
    plane: &ControlPlane,
    user: &str,
    group: &str,
    arguments: &[&str],
    input: Option<&str>,
) -> Result<String, String> {
    let who = ["--as", user, "--as-group", group, "--as-group", "system:authenticated"];
    plane.kubectl(&[arguments, &who].concat(), input)
}

#[test]
fn writes_are_judged_at_any_nesting_of_managed_fields() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &setup());
    for (name, at_create) in [("deep-1", true), ("deep-2", false)] {
        let by_admin = |arguments: &[&str], input| kubectl(cluster.plane, "admin", "system:masters", arguments, input);
        let user = format!("system:node:{name}");
        let by_kubelet = |arguments: &[&str], input| kubectl(cluster.plane, &user, "system:nodes", arguments, input);
        let _ = by_admin(&["delete", "node", name, "--ignore-not-found"], None);
        let managed = if at_create { format!(r#","managedFields":{}"#, managed_fields()) } else { String::new() };
        let node = format!(r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{name}"{managed}}}}}"#);
        by_kubelet(&["create", "--validate=false", "-f", "-"], Some(&node)).unwrap();
        let patch = format!(r#"{{"metadata":{{"managedFields":{}}}}}"#, managed_fields());
        by_kubelet(&["patch", "node", name, "--type=merge", "-p", &patch], None).unwrap();
        let get = ["get", "node", name, "-o", "json", "--show-managed-fields"];
        let stored = by_admin(&get, None).unwrap();
        assert!(stored.contains("size.example.com/given"), "given by an expression: {stored}");
        assert!(stored.matches("\"f:x\"").count() >= LEVELS, "the API server keeps it: {stored}");
        let labels = |key: &str, value: &str| format!(r#"{{"metadata":{{"labels":{{"{key}":"{value}"}}}}}}"#);
        let (tier, forbidden) = (labels(TIER, "gold"), labels(POOL, "forbidden"));
        let refusal = by_admin(&["patch", "node", name, "--type=merge", "-p", &forbidden], None).unwrap_err();
        assert!(refusal.contains("large-nodes"), "{refusal}\n{}", nodegate.log());
        // A protected key is put back in the very write.
        by_kubelet(&["patch", "node", name, "--type=merge", "-p", &tier], None).unwrap();
        let stored = by_admin(&get, None).unwrap();
        assert!(!stored.contains("gold"), "{stored}\n{}", nodegate.log());
        by_admin(&["patch", "node", name, "--type=merge", "-p", &labels(POOL, "fine")], None).unwrap();
        // Nor does it keep anybody from a report on the fleet.
        let report = Command::new(env!("CARGO_BIN_EXE_nodegate"))
            .args(["report", "--violations", "--policy", "tests/cluster/large_nodes.yaml", "-o", "json"])
            .arg("--kubeconfig")
            .arg(cluster.plane.kubeconfig_file("large", Some(("admin", &["system:masters"]))))
            .output()
            .unwrap();
        let (text, errors) = (String::from_utf8_lossy(&report.stdout), String::from_utf8_lossy(&report.stderr));
        assert!(matches!(report.status.code(), Some(0 | 1)), "{text}{errors}");
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let nodes = by_admin(&["get", "nodes", "-o", "name"], None).unwrap().lines().count();
        assert_eq!(report["nodes"].as_u64(), Some(nodes as u64), "{text}{errors}");
        let mut violations = report["violations"].as_array().unwrap().iter();
        assert!(violations.all(|violation| violation["mode"] != "unreadable"), "{text}{errors}");
        by_admin(&["delete", "node", name], None).unwrap();
    }
}

#[tokio::test]
async fn a_node_with_very_many_images_is_judged_within_the_memory_of_a_replica() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &setup());
    let admin = Requester::admin(cluster.plane).await;
    let kubelet = Requester::kubelet(cluster.plane, "huge-1").await;
    admin.delete("huge-1").await;
    kubelet.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "huge-1"}})).await.unwrap();
    // Four bytes each in etcd, fifteen in a review.
    let images = |count: usize| json!({"status": {"images": vec![json!({}); count]}});
    kubelet.merge_status("huge-1", images(60_000)).await.unwrap();
    let before = nodegate.requests("validate");
    // What cannot be judged is the failure policy's to say, and that is to ignore.
    admin.label("huge-1", "size.example.com/free", json!("x")).await.unwrap();
    assert!(nodegate.requests("validate") > before, "the write was sent to be judged");
    let metrics = nodegate.probe("/metrics").unwrap();
    let failed = |line: &&str| line.starts_with("nodegate_admission_requests_total{") && line.contains("\"error\"");
    assert!(metrics.lines().filter(failed).any(|line| !line.ends_with(" 0")), "too costly for one: {metrics}");
    let gold = json!({"metadata": {"labels": {TIER: "gold"}}});
    for refused in [kubelet.merge_status("huge-1", gold).await, admin.label("huge-1", POOL, json!("forbidden")).await] {
        let refusal = refused.unwrap_err();
        assert_eq!(refusal.code, 403, "what reads no images is judged there as well: {refusal:?}");
    }
    kubelet.merge_status("huge-1", images(390_000)).await.unwrap();
    admin.label("huge-1", "size.example.com/free", json!("y")).await.unwrap();
    let refusal = admin.label("huge-1", POOL, json!("forbidden")).await.expect_err("judged at any size");
    assert_eq!(refusal.code, 403, "{refusal:?}");
    let peak = nodegate.peak_memory();
    assert!(peak < LIMIT, "{} MiB", peak >> 20);
    admin.delete("huge-1").await;
}

/// With trees of whole objects one entry took a replica a kilobyte for each write at the same time: 3.8 GiB for sixteen
/// writers of 220,000 entries, and twice the limit for as many as these.
#[tokio::test]
async fn sixteen_nodes_with_very_many_images_are_written_at_once_and_an_ordinary_one_is_judged_meanwhile() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &Setup { cluster: true, ..setup() });
    let admin = Requester::admin(cluster.plane).await;
    let names: Vec<String> = (0..16).map(|at| format!("huge-{at}")).collect();
    let images = json!({"status": {"images": vec![json!({}); 30_000]}});
    for name in &names {
        let kubelet = Requester::kubelet(cluster.plane, name).await;
        admin.delete(name).await;
        kubelet.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await.unwrap();
        kubelet.merge_status(name, images.clone()).await.unwrap();
    }
    admin.delete("ordinary-1").await;
    admin.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "ordinary-1"}})).await.unwrap();
    let forbidden = || json!("forbidden");
    let large = join_all(names.iter().map(|name| admin.label(name, POOL, forbidden())));
    let (large, beside) = tokio::join!(large, admin.label("ordinary-1", POOL, forbidden()));
    assert_eq!(beside.unwrap_err().code, 403);
    for (name, outcome) in names.iter().zip(large) {
        assert_eq!(outcome.as_ref().err().map(|refusal| refusal.code), Some(403), "{name}: {outcome:?}");
    }
    let peak = nodegate.peak_memory();
    println!("peak memory of a leader that judges sixteen large nodes at once: {} MiB", peak >> 20);
    assert!(peak < LIMIT, "{} MiB", peak >> 20);
    let events = cluster.plane.kubectl(&["get", "events", "-A", "-o", "json"], None).unwrap();
    let events: serde_json::Value = serde_json::from_str(&events).unwrap();
    for name in &names {
        let told = events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|event| event["reason"] == json!("ReadInPart") && event["involvedObject"]["name"] == json!(name));
        assert!(told, "{name} is named by an event");
        admin.delete(name).await;
    }
    admin.delete("ordinary-1").await;
}
