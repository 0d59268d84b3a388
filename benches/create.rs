//! What a webhook adds to a kubelet's Node CREATE at the real API server: nothing registered, a responder that always
//! answers with nodegate's patch, nodegate; and to an administrator's, for whom both webhooks are called.
//! `cargo bench --bench create`, with a control plane (tests/README.md).
//!
//! All three are registered at once and chosen by a label of the node, and CREATEs alternate, so that
//! whatever else the machine does hits all alike. Compare the ratios of one run.

#![allow(clippy::print_stdout, reason = "a bench prints its results")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a bench that cannot run ends")]
#![allow(dead_code, reason = "the control plane is shared with the tests")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kube::api::{Api, DeleteParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use nodegate_webhook::tls::Directory;
use serde_json::{Value, json};

#[path = "../tests/cluster/control_plane/mod.rs"]
mod control_plane;
#[path = "support/load.rs"]
mod load;
#[path = "support/process.rs"]
mod process;
#[path = "support/responder.rs"]
mod responder;
#[path = "support/review.rs"]
mod review;

use control_plane::{ControlPlane, exclusive};
use load::Client;
use process::{Server, free_address, wait_for};
use responder::Listener;

const ROUNDS: usize = 300;
/// Who creates the node, and the webhook that is called.
const KINDS: [(&str, &str); 5] = [
    ("kubelet", "none"),
    ("kubelet", "responder"),
    ("kubelet", "nodegate"),
    ("administrator", "none"),
    ("administrator", "nodegate"),
];

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if responder::is_asked_for() {
        return responder::run();
    }
    if !control_plane::assets().join("kube-apiserver").is_file() {
        return println!("no control plane, so nothing is measured; `just control-plane` builds one");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let certs = directory.path().join("certs");
    let names = ["localhost", "127.0.0.1"].map(|name| name.parse().expect("a name"));
    Directory::open(&certs, &names, jiff::Timestamp::now()).expect("certificates");
    let policy = directory.path().join("policy.yaml");
    std::fs::write(&policy, process::policy_of(100)).expect("written");
    let cluster = exclusive();
    let (floor, ours) = (free_address(), free_address());
    let ca = certs.join("ca.crt");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _nodegate = Server(process::nodegate(&certs, &policy, &ours));
    wait_for(&ours);
    // Both answer the same, so the API server has the same work with the answer.
    let patch = runtime.block_on(Client::new(&ours, "/mutate", &ca).patch(review::kubelet_create("bench-node").into()));
    let mut floors = responder::command(Listener::Nodegates, &certs, &floor, &patch);
    let _responder = Server(floors.spawn().expect("started"));
    wait_for(&floor);
    for (kind, address) in [("responder", &floor), ("nodegate", &ours)] {
        register(cluster.plane, kind, address, &ca);
    }
    runtime.block_on(measure(cluster.plane));
}

/// The mutating configuration as rendered, for nodes with the label `bench: KIND` only.
fn register(plane: &ControlPlane, kind: &str, address: &str, ca: &Path) {
    let mut render = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    render.args(["render", "webhooks", "--url", &format!("https://{address}"), "--ca-file"]).arg(ca);
    let text = control_plane::run(&mut render, None).expect("rendered");
    for tree in nodegate_policy::api::source::parse_documents(&text).expect("YAML") {
        let mut configuration = tree.to_json();
        configuration["metadata"]["name"] = json!(format!("bench-{kind}"));
        configuration["webhooks"][0]["objectSelector"] = json!({"matchLabels": {"bench": kind}});
        plane.kubectl(&["apply", "-f", "-"], Some(&configuration.to_string())).expect("registered");
    }
}

fn node(kind: &str, at: usize) -> DynamicObject {
    let review: Value = serde_json::from_slice(&review::kubelet_create("bench-node")).expect("JSON");
    let mut node = review["request"]["object"].clone();
    node["metadata"]["name"] = json!(format!("bench-{kind}-{at}"));
    node["metadata"]["labels"]["bench"] = json!(kind);
    node["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    serde_json::from_value(node).expect("a node")
}

async fn nodes(plane: &ControlPlane, node: Option<&str>) -> Api<DynamicObject> {
    let user = node.map(|node| format!("system:node:{node}"));
    let client =
        plane.client(user.as_deref().map(|user| (user, &["system:nodes", "system:authenticated"] as &[&str]))).await;
    Api::all_with(client, &ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()))
}

async fn measure(plane: &ControlPlane) {
    tokio::time::sleep(Duration::from_secs(3)).await;
    let admin = nodes(plane, None).await;
    let mut times: [Vec<f64>; KINDS.len()] = Default::default();
    for round in 0..ROUNDS + 20 {
        for (at, (by, kind)) in KINDS.iter().enumerate() {
            let object = node(kind, round);
            let name = object.metadata.name.clone().expect("a name");
            let user = nodes(plane, (*by == "kubelet").then_some(&*name)).await;
            // The first request of a connection pays for its handshake.
            let _ = user.get_opt(&name).await;
            let start = Instant::now();
            let created = user.create(&PostParams::default(), &object).await.expect("created");
            let time = start.elapsed().as_secs_f64() * 1e3;
            let labels = created.metadata.labels.unwrap_or_default();
            let patched = labels.contains_key("team");
            assert_eq!(patched, *kind != "none", "{kind} {labels:?}");
            if round >= 20 {
                times[at].push(time);
            }
            admin.delete(&name, &DeleteParams::default()).await.expect("deleted");
        }
    }
    println!("| CREATE of a 5 KB node by | webhook | p50 | p99 | added to p50 |");
    println!("|---|---|---|---|---|");
    let medians: Vec<f64> = times
        .iter_mut()
        .map(|times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        })
        .collect();
    for (((by, kind), times), median) in KINDS.iter().zip(&times).zip(&medians) {
        let without = medians[KINDS.iter().position(|of| *of == (*by, "none")).expect("a kind")];
        let p99 = times[times.len() * 99 / 100];
        println!("| {by} | {kind} | {median:.2} ms | {p99:.2} ms | {:.2} ms |", median - without);
    }
    println!(
        "\nadded by nodegate: {:.2} × the static responder",
        (medians[2] - medians[0]) / (medians[1] - medians[0])
    );
}
