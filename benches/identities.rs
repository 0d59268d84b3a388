//! What a replica keeps of 15,000 nodes, of their records and of their identities: `cargo bench --bench identities`.
//!
//! Each figure is the memory of a process that has read the objects of 16,000 nodes as an API server lists them, or their records, or both,
//! less that of one that has read 1,000: what is used for reading a page of a list, and given back for other work, is no part of it. Of
//! certificate requests there are those of all nodes, which is more than an API server has: it deletes one an hour after its certificate was
//! issued.

#![allow(clippy::print_stdout, reason = "a bench prints its results")]
#![allow(clippy::expect_used, reason = "a bench that cannot run ends")]

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{PolicyDocument, PolicySet};
use nodegate_stores::machines::Asked;
use nodegate_stores::state::{ConfigMaps, Identity, SavedStates};
use nodegate_stores::witnesses::Witnesses;
use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use serde_json::{Value, json};

/// As the product has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NODES: usize = 15_000;
const FEW: usize = 1_000;
const TARGET_MB: f64 = 8.0;
/// Of a record, in bytes.
const RECORD_TARGET: f64 = 1_500.0;
/// Which child a process is, and how many nodes there are.
const CHILD: &str = "NODEGATE_IDENTITIES";
const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// Saved labels of a node, and how many of them have a value that no other node has.
const SAVED: [(usize, usize); 4] = [(0, 0), (4, 0), (20, 0), (20, 2)];

/// What proves the pools of the nodes.
const SOURCES: [&str; 4] = ["requester", "bootstrap", "NodeClaim", "Machine"];

fn main() {
    if let Ok(child) = std::env::var(CHILD) {
        let (what, nodes) = child.split_once(' ').expect("what, and how many");
        let kept = read(what, nodes.parse().expect("a number"));
        println!("{}", resident());
        drop(kept);
        return;
    }
    println!("memory for a record, in bytes");
    println!("| saved labels | of them of this node alone | from files | from ConfigMaps |");
    println!("|---|---|---|---|");
    for (saved, own) in SAVED {
        let [files, config_maps] = ["files", "ConfigMap"].map(|from| {
            let bytes = more(&format!("{from}/{saved}/{own}")) * 1e6 / NODES as f64;
            format!("{bytes:.0}{}", if bytes > RECORD_TARGET { " (missed)" } else { "" })
        });
        println!("| {saved} | {own} | {files} | {config_maps} |");
    }
    println!("\nmemory for {NODES} nodes, in MB (records: beyond what they have without pools)");
    println!("| proof | objects of the API server | records | together |");
    println!("|---|---|---|---|");
    let plain = more("record");
    for source in SOURCES {
        let records = more(&format!("record/{source}")) - plain;
        let (objects, together) = match source {
            "requester" => (0.0, records),
            _ => (more(source), more(&format!("both/{source}")) - plain),
        };
        let missed = if together > TARGET_MB { " (missed)" } else { "" };
        println!("| `{source}` | {objects:.1} | {records:.1} | {together:.1}{missed} |");
    }
}

/// The memory of a process that has read of all nodes and a few more, beyond that of one that has read of these few, in MB.
fn more(what: &str) -> f64 {
    let of = |nodes: usize| {
        let output = Command::new(std::env::current_exe().expect("the bench"))
            .env(CHILD, format!("{what} {nodes}"))
            // As in the image.
            .env("MIMALLOC_PURGE_DELAY", "0")
            .output()
            .expect("a child");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.trim().parse::<f64>().unwrap_or_else(|_| panic!("{what}: {}", String::from_utf8_lossy(&output.stderr)))
    };
    (of(FEW + NODES) - of(FEW)) / 1e6
}

/// The memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kilobytes * 1024
}

/// Reads of so many nodes, and returns what is kept.
fn read(what: &str, nodes: usize) -> Box<dyn std::any::Any> {
    let (what, source) = what.split_once('/').unwrap_or((what, ""));
    if what == "files" {
        return from_files(source, nodes);
    }
    let states = SavedStates::new(Identity::Name);
    if matches!(what, "record" | "both") {
        states.replace((0..nodes).map(|at| Arc::new(record(at, source))));
    }
    if what == "record" {
        return Box::new(states);
    }
    let labels = source;
    let source = if what == "both" { source } else { what };
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let witnesses = Arc::new(Witnesses::default());
    if what == "ConfigMap" {
        return Box::new((runtime.block_on(from_config_maps(labels, nodes)), runtime));
    }
    runtime.block_on(listen(source, nodes, &witnesses));
    Box::new((states, witnesses, runtime))
}

/// Records as `serve --state-dir` has them.
fn from_files(labels: &str, nodes: usize) -> Box<dyn std::any::Any> {
    let directory = tempfile::tempdir().expect("a directory");
    for at in 0..nodes {
        let file = directory.path().join(format!("{}.json", name(at)));
        std::fs::write(file, whole_record(at, labels).to_string()).expect("written");
    }
    let (known, errors) = nodegate_stores::state::read(directory.path(), &HashMap::new());
    assert!(known.len() == nodes && errors.is_empty(), "{errors:?}");
    let states = SavedStates::new(Identity::Name);
    states.replace(known.values().cloned());
    Box::new((known, states))
}

/// Records as every replica in a cluster has them.
async fn from_config_maps(labels: &str, nodes: usize) -> ConfigMaps {
    let client = Client::new(ApiServer::of_config_maps(labels.to_owned(), nodes).service(), "default");
    let maps = ConfigMaps::new(client, "nodegate", Arc::new(SavedStates::new(Identity::Name)));
    let (synced, is_synced) = tokio::sync::oneshot::channel();
    let follows = maps.clone();
    let following = tokio::spawn(async move {
        let synced = || synced.send(()).unwrap_or_default();
        follows.follow(Duration::from_secs(60), synced, |unused| panic!("{unused:?}")).await;
    });
    is_synced.await.expect("it is read");
    assert_eq!(maps.states().len(), nodes);
    following.abort();
    drop(following.await);
    maps
}

/// Reads the objects until the last of them is known.
async fn listen(what: &str, nodes: usize, witnesses: &Arc<Witnesses>) {
    let client = Client::new(ApiServer::new(what, nodes).service(), "default");
    let longest = Duration::from_secs(60);
    let following = match what {
        "bootstrap" => {
            let witnesses = witnesses.clone();
            tokio::spawn(async move { witnesses.certificates.follow(client, longest).await })
        }
        kind => {
            let spec = json!({"pools": [{"nameFrom": {"kind": kind, "label": "example.com/pool"}}]});
            let document = PolicyDocument::of_object("pools", &spec).expect("a policy");
            let asked = Asked::by(&PolicySet::compile(&[document]).expect("a policy"));
            let witnesses = witnesses.clone();
            tokio::spawn(async move { witnesses.machines.follow(client, asked, longest).await })
        }
    };
    let last = name(nodes.saturating_sub(1));
    let is_known = || match what {
        "bootstrap" => !witnesses.certificates.for_node(&last, None).is_empty(),
        _ => !witnesses.machines.with_provider_id(&provider_id(nodes.saturating_sub(1)), &last).is_empty(),
    };
    while nodes > 0 && !is_known() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    // With it goes the API server, which has the list.
    following.abort();
    drop(following.await);
}

/// The name of a node, as in a cloud.
fn name(at: usize) -> String {
    format!("ip-10-{}-{}-{}.eu-central-1.compute.internal", at / 65536, at / 256 % 256, at % 256)
}

fn instance(at: usize) -> String {
    format!("i-0{at:016x}")
}

fn provider_id(at: usize) -> String {
    format!("aws:///eu-central-1a/{}", instance(at))
}

fn uid(at: usize) -> String {
    format!("3f2a1b0c-5d4e-4f6a-8b7c-{at:012x}")
}

/// An API server that lists objects and never changes one.
#[derive(Clone)]
struct ApiServer {
    group: &'static str,
    kind: String,
    nodes: usize,
    /// The object of a node, made when it is listed: what this server kept would count.
    item: Arc<dyn Fn(usize) -> Value + Send + Sync>,
}

impl ApiServer {
    fn new(what: &str, nodes: usize) -> Self {
        let (group, item): (_, Arc<dyn Fn(usize) -> Value + Send + Sync>) = match what {
            "bootstrap" => ("certificates.k8s.io", Arc::new(requests())),
            "NodeClaim" => ("karpenter.sh", Arc::new(node_claim)),
            _ => ("cluster.x-k8s.io", Arc::new(machine)),
        };
        Self { group, kind: what.to_owned(), nodes, item }
    }

    fn of_config_maps(labels: String, nodes: usize) -> Self {
        let item = move |at| {
            json!({"metadata": {"name": format!("node-labels-{}", name(at)), "namespace": "nodegate", "resourceVersion": "1",
                "creationTimestamp": "2026-11-27T10:00:00Z"},
                "data": {"state.json": whole_record(at, &labels).to_string()}})
        };
        Self { group: "", kind: "ConfigMap".to_owned(), nodes, item: Arc::new(item) }
    }

    /// A page of the list.
    fn page(&self, query: &str) -> Bytes {
        let number = |name: &str| {
            let mut parts = query.split('&').filter_map(|part| part.split_once('='));
            parts.find(|(key, _)| *key == name).and_then(|(_, value)| value.parse::<usize>().ok())
        };
        let first = number("continue").unwrap_or(0);
        let last = (first + number("limit").unwrap_or(self.nodes)).min(self.nodes);
        let next = if last < self.nodes { last.to_string() } else { String::new() };
        let items: Vec<Value> = (first..last).map(&*self.item).collect();
        let version = format!("{}/v1", self.group);
        json!({"apiVersion": version.trim_start_matches('/'), "kind": format!("{}List", self.kind),
            "metadata": {"resourceVersion": "1", "continue": next}, "items": items})
        .to_string()
        .into()
    }

    fn service(
        self,
    ) -> impl tower::Service<
        Request<Body>,
        Response = Response<UnsyncBoxBody<Bytes, std::io::Error>>,
        Error = std::io::Error,
        Future: Send,
    > + Clone
    + Send
    + 'static {
        tower::service_fn(move |request: Request<Body>| {
            let answer = self.answer(request.uri().path(), request.uri().query().unwrap_or_default());
            async move { Ok(answer) }
        })
    }

    fn answer(&self, path: &str, query: &str) -> Response<UnsyncBoxBody<Bytes, std::io::Error>> {
        use http_body_util::{BodyExt as _, Full, StreamBody};
        let full = |bytes: Bytes| Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
        if query.contains("watch=") {
            return Response::new(StreamBody::new(futures_util::stream::pending()).boxed_unsync());
        }
        let version = json!({"groupVersion": format!("{}/v1", self.group), "version": "v1"});
        if path == "/apis" {
            let groups = json!([{"name": self.group, "versions": [version], "preferredVersion": version}]);
            return Response::new(full(json!({"kind": "APIGroupList", "groups": groups}).to_string().into()));
        }
        if path == format!("/apis/{}/v1", self.group) {
            let plural = format!("{}s", self.kind.to_lowercase());
            let resource = json!({"name": plural, "singularName": "", "namespaced": false, "kind": self.kind, "verbs": ["list", "watch"]});
            let list =
                json!({"kind": "APIResourceList", "groupVersion": version["groupVersion"], "resources": [resource]});
            return Response::new(full(list.to_string().into()));
        }
        if path.starts_with(&format!("/apis/{}/v1/", self.group)) || path == "/api/v1/namespaces/nodegate/configmaps" {
            return Response::new(full(self.page(query)));
        }
        let mut missing =
            Response::new(full(Bytes::from_static(br#"{"kind":"Status","code":404,"reason":"NotFound"}"#)));
        *missing.status_mut() = hyper::StatusCode::NOT_FOUND;
        missing
    }
}

/// The request for the certificate of a node, all with the same key, which is not kept.
fn requests() -> impl Fn(usize) -> Value {
    let key = KeyPair::generate().expect("a key");
    let authority = Issuer::new(CertificateParams::default(), KeyPair::generate().expect("a key"));
    move |at| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{}", name(at)));
        let certificate = params.signed_by(&key, &authority).expect("a certificate");
        json!({"metadata": {"name": format!("csr-{at}"), "creationTimestamp": "2026-11-27T10:00:00Z"},
            "spec": {"signerName": SIGNER, "username": "system:bootstrap:abcdef", "request": "", "usages": ["client auth"],
                "groups": ["system:bootstrappers", "system:bootstrappers:pool-gpu-h100", "system:authenticated"]},
            "status": {"certificate": BASE64_STANDARD.encode(certificate.pem())}})
    }
}

fn claim(at: usize) -> String {
    format!("gpu-h100-{at:05}")
}

fn machine_name(at: usize) -> String {
    format!("gpu-h100-7f9c4-{at:05}")
}

fn node_claim(at: usize) -> Value {
    json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": claim(at), "uid": uid(at), "resourceVersion": "1", "labels": {"example.com/pool": "gpu-h100"}},
        "spec": {}, "status": {"providerID": provider_id(at)}})
}

fn machine(at: usize) -> Value {
    json!({"apiVersion": "cluster.x-k8s.io/v1", "kind": "Machine",
        "metadata": {"name": machine_name(at), "namespace": "fleet", "uid": uid(at), "resourceVersion": "1",
            "labels": {"example.com/pool": "gpu-h100"}},
        "spec": {"providerID": provider_id(at)},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}, {"type": "InternalDNS", "address": name(at)}]}})
}

/// The record of a node, with so many saved labels as `labels` says before the slash, of which so many as it says behind it have a value
/// of their own.
fn whole_record(at: usize, labels: &str) -> Value {
    let (saved, own) = labels.split_once('/').expect("two numbers");
    let (saved, own): (usize, usize) = (saved.parse().expect("a number"), own.parse().expect("a number"));
    let value = |label| if label < own { format!("asset-{label}-{at:06}") } else { format!("value-{label}") };
    let labels: serde_json::Map<String, Value> =
        (0..saved).map(|label| (format!("persist.demo/label-{label}"), value(label).into())).collect();
    let change = json!({"id": 1, "time": "2026-11-27T10:00:00Z", "by": "nodegate", "how": "controller", "field": "label", "key": "tier", "new": "gold"});
    json!({"nodeName": name(at), "nodeUID": uid(at), "capturedAt": "2026-11-27T10:00:00Z", "revision": 3, "labels": labels,
        "owned": {
            "labels": {"node-role.kubernetes.io/gpu": "", "tier": "gold", "example.com/team": "ml", "example.com/gpu": "h100"},
            "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
        "publishers": ["gpu-feature-discovery"], "restoreToken": format!("{at:032x}"), "history": vec![change; 10]})
}

/// The record of a node with a label that nodegate owns, whose pool was proven so.
fn record(at: usize, source: &str) -> SavedState {
    let user = format!("user=system:node:{}", name(at));
    let (group, object) = match source {
        "Machine" => ("cluster.x-k8s.io", format!("fleet/{}", machine_name(at))),
        _ => ("karpenter.sh", claim(at)),
    };
    let object = json!({"group": group, "kind": source, "name": object, "uid": uid(at),
        "providerID": provider_id(at), "labels": {"example.com/pool": "gpu-h100"}});
    let (lines, proof) = match source {
        "requester" => (format!("group=pool:gpu-h100\n{user}"), json!({})),
        "bootstrap" => {
            let certificate = format!("{at:064x}");
            let bootstrap = json!({"user": "system:bootstrap:abcdef", "groups": ["system:bootstrappers:pool-gpu-h100"],
                "certificates": [certificate]});
            let line = format!("extra.authentication.kubernetes.io/credential-id=X509SHA256={certificate}\n{user}");
            (line, json!({"bootstrappedBy": [bootstrap]}))
        }
        "NodeClaim" => (
            format!("extra.sessionName={}\n{user}", instance(at)),
            json!({"provisionedBy": [object], "provisionedFor": uid(at)}),
        ),
        "Machine" => {
            (format!("no-extra.sessionName\n{user}"), json!({"provisionedBy": [object], "provisionedFor": uid(at)}))
        }
        _ => (String::new(), json!({})),
    };
    let mut record = json!({"nodeName": name(at), "nodeUID": uid(at), "revision": 2,
        "owned": {"labels": {"node-role.kubernetes.io/gpu": ""}}});
    let fields = record.as_object_mut().expect("an object");
    if !lines.is_empty() {
        fields.insert("authenticatedAs".to_owned(), json!(lines));
    }
    fields.extend(proof.as_object().cloned().unwrap_or_default());
    // Read as text, as from a ConfigMap: lists grow as they are read.
    serde_json::from_str(&record.to_string()).expect("a record")
}
