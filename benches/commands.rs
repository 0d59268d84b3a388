//! Commands on a large cluster, at the real API server. With a control plane (tests/README.md):
//!
//! `cargo bench --bench commands -- 5000 50000`: so many nodes and pods; for each command the time until it has printed
//! everything, and its peak memory.

#![allow(clippy::print_stdout, reason = "a bench prints its results")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a bench that cannot run ends")]
#![allow(dead_code, reason = "shared with the tests")]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use kube::api::{Api, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use serde_json::{Value, json};

#[path = "../tests/cluster/control_plane/mod.rs"]
mod control_plane;
#[path = "support/probe.rs"]
mod probe;
#[path = "support/process.rs"]
mod process;
#[path = "support/review.rs"]
mod review;

use control_plane::{ControlPlane, exclusive};
use process::{Server, free_address, wait_for};

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if !control_plane::assets().join("kube-apiserver").is_file() {
        return println!("no control plane, so nothing is measured; `just control-plane` builds one");
    }
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let (nodes, pods) = (
        asked.first().copied().unwrap_or(1_000),
        asked.get(1).copied().unwrap_or_else(|| 10 * asked.first().unwrap_or(&1_000)),
    );
    let cluster = exclusive();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(measure(cluster.plane, nodes, pods));
}

async fn measure(plane: &ControlPlane, nodes: usize, pods: usize) {
    let directory = tempfile::tempdir().expect("a directory");
    let policy = directory.path().join("policy.yaml");
    fs::write(&policy, process::policy_of(100)).expect("written");
    make(plane, &ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()), None, nodes, &node).await;
    let leader = leader(plane, directory.path(), &policy);
    make(plane, &ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&()), Some("default"), pods, &|at| {
        pod(at, at % nodes)
    })
    .await;
    let daemon_sets = ApiResource::erase::<k8s_openapi::api::apps::v1::DaemonSet>(&());
    make(plane, &daemon_sets, Some("default"), DAEMON_SETS, &daemon_set).await;
    until_filled(&leader.1);
    let other = directory.path().join("other.yaml");
    let rules = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: other}\nspec:\n  rules:\n    - {name: all, labels: {planned: x}, taints: [{key: planned, effect: NoSchedule}]}\n";
    fs::write(&other, rules).expect("written");
    println!("\n| {nodes} nodes, {pods} pods | time | peak memory | output |\n|---|---|---|---|");
    let other = other.to_str().expect("UTF-8");
    for arguments in [
        &["plan"] as &[&str],
        &["plan", "--policy", other],
        &["plan", "--policy", other, "-o", "json"],
        &["report"],
        &["report", "--stranded-pods", "-o", "json"],
        &["report", "--cost", "--by", "team"],
        &["report", "--stranded-pods", "--html", "-"],
        &["explain", "bench-7"],
        &["history", "--all", "-o", "json"],
    ] {
        row(plane, directory.path(), arguments);
    }
}

/// Creates `count` objects.
async fn make(
    plane: &ControlPlane,
    resource: &ApiResource,
    namespace: Option<&str>,
    count: usize,
    object: &dyn Fn(usize) -> Value,
) {
    let client = plane.client(None).await;
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    };
    let started = Instant::now();
    let made = futures_util::stream::iter(0..count).map(|at| {
        let (api, object) = (api.clone(), serde_json::from_value(object(at)).expect("an object"));
        async move { api.create(&PostParams::default(), &object).await.map(drop) }
    });
    let refused: Vec<_> = made.buffer_unordered(32).filter_map(async |made| made.err()).collect().await;
    assert!(refused.is_empty(), "refused: {:?}", refused.first());
    println!("{count} {} made in {:.0} s", resource.plural, started.elapsed().as_secs_f64());
}

fn node(at: usize) -> Value {
    let review: Value = serde_json::from_slice(&review::kubelet_create("bench-node")).expect("JSON");
    let mut node = review["request"]["object"].clone();
    node["metadata"]["name"] = json!(format!("bench-{at}"));
    node["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    node
}

/// How many applications and DaemonSets the pods belong to. Each one has requirements of its own.
const APPLICATIONS: usize = 500;
const DAEMON_SETS: usize = 10;

/// A pod of about 2 KB, as the API server stores it. One of a hundred is pending.
fn pod(at: usize, node: usize) -> Value {
    let application = at % APPLICATIONS;
    let variables: Vec<Value> =
        (0..10).map(|at| json!({"name": format!("VARIABLE_{at}"), "value": "a value of some length"})).collect();
    let container = json!({"name": "c", "image": "registry.example/application:1.2.3", "env": variables,
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}});
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("app-{application}"), "uid": "u", "controller": true}]);
    let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "NotIn", "values": [format!("os-{application}")]}]}]);
    let affinity =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    let tolerations = json!([{"key": format!("for-{application}"), "operator": "Exists", "effect": "NoSchedule"}]);
    let spread = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": format!("app-{application}")}}}]);
    let mut spec = json!({"containers": [container], "affinity": affinity, "tolerations": tolerations});
    if application.is_multiple_of(10) {
        spec["topologySpreadConstraints"] = spread;
    }
    if !at.is_multiple_of(100) {
        spec["nodeName"] = json!(format!("bench-{node}"));
    }
    let labels = json!({"app": format!("app-{application}")});
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod-{at}"), "labels": labels, "ownerReferences": owner}, "spec": spec})
}

fn daemon_set(at: usize) -> Value {
    let labels = json!({"daemon": format!("daemon-{at}")});
    let spec = json!({"nodeSelector": {"kubernetes.io/os": "linux"}, "containers": [{"name": "c", "image": "registry.example/daemon:1"}],
        "tolerations": [{"key": format!("for-{at}"), "operator": "Exists"}]});
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": format!("daemon-{at}")},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}})
}

/// A controller, and its probe address; no webhook is registered.
fn leader(plane: &ControlPlane, directory: &Path, policy: &Path) -> (Server, String) {
    let _ = plane.kubectl(&["create", "namespace", "bench"], None);
    let probe = free_address();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--namespace",
        "bench",
        "--writes-per-second",
        "300",
        "--probe-listen",
    ]);
    command.arg(&probe).arg("--policy").arg(policy).arg("--cert-dir").arg(directory.join("certs"));
    command.arg("--kubeconfig").arg(plane.kubeconfig_file("bench", None));
    let log = File::create(directory.join("leader.log")).expect("a log");
    let server = Server(command.stdout(Stdio::null()).stderr(log).spawn().expect("started"));
    wait_for(&probe);
    (server, probe)
}

/// Waits until the controller has written nothing for five seconds.
fn until_filled(probe: &str) {
    let writes = || {
        let text = probe::get(probe, "/metrics");
        let lines = text.lines().filter(|line| line.starts_with("nodegate_writes_total{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    let mut quiet = (0.0, Instant::now());
    while quiet.0 < 1.0 || quiet.1.elapsed() < Duration::from_secs(5) {
        let now = writes();
        if now > quiet.0 {
            quiet = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Runs a command three times, and prints the median time and the peak memory.
fn row(plane: &ControlPlane, directory: &Path, arguments: &[&str]) {
    let output = directory.join("output");
    let mut runs = Vec::new();
    for _ in 0..3 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command
            .args(arguments)
            .args(["--namespace", "bench", "--kubeconfig"])
            .arg(plane.kubeconfig_file("bench", None));
        let started = Instant::now();
        let mut child = command.stdout(File::create(&output).expect("a file")).spawn().expect("started");
        let mut peak = 0.0_f64;
        let status = loop {
            peak = peak.max(probe::memory_mb(child.id(), "VmHWM:"));
            if let Some(status) = child.try_wait().expect("waited") {
                break status;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.code().is_some_and(|code| code <= 1), "{arguments:?}");
        runs.push((started.elapsed(), peak));
    }
    runs.sort_by_key(|run| run.0);
    let peak = runs.iter().map(|run| run.1).fold(0.0, f64::max);
    let printed = fs::metadata(&output).map(|file| file.len()).unwrap_or_default();
    let command = arguments.join(" ").replace(&*directory.to_string_lossy(), "").replace('/', "");
    println!("| `{command}` | {:.2} s | {peak:.0} MB | {} KB |", runs[1].0.as_secs_f64(), printed / 1024);
}
