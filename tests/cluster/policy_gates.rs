//! Nodes that wait at a gate, at a real API server.

use serde_json::{Value, json};

use super::commands::run;
use super::control_plane::exclusive;
use super::keeping::{is_pending, node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, join};
use super::requester::{Requester, label};

const RACK: &str = "fabric.example.com/rack";

#[tokio::test]
async fn a_node_gets_no_pods_until_it_has_what_others_set_or_its_time_is_over() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let policies = &["tests/cluster/policy_gates.yaml"];
    let mut nodegate = Nodegate::start(plane, &Setup { policies, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let admin = Requester::admin(plane).await;
    let joined = async |name: &str, labels: Value| join(plane, &node(name, labels), Credential::default(), false).await;
    let command = |arguments: &[&str]| {
        let arguments = [arguments, &["--namespace", &nodegate.namespace, "-o", "json"]].concat();
        serde_json::from_str::<Value>(&run(plane, None, &arguments).with(0)).unwrap()
    };

    // The kubelet's own word about a protected label does not open the gate.
    let born = joined("fabric-1", json!({RACK: "r1"})).await.unwrap();
    assert!(is_pending(&born) && label(&born, RACK).is_none(), "{born:#}");
    let explained = command(&["explain", "fabric-1"]);
    let awaited: Vec<&Value> =
        explained["missing"].as_array().unwrap().iter().filter(|missing| missing["why"] == "gate").collect();
    assert_eq!(awaited.iter().map(|missing| &missing["key"]).collect::<Vec<_>>(), [RACK, "nvidia.com/gpu.product"]);
    let detail = awaited[1]["detail"].as_str().unwrap();
    assert!(detail.contains("NVIDIA's GPU feature discovery or operator usually sets it"), "{detail}");
    let report = command(&["report"]);
    let expected = json!([{"node": "fabric-1", "policy": "gates", "rule": "gate:topology",
        "missing": [RACK, "nvidia.com/gpu.product"], "timeoutSeconds": 600, "onTimeout": "release"}]);
    assert_eq!(report["gates"], expected, "{report:#}");

    // Whoever sets the labels; the last one opens it.
    admin.label("fabric-1", "nvidia.com/gpu.product", json!("H100")).await.unwrap();
    let report = command(&["report"]);
    assert_eq!(report["gates"][0]["missing"], json!([RACK]), "{report:#}");
    assert!(is_pending(&admin.get("fabric-1").await));
    admin.label("fabric-1", RACK, json!("r7")).await.unwrap();
    admin.eventually("fabric-1", "it has passed the gate", |node| !is_pending(node)).await;

    // The end of waiting.
    assert!(is_pending(&joined("short-1", json!({})).await.unwrap()));
    assert!(is_pending(&joined("strict-1", json!({})).await.unwrap()));
    admin.eventually("short-1", "it is released", |node| !is_pending(node)).await;
    let events = || plane.kubectl(&["get", "events.events.k8s.io", "-A", "-o", "json"], None).unwrap();
    let told = |name: &str, what: &str| {
        let events: Value = serde_json::from_str(&events()).unwrap();
        events["items"].as_array().unwrap().iter().any(|event| {
            let note = event["note"].as_str().unwrap_or_default();
            event["reason"] == "GateTimedOut" && event["regarding"]["name"] == name && note.contains(what)
        })
    };
    nodegate.eventually("an event tells it", || told("short-1", "the node was released without them")).await;
    nodegate.eventually("an event tells it", || told("strict-1", "the node stays unschedulable")).await;
    assert!(is_pending(&admin.get("strict-1").await));
    admin.label("strict-1", RACK, json!("r8")).await.unwrap();
    admin.eventually("strict-1", "it has passed the gate", |node| !is_pending(node)).await;
    nodegate.terminate();
}
