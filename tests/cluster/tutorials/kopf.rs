//! From the node label operator: its variables, its ConfigMaps, its metrics, and the way back.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::fleet::{self, ready_node};
use super::metrics_named_in;
use super::pod::Release;
use super::script::Tutorial;
use crate::control_plane::{ControlPlane, exclusive};
use crate::eventually::eventually_blocking;
use crate::keeping::node;
use crate::nodegate::Nodegate;
use crate::requester::{Requester, label};
use crate::shared::tools::there;

const NAMESPACE: &str = "node-label-operator";

/// What the operator keeps of a node, as it writes it.
fn saved(node: &str, labels: &Value) -> Value {
    let state = json!({"nodeName": node, "labels": labels, "capturedAt": "2026-01-14T17:00:00Z"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("node-labels-{node}"), "namespace": NAMESPACE},
        "data": {"state.json": serde_json::to_string_pretty(&state).unwrap()}})
}

/// The operator and its ConfigMaps, and a node that was created again while it did not run.
fn prepare(plane: &ControlPlane) {
    let labels = json!({"app": "node-label-operator"});
    let environment = json!([{"name": "PERSIST_LABEL_PREFIX", "value": "persist.demo/"}]);
    let template = json!({"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "controller", "image": "node-label-operator", "env": environment}]}});
    let items = json!([
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "node-label-operator", "namespace": NAMESPACE},
         "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}},
        saved("worker-1", &json!({"persist.demo/type": "expensive"})),
        saved("worker-2", &json!({"persist.demo/rack": "r7"})),
        // No API server would store the second value.
        saved("worker-3", &json!({"persist.demo/type": "spot", "persist.demo/bad": "not a value!"})),
    ]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    plane.kubectl(&["apply", "-f", "-"], Some(&list.to_string())).unwrap();
    ready_node(plane, "worker-1", json!({"persist.demo/type": "expensive"}), json!([]));
    ready_node(plane, "worker-2", json!({}), json!([]));
}

/// Each metric that the tutorial names is one of those that a leader serves. `monitoring` checks the dashboard and the alerts.
fn metrics_exist(plane: &ControlPlane, nodegate: &Nodegate<'_>) {
    // What counts by policy is there once there is something to count, until the policies change.
    let before = nodegate.probe("/metrics").unwrap();
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "audited"},
        "spec": {"governance": {"required": [{"keys": ["rack"], "mode": "audit"}]}}});
    plane.kubectl(&["apply", "-f", "-"], Some(&policy.to_string())).unwrap();
    let scraped = || nodegate.probe("/metrics").unwrap();
    eventually_blocking("violations counted", || scraped().contains("nodegate_violating_nodes{policy=\"audited\""));
    let metrics = before + &scraped();
    plane.kubectl(&["delete", "nodepolicy", "audited"], None).unwrap();
    let named = metrics_named_in("docs/migrating/kopf-node-label-operator.md");
    assert!(named.len() > 4, "{named:?}");
    for name in named {
        assert!(metrics.contains(&format!("# TYPE {name} ")), "{name}\n{metrics}");
    }
}

#[tokio::test]
async fn a_user_of_the_label_operator_takes_over_its_config_maps_and_goes_back() {
    if !there(&["helm"]) {
        return;
    }
    let cluster = exclusive();
    let plane = cluster.plane;
    let _nodes = fleet::Nodes::new(plane, &["worker-1", "worker-2", "worker-3"]);
    let release = Release::in_namespace(plane, NAMESPACE);
    prepare(plane);
    let mut tutorial = Tutorial::open(plane, "kopf-node-label-operator.md");
    let config_maps = || plane.kubectl(&["get", "configmaps", "-n", NAMESPACE, "-o", "yaml"], None).unwrap();
    let before = config_maps();
    tutorial.until("nodegate plan");
    assert_eq!(config_maps(), before, "plan writes nothing");
    tutorial.until("helm install");
    let pod = release.pod().await;

    tutorial.until("kubectl delete node worker-1");
    let kubelet = Requester::kubelet(plane, "worker-1").await;
    let created = kubelet.create(&node("worker-1", json!({}))).await.unwrap();
    assert_eq!(label(&created, "persist.demo/type"), Some("cheap"), "restored in the CREATE");
    // A node that the operator saw last before it was deleted.
    let created = Requester::kubelet(plane, "worker-3").await.create(&node("worker-3", json!({}))).await.unwrap();
    assert_eq!(label(&created, "persist.demo/type"), Some("spot"));
    metrics_exist(plane, &pod.nodegate);
    // The history is written after the labels, for several changes at once.
    let state = ["get", "configmap", "node-labels-worker-1", "-n", NAMESPACE, "-o", r"jsonpath={.data.state\.json}"];
    eventually_blocking("recorded", || plane.kubectl(&state, None).unwrap().contains("\"restored\""));
    let history = tutorial.until("nodegate history worker-1");
    assert!(history.contains("persist.demo/type"), "{history}");
    let maps = tutorial.until("kubectl delete -f operator.yaml");
    assert!(maps.contains("configmap/node-labels-worker-1"), "{maps}");
    tutorial.until("helm uninstall");
    drop(pod);
    // What the operator reads when it is back.
    let state: Value = serde_json::from_str(&tutorial.until("state\\.json")).unwrap();
    assert_eq!((&state["nodeName"], &state["labels"]), (&json!("worker-1"), &json!({"persist.demo/type": "cheap"})));
    let captured = state["capturedAt"].as_str().unwrap();
    assert!(captured.ends_with('Z') && captured.parse::<jiff::Timestamp>().is_ok(), "{captured}");
    tutorial.finish();
    plane
        .kubectl(&["delete", "--ignore-not-found", "deployment", "node-label-operator", "-n", NAMESPACE], None)
        .unwrap();
}

/// Runs `serve` without a cluster until it says something, with these variables and no flags but addresses.
fn serve(variables: &[(&str, &str)], directory: &std::path::Path) -> std::process::Output {
    let mut command = Command::new("timeout");
    command.args(["--signal=TERM", "2", env!("CARGO_BIN_EXE_nodegate"), "serve"]);
    command.args(["--listen", "127.0.0.1:0", "--probe-listen", "127.0.0.1:0"]).current_dir(directory).env_clear();
    command.env("PATH", "/usr/bin:/bin").envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn the_operators_variables_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let said = |variables: &[(&str, &str)]| {
        let output = serve(variables, directory.path());
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, errors) = said(&[("RESYNC_INTERVAL_SECONDS", "five")]);
    assert!(code == Some(2) && errors.contains("--resync-interval-seconds"), "{errors}");
    let prefix = |prefix: &str| said(&[("PERSIST_LABEL_PREFIX", prefix)]).1.contains("persist-label-prefix");
    assert!(prefix("persist.demo/") && !prefix(""), "without it no prefix is saved");
    for (level, lines) in [("DEBUG", true), ("INFO", true), ("WARNING", false), ("ERROR", false)] {
        let (code, log) = said(&[("LOG_LEVEL", level), ("RESYNC_INTERVAL_SECONDS", "300")]);
        assert_eq!((code, log.contains("\"INFO\"")), (Some(124), lines), "{level}: {log}");
    }
}
