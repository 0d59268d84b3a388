//! Servers that do the same work: four labels and a taint for a node that its kubelet creates.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::engines::engines;
use super::load::Client;
use super::process::{Server, free_address, nodegate_command};
use super::responder::{self, Listener};
use super::review;

/// The labels that every node `bench-…` in pool `gpu` gets. `benches/peers` gives the same.
pub(crate) const LABELS: [(&str, &str); 4] =
    [("hardware.tier", "gold"), ("team", "platform"), ("accelerator", "nvidia-gpu"), ("pooled", "true")];
/// The key of the taint that it gets.
pub(crate) const TAINT: &str = "dedicated";
/// The first answer must come within this time.
const START: Duration = Duration::from_secs(60);

/// A policy with `count` rules: those of [`LABELS`] and [`TAINT`], and others that do not match.
pub(crate) fn policy(count: usize) -> String {
    let mut rules = vec![
        json!({"name": "m0", "match": {"names": ["bench-*"]}, "labels": {"hardware.tier": "gold"}}),
        json!({"name": "m1", "match": {"names": ["bench-*"]}, "labels": {"team": "platform"}}),
        json!({"name": "m2", "match": {"selector": {"matchLabels": {"pool": "gpu"}}}, "labels": {"accelerator": "nvidia-gpu"}}),
        json!({"name": "m3", "match": {"selector": {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}}, "labels": {"pooled": "true"}}),
        json!({"name": "m4", "match": {"names": ["bench-*"]}, "taints": [{"key": TAINT, "value": "gpu", "effect": "NoSchedule"}]}),
    ];
    rules.extend((rules.len()..count).map(
        |at| json!({"name": format!("r{at}"), "match": {"names": [format!("rack-{at}-*")]}, "labels": {format!("label-{at}"): "x"}}),
    ));
    json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "bench"}, "spec": {"rules": rules}}).to_string()
}

/// What an answer must contain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gives {
    /// The four labels and the taint.
    Everything,
    /// Nothing: the review is allowed.
    Nothing,
}

/// The command that starts a server at an address.
pub(crate) type StartAt = Box<dyn Fn(&str) -> Command>;

/// A server under measurement.
pub(crate) struct Peer {
    /// The label value that selects it, in the cluster.
    pub(crate) key: &'static str,
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) gives: Gives,
    pub(crate) command: StartAt,
}

impl Peer {
    pub(crate) fn start(&self, address: &str) -> Server {
        let mut command = (self.command)(address);
        Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started"))
    }

    /// Starts it and asks until the answer is right: the server, its address, and how long that took.
    pub(crate) async fn start_until_right(&self, ca: &Path) -> (Server, String, Duration) {
        let address = free_address();
        let started = Instant::now();
        let server = self.start(&address);
        let client = Client::new(&address, self.path, ca);
        while !self.is_right(&client).await {
            assert!(started.elapsed() < START, "{} gives no right answer within {START:?}", self.name);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        (server, address, started.elapsed())
    }

    async fn is_right(&self, client: &Client) -> bool {
        let body = review::kubelet_create("bench-node");
        match client.once(body.into()).await {
            Some(answer) if answer.status.is_success() => gives(&answer.body) == Some(self.gives),
            _ => false,
        }
    }
}

/// What the answer to the review of a kubelet's CREATE does to the node; `None` if that is neither of both.
pub(crate) fn gives(answer: &[u8]) -> Option<Gives> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let response = &answer["response"];
    if response["allowed"] != json!(true) {
        return None;
    }
    let review: Value = serde_json::from_slice(&review::kubelet_create("bench-node")).ok()?;
    let mut node = review["request"]["object"].clone();
    if let Some(patch) = response["patch"].as_str() {
        let patch: json_patch::Patch = serde_json::from_slice(&BASE64_STANDARD.decode(patch).ok()?).ok()?;
        json_patch::patch(&mut node, &patch).ok()?;
    }
    given(&node)
}

/// What a node has of the labels and the taint.
pub(crate) fn given(node: &Value) -> Option<Gives> {
    let has = |(key, value): &(&str, &str)| node["metadata"]["labels"][key] == json!(value);
    let labels = LABELS.iter().filter(|label| has(label)).count();
    let tainted = node["spec"]["taints"].as_array().into_iter().flatten().any(|taint| taint["key"] == json!(TAINT));
    match (labels, tainted) {
        (4, true) => Some(Gives::Everything),
        (0, false) => Some(Gives::Nothing),
        _ => None,
    }
}

/// The peers that can be started here, and a line about each of the others.
pub(crate) fn peers(
    certs: &Path,
    directory: &Path,
    patch: &str,
    plane: Option<&ControlPlane>,
) -> (Vec<Peer>, Vec<String>) {
    let responder = |listener: Listener, patch: &str| {
        let (certs, patch) = (certs.to_owned(), patch.to_owned());
        Box::new(move |address: &str| responder::command(listener, &certs, address, &patch)) as StartAt
    };
    let peer = |key, name, gives, command| Peer { key, name, path: "/mutate", gives, command };
    let mut peers = vec![
        peer("allowed", "TLS responder, \"allowed\"", Gives::Nothing, responder(Listener::Nodegates, "")),
        peer(
            "hyper",
            "hyper alone, constant patch",
            Gives::Everything,
            responder(Listener::Bare { tickets: 2 }, patch),
        ),
        peer("responder", "static responder, constant patch", Gives::Everything, responder(Listener::Nodegates, patch)),
        peer("nodegate", "nodegate, 5 rules", Gives::Everything, nodegate(certs, directory, 5)),
        peer("nodegate-100", "nodegate, 100 rules", Gives::Everything, nodegate(certs, directory, 100)),
    ];
    let mut absent = Vec::new();
    match built("controller-runtime") {
        Ok(program) => {
            let certs = certs.to_owned();
            let command = move |address: &str| {
                let mut command = Command::new(&program);
                command.args(["--listen", address, "--cert-dir"]).arg(&certs);
                command
            };
            peers.push(peer(
                "controller-runtime",
                "controller-runtime webhook, Go",
                Gives::Everything,
                Box::new(command),
            ));
        }
        Err(line) => absent.push(line),
    }
    let (started, missing) = engines(certs, plane);
    peers.extend(started);
    absent.extend(missing);
    (peers, absent)
}

/// nodegate with `rules` rules, as a command for an address.
pub(crate) fn nodegate(certs: &Path, directory: &Path, rules: usize) -> StartAt {
    let file = directory.join(format!("policy-{rules}.yaml"));
    std::fs::write(&file, policy(rules)).expect("written");
    let certs = certs.to_owned();
    Box::new(move |address| nodegate_command(&certs, &file, address))
}

/// A program of `benches/peers`, or a line that says how to build it.
pub(crate) fn built(name: &str) -> Result<PathBuf, String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/build");
    let output = Command::new(script).arg("--print-dir").output().map_err(|error| format!("{script}: {error}"))?;
    let program = Path::new(String::from_utf8_lossy(&output.stdout).trim()).join(name);
    if program.is_file() {
        return Ok(program);
    }
    Err(format!("{name} is left out, because it is not built; `just bench-peers {name}` builds it and runs this again"))
}
