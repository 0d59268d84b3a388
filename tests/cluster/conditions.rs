//! Match conditions: which writes make a call.

use serde_json::{Map, Value, json};

use super::control_plane::exclusive;
use super::keeping::node;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Outcome, Requester};

fn annotations(count: usize) -> Map<String, Value> {
    (0..count).map(|number| (format!("example.com/a{number}"), json!("x"))).collect()
}

fn beat(number: usize) -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": "True", "message": number.to_string()}]}})
}

fn annotate(key: &str, value: Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

/// The node that is written.
struct Written<'a> {
    admin: &'a Requester,
    nodegate: &'a Nodegate<'a>,
    name: &'a str,
}

/// How many calls of each webhook a write makes.
async fn check(written: &Written<'_>, what: &str, expected: (u64, u64), write: impl Future<Output = Outcome>) {
    let Written { admin, nodegate, name } = written;
    admin.until_cached(name).await;
    let before = (nodegate.requests("mutate"), nodegate.requests("validate"));
    write.await.unwrap_or_else(|refusal| panic!("{what}: {}", refusal.message));
    let after = (nodegate.requests("mutate"), nodegate.requests("validate"));
    assert_eq!((after.0 - before.0, after.1 - before.1), expected, "{what}");
}

#[tokio::test]
async fn calls_are_made_only_for_writes_that_can_matter() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &Setup::default());
    let admin = Requester::admin(cluster.plane).await;
    admin.delete("conditions-1").await;
    admin.create(&node("conditions-1", json!({}))).await.unwrap();
    let name = "conditions-1";
    let written = Written { admin: &admin, nodegate: &nodegate, name };
    let taint = |key: &str| json!({"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}});
    check(&written, "a heartbeat", (0, 0), admin.merge_status(name, beat(1))).await;
    check(&written, "a label", (1, 1), admin.label(name, "a", json!("b"))).await;
    check(
        &written,
        "a label through status",
        (0, 1),
        admin.merge_status(name, json!({"metadata": {"labels": {"a": "c"}}})),
    )
    .await;
    check(&written, "a free annotation", (1, 0), admin.merge(name, annotate("a", json!("b")))).await;
    check(&written, "a free annotation through status", (0, 0), admin.merge_status(name, annotate("a", json!("c"))))
        .await;
    check(
        &written,
        "nodegate's annotation, added",
        (0, 1),
        admin.merge_status(name, annotate("nodegate.dev/a", json!("b"))),
    )
    .await;
    check(
        &written,
        "nodegate's annotation, changed",
        (0, 1),
        admin.merge_status(name, annotate("nodegate.dev/a", json!("c"))),
    )
    .await;
    check(
        &written,
        "nodegate's annotation, removed",
        (0, 1),
        admin.merge_status(name, annotate("nodegate.dev/a", Value::Null)),
    )
    .await;
    check(&written, "a condition's taint", (0, 1), admin.merge(name, taint("node.kubernetes.io/unreachable"))).await;
    check(&written, "any other taint", (1, 1), admin.merge(name, taint("dedicated"))).await;
    check(&written, "no taint", (1, 1), admin.merge(name, json!({"spec": {"taints": null}}))).await;
    check(&written, "a cordon", (0, 0), admin.merge(name, json!({"spec": {"unschedulable": true}}))).await;
    check(&written, "the same again", (0, 0), admin.merge(name, json!({"metadata": {"labels": {"a": "c"}}}))).await;
    // Beyond a thousand they are not looked through: every change counts.
    admin.merge(name, json!({"metadata": {"annotations": annotations(1_001)}})).await.unwrap();
    check(&written, "a heartbeat with many annotations", (0, 0), admin.merge_status(name, beat(2))).await;
    check(&written, "one of many annotations", (0, 1), admin.merge_status(name, annotate("a", json!("d")))).await;
    admin.delete(name).await;
}

#[tokio::test]
async fn a_heartbeat_with_ten_thousand_annotations_makes_no_call() {
    let cluster = exclusive();
    let nodegate = Nodegate::start(cluster.plane, &Setup::default());
    let admin = Requester::admin(cluster.plane).await;
    let name = "conditions-2";
    admin.delete(name).await;
    let mut created = node(name, json!({}));
    created["metadata"]["annotations"] = Value::Object(annotations(10_000));
    admin.create(&created).await.unwrap();
    let written = Written { admin: &admin, nodegate: &nodegate, name };
    check(&written, "a heartbeat", (0, 0), admin.merge_status(name, beat(1))).await;
    check(&written, "another heartbeat", (0, 0), admin.merge_status(name, beat(2))).await;
    admin.delete(name).await;
}
