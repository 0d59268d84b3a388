//! What pools remember: the next node of a pool gets what all of its nodes have.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::commands::run;
use super::control_plane::{ControlPlane, exclusive};
use super::guard::Guard;
use super::keeping::{config_maps, eventually_state, is_pending, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, OF_CPU, OF_GPU, join, post_as_kubelet, setup, until_older};
use super::requester::{Requester, label};
use crate::eventually::{eventually, holds};

/// What the pool `gpu` remembers.
async fn remembered(maps: &Api<ConfigMap>, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut found = Value::Null;
    eventually(what, async || {
        let map = maps.get_opt("nodegate-pools").await.unwrap();
        let text = map.and_then(|map| map.data?.remove("pools.json")).unwrap_or_else(|| "{}".to_owned());
        found = serde_json::from_str::<Value>(&text).unwrap()["pools"]["gpu"].take();
        holds(is_so(&found), || format!("{found:#}"))
    })
    .await;
    found
}

/// Waits until the next node of a pool would get this team: the replica reads what pools remember a moment after it is written.
async fn until_next_has(plane: &ControlPlane, credential: Credential<'_>, team: Option<&str>) {
    eventually("the replica has read what pools remember", async || {
        let next = join(plane, &node("mem-next", json!({})), credential, true).await.unwrap();
        holds(label(&next, "team") == team, || format!("{next:#}"))
    })
    .await;
}

#[tokio::test]
async fn what_the_nodes_of_a_pool_agree_on_its_next_node_gets_under_any_name() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let _guard = Guard::install(plane, &[]);
    let setup = Setup { policies: &["tests/cluster/pool-memory.yaml"], ..setup() };
    let mut nodegate = Nodegate::start(plane, &setup);
    until_led(&nodegate).await;
    let (admin, maps) = (Requester::admin(plane).await, config_maps(plane, &nodegate.namespace).await);
    nodegate.until_nodes_are_younger().await;
    until_older(plane).await;
    let cell = "node-restriction.kubernetes.io/cell";
    let first = [("mem-1", OF_GPU), ("mem-2", OF_GPU), ("mem-3", OF_CPU)];
    for (name, credential) in first {
        admin.delete(name).await;
        let brought = node(name, json!({"free": "the-kubelets"}));
        post_as_kubelet(plane, "/api/v1/nodes?fieldManager=kubelet", name, &brought, credential).await.unwrap();
        eventually_state(&maps, name, "recorded", |state| state["nodeUID"].is_string()).await;
    }
    let by_people = [
        ("mem-1", json!({"team": "ml", "rack": "a", cell: "x"})),
        ("mem-2", json!({"team": "ml", "rack": "b", cell: "x"})),
        ("mem-3", json!({"team": "web"})),
    ];
    for (name, labels) in by_people {
        admin.merge(name, json!({"metadata": {"labels": labels}})).await.unwrap();
    }
    let agreed = json!({"team": "ml", cell: "x"});
    let known = remembered(&maps, "the nodes agree", |gpu| gpu["labels"] == agreed).await;
    assert_eq!(
        known["disagreements"],
        json!({"rack": {"values": {"a": 1, "b": 1}}}),
        "nothing that kubelets say: {known:#}"
    );

    until_next_has(plane, OF_GPU, Some("ml")).await;
    until_next_has(plane, OF_CPU, Some("web")).await;
    // The next nodes, under names that nobody has seen; one claims to be of the other pool.
    let next = [("mem-ip-10-0-9-9", OF_GPU, "ml"), ("mem-ip-10-0-9-8", OF_CPU, "web")];
    for (name, credential, team) in next {
        admin.delete(name).await;
        // It may send a protected label to have the claim on it.
        let brought = node(name, json!({"team": "ml"}));
        let created =
            post_as_kubelet(plane, "/api/v1/nodes?fieldManager=kubelet", name, &brought, credential).await.unwrap();
        assert_eq!((label(&created, "team"), label(&created, "rack")), (Some(team), None), "{created:#}");
    }
    admin
        .eventually("mem-ip-10-0-9-9", "it has what a kubelet may not carry", |node| label(node, cell) == Some("x"))
        .await;
    let other = admin.eventually("mem-ip-10-0-9-8", "it has joined", |node| !is_pending(node)).await;
    assert_eq!(label(&other, cell), None, "{other:#}");

    // A machine of another pool under the name of one of these.
    admin.delete("mem-1").await;
    let created = join(plane, &node("mem-1", json!({})), OF_CPU, false).await.unwrap();
    assert_eq!((label(&created, "team"), label(&created, "rack")), (Some("web"), None), "{created:#}");
    let differing = json!({"values": {"b": 1}, "without": 1});
    remembered(&maps, "one has no rack", |gpu| gpu["disagreements"]["rack"] == differing).await;
    let report =
        |more: &[&str]| run(plane, None, &[&["report", "--namespace", &nodegate.namespace], more].concat()).with(0);
    let page = report(&["--html", "-"]);
    assert!(page.contains("<strong>1</strong>label that pools do not agree on"), "{page}");
    let report = report(&[]);
    assert!(report.contains("\n  pool gpu, rack: \"b\" on 1 node, none on 1 node\n"), "{report}");
    assert!(report.contains("gpu; new nodes get node-restriction.kubernetes.io/cell=x, team=ml\n"), "{report}");

    // Without nodes, and while no replica is there, it is kept; whatever is deleted or forged meanwhile is written again.
    for name in ["mem-2", "mem-ip-10-0-9-9"] {
        admin.delete(name).await;
    }
    remembered(&maps, "the pool is empty", |gpu| gpu["emptySince"].is_string() && gpu["labels"]["team"] == "ml").await;
    maps.delete("nodegate-pools", &DeleteParams::default()).await.unwrap();
    let next = join(plane, &node("mem-next", json!({})), OF_GPU, true).await.unwrap();
    assert_eq!(label(&next, "team"), Some("ml"), "what was read last stays in force: {next:#}");
    remembered(&maps, "it is there again", |gpu| gpu["labels"]["team"] == "ml").await;
    let namespace = nodegate.namespace.clone();
    nodegate.kill();
    drop(nodegate);
    let _nodegate = Nodegate::start(plane, &Setup { namespace: Some(&namespace), ..setup });
    let name = "mem-4";
    admin.delete(name).await;
    until_next_has(plane, OF_GPU, Some("ml")).await;
    let created = join(plane, &node(name, json!({})), OF_GPU, false).await.unwrap();
    assert_eq!(label(&created, "team"), Some("ml"), "{created:#}");

    // Whoever wants another value for the pool sets it on its nodes.
    eventually_state(&maps, name, "recorded", |state| state["nodeUID"].is_string()).await;
    admin.label(name, "team", json!("vision")).await.unwrap();
    remembered(&maps, "the other value", |gpu| gpu["labels"]["team"] == "vision" && gpu["emptySince"].is_null()).await;
    for name in ["mem-1", "mem-3", "mem-4", "mem-ip-10-0-9-8"] {
        admin.delete(name).await;
    }
}
