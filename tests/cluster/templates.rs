//! What `export autoscaler` says of the next node of a pool, and what a hundred real ones have, with Karpenter's own NodePools.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::commands::run;
use super::control_plane::exclusive;
use super::guard::Guard;
use super::keeping::{is_pending, until_led};
use super::machines::{Provisioners, aws};
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, join, until_older};
use super::requester::{Requester, label, taints};

const JOINS: usize = 100;
const AT_ONCE: usize = 10;

/// What Karpenter's kubelets send of the NodePool.
fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
        "labels": {"karpenter.sh/nodepool": "gpu", "size": "large", "team": "a", "kubernetes.io/hostname": name}}})
}

/// The labels and taints of the template of the only pool.
fn said(templates: &Value) -> (BTreeMap<String, String>, Vec<String>) {
    let pool = &templates["pools"][0];
    let text = |key: &Value, field: &str| key[field].as_str().unwrap().to_owned();
    let same = |field: &str| {
        let same = pool["same"].as_array().unwrap().clone();
        same.into_iter().filter(|key| key["field"] == field).collect::<Vec<_>>()
    };
    let labels = same("label").iter().map(|key| (text(key, "key"), text(key, "value"))).collect();
    let taint = |key: &Value| format!("{}={}:{}", text(key, "key"), text(key, "value"), text(key, "effect"));
    (labels, same("taint").iter().map(taint).collect())
}

#[tokio::test]
async fn what_a_node_pool_is_told_is_what_a_hundred_of_its_nodes_have() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let provisioners = Provisioners::install(plane);
    let _guard = Guard::install(plane, &[]);
    let serve = ["--writes-per-second", "1000"];
    let mut nodegate = Nodegate::start(
        plane,
        &Setup { policies: &["tests/cluster/templates.yaml"], cluster: true, serve: &serve, ..Setup::default() },
    );
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    until_older(plane).await;
    let export = |arguments: &[&str]| {
        let place = ["--namespace", &nodegate.namespace];
        run(plane, None, &[&["export", "autoscaler"], arguments, &place[..]].concat())
    };

    // From zero: only the NodePool says what its nodes will be.
    provisioners.node_pool("gpu", &json!({"team": "a"}), &[("size", "large")]);
    let before = export(&["-o", "json"]).with(0);
    let before: Value = serde_json::from_str(&before).unwrap();
    let (labels, expected_taints) = said(&before);
    assert_eq!(before["pools"][0]["nodes"], 0, "{before:#}");
    let wrong = export(&["--check", "--format", "nodepool-patch"]).with(1);
    assert!(wrong.contains("node-role.kubernetes.io/gpu"), "{wrong}");
    // Again and again, although its authors apply it without --server-side.
    for _ in 0..3 {
        let patch = export(&["--format", "nodepool-patch"]).with(0);
        plane.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], Some(&patch)).unwrap();
    }
    export(&["--check", "--format", "nodepool-patch"]).with(0);

    let names: Vec<String> = (0..JOINS).map(|at| format!("ip-10-0-{}-{}", at / 10, at % 10)).collect();
    let provisioners = &provisioners;
    stream::iter(&names)
        .for_each_concurrent(AT_ONCE, |name| async move {
            let instance = format!("i-{name}");
            provisioners.claim(&format!("gpu-{name}"), "gpu", &aws(&instance));
            let extra = [("sessionname", instance.as_str())];
            join(plane, &node(name), Credential { groups: &[], extra: &extra }, false).await.unwrap();
        })
        .await;
    let admin = Requester::admin(plane).await;
    for name in &names {
        let complete = |node: &Value| label(node, "node-role.kubernetes.io/gpu") == Some("") && !is_pending(node);
        let stored = admin.eventually(name, "it has its role", complete).await;
        let sent = node(name);
        let own = stored["metadata"]["labels"].as_object().unwrap().iter();
        let own = own.filter(|(key, _)| sent["metadata"]["labels"].get(*key).is_none());
        let own: BTreeMap<String, String> =
            own.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect();
        let mut with_serial = labels.clone();
        with_serial.insert("example.com/serial".to_owned(), name.clone());
        assert_eq!(own, with_serial, "{name}");
        // The API server adds a condition's taint to every node that joins.
        let own: Vec<String> =
            taints(&stored).into_iter().filter(|taint| !taint.starts_with("node.kubernetes.io/")).collect();
        assert_eq!(own, expected_taints, "{name}");
    }

    let after: Value = serde_json::from_str(&export(&["-o", "json"]).with(0)).unwrap();
    assert_eq!(said(&after), (labels, expected_taints));
    let pool = &after["pools"][0];
    assert_eq!(pool["nodes"], JOINS, "{after:#}");
    assert_eq!(
        (&pool["varying"][0]["key"], &pool["varying"][0]["because"]),
        (&json!("example.com/serial"), &json!("value"))
    );
    export(&["--check", "--format", "nodepool-patch"]).with(0);

    // A plan says what the pool lacks once pods select it.
    let plan = || run(plane, None, &["plan", "--namespace", &nodegate.namespace]).with(0);
    assert!(!plan().contains("Warning"), "{}", plan());
    let pod = |name: &str, key: &str, operator: &str| {
        let term = json!({"matchExpressions": [{"key": key, "operator": operator}]});
        let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i"}], "affinity": {"nodeAffinity": affinity}}})
    };
    let pods = [
        pod("role", "node-role.kubernetes.io/gpu", "Exists"),
        pod("serial", "example.com/serial", "Exists"),
        pod("other", "example.com/tier", "DoesNotExist"),
    ];
    let pods = json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string();
    plane.kubectl(&["apply", "-f", "-"], Some(&pods)).unwrap();
    let labels_of_pool = r#"{"spec": {"template": {"metadata": {"labels": {"node-role.kubernetes.io/gpu": null}}, "spec": {"taints": null}}}}"#;
    plane.kubectl(&["patch", "nodepool", "gpu", "--type=merge", "-p", labels_of_pool], None).unwrap();
    let text = plan();
    let warnings: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("Warning: ")).collect();
    let expected = [
        "NodePool gpu does not say label node-role.kubernetes.io/gpu",
        "NodePool gpu does not say taint ",
        "label example.com/serial (rule templates/own) is not the same on all nodes of NodePool gpu",
    ];
    assert_eq!(warnings.len(), expected.len(), "{text}");
    assert!(expected.iter().all(|start| warnings.iter().any(|warning| warning.starts_with(start))), "{text}");
    plane.kubectl(&["delete", "-f", "-", "--grace-period=0", "--force"], Some(&pods)).unwrap();
    nodegate.terminate();
}
