//! A burst of joins: kubelets that register within a second, each with a deferred role label and the pending taint.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use tokio::sync::mpsc;

use super::control_plane::{self, ControlPlane};
use super::process::{Server, free_address, wait_for};
use super::{Replica, node, probe};

const ROLE: &str = "node-role.kubernetes.io/worker";
const PENDING: &str = "startup-taint.cluster-autoscaler.kubernetes.io/nodegate";
const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: burst}
spec:
  rules:
    - {name: role, match: {names: ["bench-*"]}, labels: {node-role.kubernetes.io/worker: "", hardware.tier: standard},
       taints: [{key: fleet, value: kept, effect: NoSchedule}]}
  persist: {labels: ["persist.demo/*"]}
"#;

/// What was seen of an object: whose it is, its version, whether it is a record, and whether a node is done.
struct Seen {
    node: String,
    version: u64,
    what: What,
    at: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Record,
    Node { done: bool },
}

pub(crate) async fn measure(plane: &'static ControlPlane) {
    let directory = tempfile::tempdir().expect("a directory");
    let policy = directory.path().join("policy.yaml");
    std::fs::write(&policy, POLICY).expect("written");
    let _ = plane.kubectl(&["create", "namespace", "burst"], None);
    println!("Without nodegate: the same three writes, one after the other as each is answered");
    println!();
    println!("| joins within a second | p50 | p99 | last | processor time of API server, etcd, load |");
    println!("|---|---|---|---|---|");
    for count in [20, 200, 1000] {
        floor(plane, count).await;
    }
    println!();
    let leader = serve(plane, directory.path(), &policy);
    println!(
        "| joins within a second | p50 | p99 | last | writes before the lift, most of one node | node writes | records | joined while the webhook did not answer | processor time until then of API server, etcd, load, nodegate |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for count in [20, 200, 1000] {
        row(plane, &leader, count).await;
    }
}

/// Clients of kubelets, each with its connection: a kubelet has asked the API server for much before it registers.
async fn kubelets(plane: &ControlPlane, names: &[String]) -> Vec<Api<DynamicObject>> {
    let mut kubelets = Vec::new();
    for name in names {
        let user = format!("system:node:{name}");
        let kubelet = nodes(plane.client(Some((&user, &["system:nodes", "system:authenticated"]))).await);
        assert!(kubelet.get_opt(name).await.expect("answered").is_none(), "{name} is there already");
        kubelets.push(kubelet);
    }
    kubelets
}

/// Processor time so far of the API server, etcd and this process, and of nodegate where it runs.
fn processor_times(plane: &ControlPlane, leader: Option<&Replica>) -> Vec<f64> {
    let processes = plane.processes().into_iter().chain([std::process::id()]);
    processes.chain(leader.map(|leader| leader.server.0.id())).map(probe::cpu_seconds).collect()
}

/// What was used since, as text.
fn used_since(before: &[f64], now: &[f64]) -> String {
    let used = before.iter().zip(now).map(|(before, now)| format!("{:.2} s", now - before));
    used.collect::<Vec<_>>().join(", ")
}

/// The value below which this share of the times is, in seconds.
fn quantile(sorted: &[Duration], share: f64) -> f64 {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)].as_secs_f64()
}

/// What the machine can do at best: a CREATE, a record and a change for each node, with no webhook and nobody who watches.
async fn floor(plane: &'static ControlPlane, count: usize) {
    let names: Vec<String> = (0..count).map(|at| format!("floor-{count}-{at}")).collect();
    let kubelets = kubelets(plane, &names).await;
    let admin = plane.client(None).await;
    let config_maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(admin.clone(), "burst");
    let all = nodes(admin);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = processor_times(plane, None);
    let start = Instant::now();
    let joins = names.clone().into_iter().zip(kubelets).enumerate().map(|(at, (name, kubelet))| {
        let (config_maps, all) = (config_maps.clone(), all.clone());
        let mut object = node(at);
        object.metadata.name = Some(name.clone());
        let record = json!({"metadata": {"name": name}, "data": {"state.json": "x".repeat(600)}});
        let record = serde_json::from_value(record).expect("a ConfigMap");
        let change = Patch::Json::<()>(
            serde_json::from_value(json!([
                {"op": "add", "path": "/metadata/labels/node-role.kubernetes.io~1worker", "value": ""},
                {"op": "add", "path": "/metadata/labels/hardware.tier", "value": "standard"},
                {"op": "add", "path": "/spec/taints", "value": [{"key": "fleet", "value": "kept", "effect": "NoSchedule"}]}
            ]))
            .expect("a patch"),
        );
        async move {
            tokio::time::sleep_until((start + Duration::from_secs(1) * at as u32 / count as u32).into()).await;
            let sent = Instant::now();
            kubelet.create(&PostParams::default(), &object).await.expect("joined");
            config_maps.create(&PostParams::default(), &record).await.expect("recorded");
            all.patch(&name, &PatchParams::default(), &change).await.expect("changed");
            sent.elapsed()
        }
    });
    let mut times =
        tokio::spawn(futures_util::future::join_all(joins.collect::<Vec<_>>())).await.expect("the joins ended");
    times.sort_unstable();
    let used = used_since(&before, &processor_times(plane, None));
    println!(
        "| {count} | {:.2} s | {:.2} s | {:.2} s | {used} |",
        quantile(&times, 0.5),
        quantile(&times, 0.99),
        quantile(&times, 1.0),
    );
    remove(plane, names.clone()).await;
    let deletions = futures_util::stream::iter(names).map(|name| {
        let config_maps = config_maps.clone();
        async move { config_maps.delete(&name, &DeleteParams::default()).await.map(drop) }
    });
    deletions.buffer_unordered(16).collect::<Vec<_>>().await;
}

async fn remove(plane: &ControlPlane, names: Vec<String>) {
    let admin = Arc::new(nodes(plane.client(None).await));
    let deletions = futures_util::stream::iter(names).map(|name| {
        let admin = admin.clone();
        async move { admin.delete(&name, &DeleteParams::default()).await.map(drop) }
    });
    deletions.buffer_unordered(16).collect::<Vec<_>>().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
}

/// `serve` with default flags, registered as rendered.
fn serve(plane: &ControlPlane, directory: &Path, policy: &Path) -> Replica {
    let kubeconfig =
        plane.kubeconfig_file("burst", Some(("system:serviceaccount:burst:nodegate", &["system:masters"])));
    let (listen, address, certs) = (free_address(), free_address(), directory.join("certs"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["serve", "--listen", &listen, "--probe-listen", &address, "--namespace", "burst", "--kubeconfig"]);
    command.arg(kubeconfig).arg("--policy").arg(policy).arg("--cert-dir").arg(&certs);
    let child: Child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
    let leader = Replica { server: Server(child), probe: address };
    wait_for(&leader.probe);
    while leader.metric("nodegate_leading ") != 1 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut render = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    render.args(["render", "webhooks", "--url", &format!("https://{listen}"), "--ca-file"]).arg(certs.join("ca.crt"));
    render.arg("--policy").arg(policy);
    let manifests = control_plane::run(&mut render, None).expect("rendered");
    plane.kubectl(&["apply", "-f", "-"], Some(&manifests)).expect("registered");
    // The API server learns of it by watch, and the leader's Lease has to be seen renewed.
    std::thread::sleep(Duration::from_secs(8));
    leader
}

async fn row(plane: &'static ControlPlane, leader: &Replica, count: usize) {
    let names: Vec<String> = (0..count).map(|at| format!("bench-{count}-{at}")).collect();
    let kubelets = kubelets(plane, &names).await;
    let writes = |what: &str| leader.metric(&format!("nodegate_writes_total{{what=\"{what}\""));
    let before = (writes("node"), writes("state"));
    let (seen, mut events) = mpsc::unbounded_channel();
    let watches = [watch_nodes(plane, seen.clone()).await, watch_records(plane, seen).await];
    tokio::time::sleep(Duration::from_secs(2)).await;

    let used_before = processor_times(plane, Some(leader));
    let start = Instant::now();
    let creates = names.clone().into_iter().zip(kubelets).enumerate().map(|(at, (name, kubelet))| {
        let mut object = node(at);
        object.metadata.name = Some(name.clone());
        async move {
            tokio::time::sleep_until((start + Duration::from_secs(1) * at as u32 / count as u32).into()).await;
            let sent = Instant::now();
            let made = kubelet.create(&PostParams::default(), &object).await.expect("joined");
            let pending = made.data["spec"]["taints"].to_string().contains(PENDING);
            (name, sent, pending)
        }
    });
    let joined =
        tokio::spawn(futures_util::future::join_all(creates.collect::<Vec<_>>())).await.expect("the joins ended");
    // Not asked in time, and so without the pending taint.
    let unseen = joined.iter().filter(|(_, _, pending)| !pending).count();
    let sent: HashMap<String, Instant> = joined.into_iter().map(|(name, sent, _)| (name, sent)).collect();

    let mut done: HashMap<String, (Duration, u64)> = HashMap::new();
    let mut written: HashMap<String, Vec<u64>> = HashMap::new();
    while done.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(120), events.recv()).await;
        let Seen { node, version, what, at } = next.expect("a node is never done").expect("the watches go on");
        let Some(sent) = sent.get(&node) else { continue };
        match what {
            What::Record => written.entry(node).or_default().push(version),
            What::Node { done: true } => {
                done.entry(node).or_insert((at - *sent, version));
            }
            What::Node { done: false } => {}
        }
    }
    let used = used_since(&used_before, &processor_times(plane, Some(leader)));
    let mut times: Vec<Duration> = done.values().map(|(time, _)| *time).collect();
    times.sort_unstable();
    // What follows later is counted too: the rest of the records, and history.
    tokio::time::sleep(Duration::from_secs(8)).await;
    while let Ok(Seen { node, version, what, .. }) = events.try_recv() {
        if what == What::Record {
            written.entry(node).or_default().push(version);
        }
    }
    let first = |(node, (_, lifted)): (&String, &(Duration, u64))| {
        1 + written.get(node).into_iter().flatten().filter(|version| *version < lifted).count()
    };
    println!(
        "| {count} | {:.2} s | {:.2} s | {:.2} s | {} | {} | {} | {unseen} | {used} |",
        quantile(&times, 0.5),
        quantile(&times, 0.99),
        quantile(&times, 1.0),
        done.iter().map(first).max().unwrap_or_default(),
        writes("node") - before.0,
        writes("state") - before.1,
    );
    watches.iter().for_each(tokio::task::JoinHandle::abort);
    remove(plane, names).await;
}

fn nodes(client: kube::Client) -> Api<DynamicObject> {
    Api::all_with(client, &ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()))
}

fn version(object: &DynamicObject) -> u64 {
    object.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).expect("a version")
}

async fn watch_nodes(plane: &ControlPlane, seen: mpsc::UnboundedSender<Seen>) -> tokio::task::JoinHandle<()> {
    let api = nodes(plane.client(None).await);
    tokio::spawn(follow(api, seen, |object| {
        let labelled = object.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(ROLE));
        let pending = object.data["spec"]["taints"].as_array().into_iter().flatten();
        let pending = pending.clone().any(|taint| taint["key"] == json!(PENDING));
        (object.metadata.name.clone().unwrap_or_default(), What::Node { done: labelled && !pending })
    }))
}

async fn watch_records(plane: &ControlPlane, seen: mpsc::UnboundedSender<Seen>) -> tokio::task::JoinHandle<()> {
    let resource = ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&());
    let api = Api::namespaced_with(plane.client(None).await, "burst", &resource);
    tokio::spawn(follow(api, seen, |object| {
        let name = object.metadata.name.clone().unwrap_or_default();
        (name.trim_start_matches("node-labels-").to_owned(), What::Record)
    }))
}

async fn follow(
    api: Api<DynamicObject>,
    seen: mpsc::UnboundedSender<Seen>,
    read: impl Fn(&DynamicObject) -> (String, What),
) {
    let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()));
    while let Some(event) = events.next().await {
        let Ok(Event::Apply(object) | Event::InitApply(object)) = event else { continue };
        let (node, what) = read(&object);
        let _ = seen.send(Seen { node, version: version(&object), what, at: Instant::now() });
    }
}
