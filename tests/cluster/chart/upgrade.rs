//! A release that the chart of an older version installed, with that version's program, is upgraded by Helm and rolled back.

use serde_json::Value;

use super::lifecycle::{Ground, joins, values};
use super::{CHART, RELEASE};
use crate::control_plane::ControlPlane;
use crate::requester::{Requester, label};

const NODES: [&str; 3] = ["upgraded-1", "upgraded-2", "upgraded-3"];
const OBJECT: &str = r#"{"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "object"},
    "spec": {"rules": [{"name": "r", "match": {"names": ["upgraded-*"]}, "labels": {"from-object": "yes"}}]}}"#;

fn from_environment(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run `just upgrade-test`"))
}

/// The schema of `NodePolicy` that the API server has.
fn schema(plane: &ControlPlane) -> Value {
    schema_of(&plane.kubectl(&["get", "crd", "nodepolicies.nodegate.dev", "-o", "json"], None).unwrap())
}

fn schema_of(definition: &str) -> Value {
    serde_json::from_str::<Value>(definition).unwrap()["spec"]["versions"][0]["schema"].clone()
}

/// A node joins and has what the release's policy and the `NodePolicy` object say.
async fn joins_with_both(plane: &ControlPlane, name: &str) {
    joins(plane, name, "gold").await;
    let admin = Requester::admin(plane).await;
    admin.eventually(name, "with the object's label", |node| label(node, "from-object") == Some("yes")).await;
}

#[tokio::test]
#[ignore = "needs the chart and the program of an older version: just upgrade-test"]
async fn a_release_of_an_older_version_is_upgraded_with_its_definition_and_rolled_back() {
    let [older, chart] = ["NODEGATE_OLDER", "NODEGATE_OLDER_CHART"].map(from_environment);
    let Some(Ground { plane, helm, admin, applied, .. }) = &Ground::without(&NODES).await else { return };

    helm.run(&["install", RELEASE, &chart, "--create-namespace"], Some(&values("gold"))).unwrap();
    let before = schema(plane);
    let pod = applied.pod_of(Some(&older)).await;
    plane.kubectl(&["apply", "-f", "-"], Some(OBJECT)).unwrap();
    joins_with_both(plane, NODES[0]).await;

    applied.call_the_service();
    drop(pod);
    helm.run(&["upgrade", RELEASE, CHART], Some(&values("gold"))).unwrap();
    let file = format!("{CHART}/files/nodepolicies.yaml");
    let present = plane.kubectl(&["replace", "--dry-run=server", "-o", "json", "-f", &file], None).unwrap();
    assert_eq!(schema(plane), schema_of(&present), "Helm did not upgrade the definition");
    let pod = applied.pod().await;
    joins_with_both(plane, NODES[1]).await;

    applied.call_the_service();
    drop(pod);
    helm.run(&["rollback", RELEASE, "1"], None).unwrap();
    assert_eq!(schema(plane), before, "Helm did not bring the older definition back");
    let _pod = applied.pod_of(Some(&older)).await;
    joins_with_both(plane, NODES[2]).await;
    for name in NODES {
        let node = admin.get(name).await;
        assert_eq!([label(&node, "hardware.tier"), label(&node, "from-object")], [Some("gold"), Some("yes")], "{name}");
        admin.delete(name).await;
    }
}
