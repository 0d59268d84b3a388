//! A leader of a fleet that is too large for the API server of this machine: its nodes are generated, everything else is real.
//!
//! What the leader asks about nodes is answered here, over the protocol of the API server: pages of a list, and a watch with the
//! heartbeats of a fleet. All other requests are passed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::{probe, process, serve};

/// How many nodes report their status in a second: at 100,000 nodes each one does so every five minutes.
const EVENTS: u64 = 333;
/// How long CPU time is measured.
const MEASURED: Duration = Duration::from_secs(60);

/// What is generated.
struct Fleet {
    nodes: usize,
    /// A node of some 30 KB, between the places where nodes differ.
    parts: Vec<String>,
    /// The version of the last event.
    version: AtomicU64,
    writes: AtomicU64,
    /// Where other requests go.
    api: kube::Client,
}

const NAME: &str = "@name@";
const VERSION: &str = "@version@";
const HEARTBEAT: &str = "@heartbeat@";

impl Fleet {
    fn new(nodes: usize, api: kube::Client) -> Self {
        let text = node().to_string();
        assert!((26_000..32_000).contains(&text.len()), "a node has {} bytes", text.len());
        let mut parts = vec![text];
        for place in [NAME, VERSION, HEARTBEAT] {
            let split = |part: String| -> Vec<String> {
                let pieces: Vec<&str> = part.split(place).collect();
                pieces.join(&format!("\0{place}\0")).split('\0').map(str::to_owned).collect()
            };
            parts = parts.into_iter().flat_map(split).collect();
        }
        Self { nodes, parts, version: AtomicU64::new(1_000_000), writes: AtomicU64::new(0), api }
    }

    /// Writes a node as the API server does.
    fn write(&self, at: usize, version: u64, into: &mut String) {
        for part in &self.parts {
            match part.as_str() {
                NAME => into.push_str(&format!("fleet-{at:06}")),
                VERSION => into.push_str(&version.to_string()),
                HEARTBEAT => into.push_str(&format!(
                    "2026-11-29T{:02}:{:02}:{:02}Z",
                    version / 3600 % 24,
                    version / 60 % 60,
                    version % 60
                )),
                text => into.push_str(text),
            }
        }
    }

    fn page(&self, query: &str) -> String {
        let parameter = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let number = |name: &str| parameter(name).and_then(|text| text.parse::<usize>().ok());
        let start = number("continue").unwrap_or_default();
        let end = (start + number("limit").unwrap_or(self.nodes)).min(self.nodes);
        let version = self.version.load(Ordering::Relaxed);
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if end < self.nodes {
            metadata["continue"] = json!(end.to_string());
            metadata["remainingItemCount"] = json!(self.nodes - end);
        }
        let mut text = format!(r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{metadata},"items":["#);
        for at in start..end {
            if at > start {
                text.push(',');
            }
            self.write(at, 1_000, &mut text);
        }
        text.push_str("]}\n");
        text
    }

    /// The heartbeats of all nodes in turn.
    fn watch(self: Arc<Self>) -> Body {
        let period = Duration::from_secs(1) / u32::try_from(EVENTS).expect("few");
        let mut due = tokio::time::interval(period);
        due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
        Body::from_stream(stream::unfold((self, due), |(fleet, mut due)| async move {
            due.tick().await;
            let version = fleet.version.fetch_add(1, Ordering::Relaxed) + 1;
            let mut line = r#"{"type":"MODIFIED","object":"#.to_owned();
            fleet.write(usize::try_from(version).expect("small") % fleet.nodes, version, &mut line);
            line.push_str("}\n");
            Some((Ok::<_, std::convert::Infallible>(line), (fleet, due)))
        }))
    }

    /// Passes a request on.
    async fn pass(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let body = to_bytes(body, 64 << 20).await.expect("a body");
        let path = parts.uri.path_and_query().expect("a path").as_str();
        let mut passed = hyper::Request::builder().method(parts.method).uri(path);
        for name in [hyper::header::CONTENT_TYPE, hyper::header::ACCEPT] {
            passed = parts.headers.get(&name).into_iter().fold(passed, |passed, value| passed.header(&name, value));
        }
        let passed = passed.body(kube::client::Body::from(body.to_vec())).expect("a request");
        match self.api.send(passed).await {
            Ok(response) => response.map(Body::new),
            Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
        }
    }
}

async fn answer(State(fleet): State<Arc<Fleet>>, request: Request) -> Response {
    let json = [("content-type", "application/json")];
    let query = request.uri().query().unwrap_or_default().to_owned();
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/api/v1/nodes") if query.contains("watch=true") => (json, fleet.watch()).into_response(),
        (&Method::GET, "/api/v1/nodes") => (json, fleet.page(&query)).into_response(),
        (&Method::PATCH, path) if path.starts_with("/api/v1/nodes/") => {
            fleet.writes.fetch_add(1, Ordering::Relaxed);
            (json, Bytes::from_static(b"{}")).into_response()
        }
        _ => fleet.pass(request).await,
    }
}

/// A node as it is on a machine with GPUs and server-side apply: 60 labels, ten annotations, 16 conditions, 50 images, and what field
/// managers claim.
fn node() -> Value {
    let feature = |at: usize| format!("feature.node.kubernetes.io/cpu-cpuid.FEATURE-{at:02}");
    let mut labels: serde_json::Map<String, Value> = (0..52).map(|at| (feature(at), json!("true"))).collect();
    for (key, value) in [
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/hostname", NAME),
        ("kubernetes.io/os", "linux"),
        ("node.kubernetes.io/instance-type", "gpu.8xlarge"),
        ("topology.kubernetes.io/region", "north"),
        ("topology.kubernetes.io/zone", "north-1"),
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
        ("nvidia.com/gpu.count", "8"),
    ] {
        labels.insert(key.to_owned(), json!(value));
    }
    let claimed: serde_json::Map<String, Value> = labels.keys().map(|key| (format!("f:{key}"), json!({}))).collect();
    let manager = |name: &str, fields: Value| {
        json!({"manager": name, "operation": "Update", "apiVersion": "v1", "time": "2026-11-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": fields})
    };
    let annotations: serde_json::Map<String, Value> =
        (0..10).map(|at| (format!("example.com/annotation-{at}"), json!("x".repeat(120)))).collect();
    let condition = |at: usize| {
        let kind = if at == 0 { "Ready".to_owned() } else { format!("Condition{at}") };
        json!({"type": kind, "status": if at == 0 { "True" } else { "False" }, "reason": "KubeletHasNoProblem",
            "message": "kubelet has sufficient of what it needs for this condition",
            "lastHeartbeatTime": HEARTBEAT, "lastTransitionTime": "2026-11-01T00:00:00Z"})
    };
    let image = |at: usize| {
        json!({"names": [format!("registry.example.com/organisation-of-the-fleet/team-that-trains/image-{at}@sha256:{at:064}"),
            format!("registry.example.com/organisation-of-the-fleet/team-that-trains/image-{at}:v1.{at}.0")], "sizeBytes": 123_456_789 + at})
    };
    let statuses: serde_json::Map<String, Value> = (0..20)
        .map(|at| (format!("k:{{\"type\":\"Condition{at}\"}}"), json!({".": {}, "f:lastHeartbeatTime": {}})))
        .collect();
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": NAME, "uid": format!("8e74187d-35e9-4f37-b4dd-{NAME}"), "resourceVersion": VERSION,
            "creationTimestamp": "2026-11-01T00:00:00Z", "labels": labels, "annotations": annotations,
            "managedFields": [
                manager("kubelet", json!({"f:metadata": {"f:labels": {"f:kubernetes.io/hostname": {}}}})),
                manager("nfd-master", json!({"f:metadata": {"f:labels": claimed}})),
                manager("kubelet", json!({"f:status": {"f:conditions": statuses}})),
            ]},
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": format!("cloud://{NAME}")},
        "status": {
            "capacity": {"cpu": "64", "memory": "1056Gi", "nvidia.com/gpu": "8", "pods": "110"},
            "allocatable": {"cpu": "63", "memory": "1050Gi", "nvidia.com/gpu": "8", "pods": "110"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": NAME}],
            "nodeInfo": {"architecture": "amd64", "bootID": "8e74187d-35e9-4f37-b4dd-207cc88b8d59", "kernelVersion": "6.1.0-18-amd64",
                "kubeletVersion": "v1.37.2", "machineID": "8e74187d35e94f37b4dd207cc88b8d59", "operatingSystem": "linux",
                "osImage": "Debian GNU/Linux 12", "systemUUID": format!("8e74187d-35e9-4f37-b4dd-{NAME}")},
            "conditions": (0..16).map(condition).collect::<Vec<_>>(),
            "images": (0..50).map(image).collect::<Vec<_>>(),
        },
    })
}

/// Prints the memory and CPU time of a leader of so many nodes.
pub(crate) async fn measure(plane: &ControlPlane, nodes: usize) {
    let fleet = Arc::new(Fleet::new(nodes, plane.client(None).await));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let router = Router::new().fallback(answer).with_state(fleet.clone());
    let server = tokio::spawn(async move { axum::serve(listener, router).await });

    let directory = tempfile::tempdir().expect("a directory");
    let policy = directory.path().join("policy.yaml");
    std::fs::write(&policy, process::policy_of(100)).expect("written");
    let started = Instant::now();
    let kubeconfig = plane.kubeconfig_file_through("generated", &url);
    let leader =
        serve(plane, &kubeconfig, directory.path(), (&policy, "leader"), &["--resync-interval-seconds", "3600"]);
    let (id, cpu) = (leader.server.0.id(), || probe::cpu_seconds(leader.server.0.id()));
    while leader.metric("nodegate_nodes ") < nodes as u64 {
        assert!(started.elapsed() < Duration::from_secs(600), "the nodes are not known:\n{}", leader.get("/metrics"));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (listed, peak) = (started.elapsed().as_secs_f64(), probe::memory_mb(id, "VmHWM:"));
    // The first look at every node ends when less is done than events alone cause.
    let mut before = cpu();
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let now = cpu();
        if now - before < 2.5 {
            break;
        }
        before = now;
    }
    let looked = started.elapsed().as_secs_f64();
    let before = cpu();
    tokio::time::sleep(MEASURED).await;
    let share = (cpu() - before) / MEASURED.as_secs_f64();
    let settled = probe::memory_mb(id, "VmRSS:");
    println!("{nodes} nodes of {} bytes: known after {listed:.1} s, all looked at after {looked:.0} s", {
        let mut text = String::new();
        fleet.write(0, 1_000, &mut text);
        text.len()
    });
    println!(
        "memory {settled:.1} MB, at most {peak:.1} MB while listing and {:.1} MB since; {share:.2} of a core for {EVENTS} heartbeats a second; \
         {} writes of nodes",
        probe::memory_mb(id, "VmHWM:"),
        fleet.writes.load(Ordering::Relaxed)
    );
    server.abort();
}
