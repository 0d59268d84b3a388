//! The controller on whole fleets at the real API server. With a control plane (tests/README.md):
//!
//! - `cargo bench --bench fleet -- 5000`: so many nodes that were there before: time to fill them, writes of a second
//!   pass, memory of the leader and of a replica that only serves;
//! - `cargo bench --bench fleet -- burst`: kubelets that register within a second, default flags: time from CREATE until
//!   nothing is deferred and the pending taint is lifted, and how many writes that takes;
//! - `cargo bench --bench fleet -- inventory 15000`: the leader asks an inventory about each of so many nodes: requests
//!   per second, CPU time and memory;
//! - `cargo bench --bench fleet -- generated 100000`: a leader of so many nodes of 30 KB, which are generated: memory, and
//!   CPU time for their heartbeats;
//! - `cargo bench --bench fleet -- window`: pods that the real scheduler binds to a node before its taint is there.

#![allow(clippy::print_stdout, reason = "a bench prints its results")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a bench that cannot run ends")]
#![allow(dead_code, reason = "shared with the tests")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use kube::api::{Api, ListParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use serde_json::{Value, json};

#[path = "support/burst.rs"]
mod burst;
#[path = "../tests/cluster/control_plane/mod.rs"]
mod control_plane;
#[path = "support/generated.rs"]
mod generated;
#[path = "support/inventory.rs"]
mod inventory;
#[path = "support/probe.rs"]
mod probe;
#[path = "support/process.rs"]
mod process;
#[path = "support/review.rs"]
mod review;
#[path = "../tests/cluster/scheduling.rs"]
mod scheduling;

use control_plane::{ControlPlane, exclusive};
use process::{Server, free_address, wait_for};
use scheduling::{PODS, Waiting};

/// Writes per second that the controller may make here.
const RATE: u32 = 300;
/// How often every node is looked at again here, in seconds.
const RESYNC: u64 = 30;

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if !control_plane::assets().join("kube-apiserver").is_file() {
        return println!("no control plane, so nothing is measured; `just control-plane` builds one");
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let cluster = exclusive();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match asked.first().map_or("1000", String::as_str) {
        "burst" => runtime.block_on(burst::measure(cluster.plane)),
        "inventory" => runtime.block_on(async {
            let count = asked.get(1).map_or(15_000, |count| count.parse().expect("a number of nodes"));
            make(cluster.plane, count).await;
            inventory::measure(cluster.plane, count).await;
        }),
        "generated" => {
            let count = asked.get(1).map_or(100_000, |count| count.parse().expect("a number of nodes"));
            runtime.block_on(generated::measure(cluster.plane, count));
        }
        "window" => runtime.block_on(window(cluster.plane)),
        count => runtime.block_on(fill(cluster.plane, count.parse().expect("a number of nodes"))),
    }
}

/// A controller; no webhook is registered.
struct Replica {
    server: Server,
    probe: String,
}

fn replica(plane: &ControlPlane, directory: &Path, policy: &Path, name: &str, more: &[&str]) -> Replica {
    let resync = RESYNC.to_string();
    let more = [&["--resync-interval-seconds", &resync], more].concat();
    serve(plane, &plane.kubeconfig_file("bench", None), directory, (policy, name), &more)
}

/// A controller of these policies, which has this name.
fn serve(
    plane: &ControlPlane,
    kubeconfig: &Path,
    directory: &Path,
    (policy, name): (&Path, &str),
    more: &[&str],
) -> Replica {
    let _ = plane.kubectl(&["create", "namespace", "bench"], None);
    let probe = free_address();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--probe-listen",
        &probe,
        "--namespace",
        "bench",
        "--kubeconfig",
    ]);
    command.arg(kubeconfig).arg("--policy").arg(policy).arg("--cert-dir").arg(directory.join(name));
    command.args(["--writes-per-second", &RATE.to_string()]).args(more);
    // As in the image.
    command.env("MIMALLOC_PURGE_DELAY", "0");
    let log = std::fs::File::create(directory.join(format!("{name}.log"))).expect("a log");
    let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("started");
    let replica = Replica { server: Server(child), probe };
    wait_for(&replica.probe);
    while !replica.get("/readyz").starts_with("HTTP/1.1 200") {
        std::thread::sleep(Duration::from_millis(50));
    }
    replica
}

impl Replica {
    fn get(&self, path: &str) -> String {
        probe::get(&self.probe, path)
    }

    /// The sum of a metric over its labels.
    fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics");
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).map(|value| value as u64).sum()
    }

    fn memory_mb(&self) -> f64 {
        probe::memory_mb(self.server.0.id(), "VmRSS:")
    }
}

fn node(at: usize) -> DynamicObject {
    let review: Value = serde_json::from_slice(&review::kubelet_create("bench-node")).expect("JSON");
    let mut node = review["request"]["object"].clone();
    node["metadata"]["name"] = json!(format!("bench-{at}"));
    node["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    serde_json::from_value(node).expect("a node")
}

/// Creates nodes, without a webhook.
async fn make(plane: &ControlPlane, count: usize) -> Api<DynamicObject> {
    let nodes: Api<DynamicObject> =
        Api::all_with(plane.client(None).await, &ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()));
    let started = Instant::now();
    let made = futures_util::stream::iter(0..count).map(|at| {
        let nodes = nodes.clone();
        async move { nodes.create(&PostParams::default(), &node(at)).await.map(drop) }
    });
    let made: Vec<_> = made.buffer_unordered(32).collect().await;
    assert!(made.iter().all(Result::is_ok), "a node was refused");
    println!("{count} nodes made in {:.0} s, without a webhook", started.elapsed().as_secs_f64());
    nodes
}

async fn fill(plane: &ControlPlane, count: usize) {
    let directory = tempfile::tempdir().expect("a directory");
    let policy = directory.path().join("policy.yaml");
    std::fs::write(&policy, process::policy_of(100)).expect("written");
    let nodes = make(plane, count).await;

    let started = Instant::now();
    let leader = replica(plane, directory.path(), &policy, "leader", &[]);
    let mut quiet = (0, Instant::now());
    while quiet.0 == 0 || quiet.1.elapsed() < Duration::from_secs(5) {
        let writes = leader.metric("nodegate_writes_total{");
        if writes != quiet.0 {
            quiet = (writes, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let took = (quiet.1 - started).as_secs_f64();
    let lacking = lacking(&nodes).await;
    println!(
        "filled in {took:.0} s: {} writes, {:.0}/s of {RATE}/s allowed; nodes that lack something: {lacking}",
        quiet.0,
        quiet.0 as f64 / took
    );

    let follower = replica(plane, directory.path(), &policy, "follower", &[]);
    tokio::time::sleep(Duration::from_secs(2 * RESYNC + 5)).await;
    println!("writes of two further passes: {}", leader.metric("nodegate_writes_total{") - quiet.0);
    println!(
        "saved states in memory: leader {}, replica {}",
        leader.metric("nodegate_saved_states "),
        follower.metric("nodegate_saved_states ")
    );
    println!("memory: leader {:.1} MB, serving replica {:.1} MB", leader.memory_mb(), follower.memory_mb());
}

/// How many nodes lack a label or taint of the policy.
async fn lacking(nodes: &Api<DynamicObject>) -> usize {
    let mut lacking = 0;
    let mut page = ListParams::default().limit(500);
    loop {
        let list = nodes.list(&page).await.expect("listed");
        lacking += list
            .items
            .iter()
            .filter(|node| node.metadata.labels.as_ref().is_none_or(|labels| !labels.contains_key("team")))
            .count();
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return lacking,
        }
    }
}

/// Pods bound to a node that a policy taints, with the controller alone: the window that there is without admission.
async fn window(plane: &'static ControlPlane) {
    let directory = tempfile::tempdir().expect("a directory");
    let policy = directory.path().join("policy.yaml");
    let text = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: bench}\nspec:\n  rules:\n    - {name: r, match: {names: [\"bench-*\"]}, taints: [{key: fleet, value: kept, effect: NoSchedule}]}\n";
    std::fs::write(&policy, text).expect("written");
    let leader = replica(plane, directory.path(), &policy, "leader", &[]);
    while leader.metric("nodegate_leading ") != 1 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Pods that no node at all could take are retried by a timer; those that some node refuses wait for the next to join.
    let occupied = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "occupied-window"},
        "spec": {"taints": [{"key": "occupied", "effect": "NoSchedule"}]}});
    plane.kubectl(&["apply", "-f", "-"], Some(&occupied.to_string())).expect("a node that is taken");
    let _scheduler = plane.component("kube-scheduler", &[]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("| controller alone, {PODS} pods waiting | bound to the node, five joins |");
    println!("|---|---|");
    print_row(plane, "pods that tolerate not-ready (no node lifecycle controller in the way)", true).await;
    let _lifecycle = plane.component("kube-controller-manager", &["--controllers=node-lifecycle-controller"]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    print_row(plane, "pods that do not; the node lifecycle controller lifts not-ready", false).await;
}

async fn print_row(plane: &'static ControlPlane, what: &str, tolerate_not_ready: bool) {
    let mut bound = Vec::new();
    for turn in 0..5 {
        let waiting = Waiting::start(plane, tolerate_not_ready).await;
        // Tried once and backed off from: now they are queued, and bound as soon as there is room.
        tokio::time::sleep(Duration::from_secs(12)).await;
        let name = format!("bench-window-{turn}");
        waiting.join(&name).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        bound.push(waiting.bound(&name).await.to_string());
        waiting.clear(&[&name]).await;
    }
    println!("| {what} | {} |", bound.join(", "));
}
