//! `ClusterReport` objects of openreports.io at a real API server, with the definition of that project.

use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::Requester;
use crate::eventually::eventually;

const DEFINITION: &str = include_str!("openreports.io_clusterreports.yaml");
const POLICY: &str = r#"{"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "reported"}, "spec": {"governance": {
    "required": [{"name": "tier", "keys": ["tier"], "match": {"names": ["reported-*"]}}],
    "allowed": [{"name": "tiers", "key": "tier", "values": ["gold"], "mode": "audit"}]}}}"#;

fn reports(plane: &ControlPlane) -> Vec<Value> {
    let listed = plane.kubectl(&["get", "clusterreports", "-o", "json"], None).unwrap();
    serde_json::from_str::<Value>(&listed).unwrap()["items"].as_array().unwrap().clone()
}

fn by_name<'a>(found: &'a [Value], name: &str) -> &'a Value {
    found.iter().find(|report| report["metadata"]["name"] == name).unwrap()
}

async fn until(plane: &ControlPlane, what: &str, holds: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    eventually(what, async || {
        let found = reports(plane);
        if holds(&found) { Ok(found) } else { Err(format!("{found:#?}")) }
    })
    .await
}

#[tokio::test]
async fn violations_of_nodes_are_reported_while_they_last() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    plane.kubectl(&["apply", "--server-side", "-f", "-"], Some(DEFINITION)).unwrap();
    plane.until_established(&["crd/clusterreports.openreports.io"]);
    for name in ["reported-1", "reported-2", "reported-3"] {
        admin.delete(name).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, POLICY).unwrap();
    let serve = ["--cluster-reports"];
    let policies = [file.to_str().unwrap()];
    let setup = Setup { policies: &policies, cluster: true, serve: &serve, ..Setup::default() };
    let nodegate = Nodegate::start(plane, &setup);
    until_led(&nodegate).await;
    // Kubelets join whatever they lack.
    for (name, labels) in [("reported-1", json!({})), ("reported-2", json!({"tier": "tin"}))] {
        Requester::kubelet(plane, name).await.create(&node(name, labels)).await.unwrap();
    }
    let found = until(plane, "two reports", |found| found.len() == 2).await;
    let (missing, wrong) = (by_name(&found, "nodegate-reported-1"), by_name(&found, "nodegate-reported-2"));
    assert_eq!(missing["scope"]["name"], "reported-1");
    assert_eq!((&missing["results"][0]["rule"], &missing["results"][0]["result"]), (&json!("tier"), &json!("fail")));
    assert_eq!((&wrong["results"][0]["rule"], &wrong["results"][0]["result"]), (&json!("tiers"), &json!("warn")));
    assert_eq!(missing["summary"]["fail"], 1);
    // Nothing is written where nothing changes: the survey that finds a third node writes only its report.
    let version = |name: &str| by_name(&found, name)["metadata"]["resourceVersion"].clone();
    let before = ["nodegate-reported-1", "nodegate-reported-2"].map(version);
    Requester::kubelet(plane, "reported-3").await.create(&node("reported-3", json!({}))).await.unwrap();
    let found = until(plane, "a third report", |found| found.len() == 3).await;
    let version = |name: &str| by_name(&found, name)["metadata"]["resourceVersion"].clone();
    assert_eq!(["nodegate-reported-1", "nodegate-reported-2"].map(version), before);
    // What is put right, or gone, is reported no more.
    admin.label("reported-1", "tier", json!("gold")).await.unwrap();
    admin.delete("reported-2").await;
    admin.delete("reported-3").await;
    until(plane, "none", <[Value]>::is_empty).await;
    admin.delete("reported-1").await;
    plane.kubectl(&["delete", "crd", "clusterreports.openreports.io"], None).unwrap();
}
