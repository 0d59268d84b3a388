//! CREATEs of kubelets at the real API server, each kind of node for another webhook, in alternating rounds.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kube::api::{Api, DeleteParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::control_plane::{self, ControlPlane};
use super::load::cpu_seconds;
use super::peer::{self, Gives};
use super::{Alone, review};

/// The kind of node that no webhook is called for.
pub(crate) const NONE: &str = "none";
/// The kind of node that the API server itself changes.
pub(crate) const NATIVE: &str = "native";
/// Clients at the same time, CREATEs of each in a round, and rounds.
const LOADS: [(usize, usize, usize); 3] = [(1, 1, 250), (8, 10, 8), (64, 4, 4)];

/// How a row is called that is no server.
pub(crate) fn name(key: &str) -> &str {
    if key == NATIVE { "native MutatingAdmissionPolicy" } else { "no webhook" }
}

/// One kind of node, and what its CREATEs took.
struct Kind {
    key: &'static str,
    gives: Gives,
    times: Vec<f64>,
    /// CPU time of the API server.
    cpu: f64,
}

impl Kind {
    fn new(key: &'static str, gives: Gives) -> Self {
        Self { key, gives, times: Vec::new(), cpu: 0.0 }
    }

    fn quantile(&self, share: f64) -> f64 {
        self.times[((self.times.len() - 1) as f64 * share) as usize]
    }

    fn cpu_of_one(&self) -> f64 {
        self.cpu / self.times.len() as f64 * 1e3
    }
}

/// What so many clients at the same time measured.
pub(crate) struct Column {
    pub(crate) title: String,
    /// Whether the CPU time of the API server is told: for single CREATEs its clock is too coarse.
    has_cpu: bool,
    kinds: Vec<Kind>,
}

impl Column {
    /// What a webhook adds to a CREATE; for [`NONE`] the CREATE itself.
    pub(crate) fn cell(&self, key: &str) -> String {
        let of = |key: &str| self.kinds.iter().find(|kind| kind.key == key);
        let (Some(kind), Some(none)) = (of(key), of(NONE)) else { return String::new() };
        let (mut p50, mut p99, mut cpu) = (kind.quantile(0.50), kind.quantile(0.99), kind.cpu_of_one());
        let mut sign = "";
        if key != NONE {
            (p50, p99, cpu, sign) =
                (p50 - none.quantile(0.50), p99 - none.quantile(0.99), cpu - none.cpu_of_one(), "+");
        }
        let signed = |value: f64| if value < 0.0 { format!("{value:.2}") } else { format!("{sign}{value:.2}") };
        let times = format!("{} / {} ms", signed(p50), signed(p99));
        if self.has_cpu { format!("{times}, {} ms", signed(cpu)) } else { times }
    }
}

/// Registers all of them and measures each load.
pub(crate) fn measure(
    runtime: &Runtime,
    plane: &ControlPlane,
    alone: &[Alone],
    certs: &Path,
    directory: &Path,
) -> Vec<Column> {
    for Alone { peer, address, .. } in alone {
        register(plane, peer.key, &format!("https://{address}{}", peer.path), &certs.join("ca.crt"));
    }
    let policy = directory.join("native.yaml");
    std::fs::write(&policy, peer::policy(5)).expect("written");
    register_native(plane, &policy);
    let kinds = || {
        let others = alone.iter().map(|alone| Kind::new(alone.peer.key, alone.peer.gives));
        [Kind::new(NONE, Gives::Nothing), Kind::new(NATIVE, Gives::Everything)].into_iter().chain(others).collect()
    };
    runtime.block_on(async {
        let most = LOADS.iter().map(|(clients, ..)| *clients).max().unwrap_or_default();
        let mut fleet = Fleet::connect(plane, most).await;
        fleet.wait_for(&mut kinds()).await;
        let mut columns = Vec::new();
        for (clients, each, rounds) in LOADS {
            columns.push(fleet.load(kinds(), clients, each, rounds).await);
        }
        columns
    })
}

/// The mutating configuration as nodegate renders it, for nodes with the label `bench: KEY` only.
fn register(plane: &ControlPlane, key: &str, url: &str, ca: &Path) {
    let mut render = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    render.args(["render", "webhooks", "--url", "https://127.0.0.1", "--ca-file"]).arg(ca);
    let text = control_plane::run(&mut render, None).expect("rendered");
    let trees = nodegate_policy::api::source::parse_documents(&text).expect("YAML");
    let mut configuration = trees
        .into_iter()
        .map(|tree| tree.to_json())
        .find(|document| document["kind"] == "MutatingWebhookConfiguration")
        .expect("a mutating configuration");
    configuration["metadata"]["name"] = json!(format!("bench-{key}"));
    configuration["webhooks"][0]["objectSelector"] = json!({"matchLabels": {"bench": key}});
    configuration["webhooks"][0]["clientConfig"]["url"] = json!(url);
    plane.kubectl(&["apply", "-f", "-"], Some(&configuration.to_string())).expect("registered");
}

/// What `nodegate export admission-policies` makes of the policy, for nodes with the label `bench: native` only.
fn register_native(plane: &ControlPlane, policy: &Path) {
    let mut export = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    export.args(["export", "admission-policies", "-o", "json", "--self-user", "nobody", "--policy"]).arg(policy);
    let mut list: Value =
        serde_json::from_str(&control_plane::run(&mut export, None).expect("exported")).expect("JSON");
    for object in list["items"].as_array_mut().expect("objects") {
        if object["spec"]["matchConstraints"].is_object() {
            object["spec"]["matchConstraints"]["objectSelector"] = json!({"matchLabels": {"bench": NATIVE}});
        }
    }
    plane.kubectl(&["apply", "-f", "-"], Some(&list.to_string())).expect("registered");
}

fn nodes(client: kube::Client) -> Api<DynamicObject> {
    Api::all_with(client, &ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()))
}

fn node(kind: &str, name: &str) -> DynamicObject {
    let review: Value = serde_json::from_slice(&review::kubelet_create(name)).expect("JSON");
    let mut node = review["request"]["object"].clone();
    node["metadata"]["labels"]["bench"] = json!(kind);
    node["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    serde_json::from_value(node).expect("a node")
}

/// Kubelets with a connection each, and an administrator who deletes what they create.
struct Fleet {
    kubelets: Vec<(String, Api<DynamicObject>)>,
    admin: Api<DynamicObject>,
    api_server: u32,
}

impl Fleet {
    async fn connect(plane: &ControlPlane, count: usize) -> Self {
        let mut kubelets = Vec::new();
        for at in 0..count {
            let name = format!("bench-node-{at}");
            let user = format!("system:node:{name}");
            let api = nodes(plane.client(Some((&user, &["system:nodes", "system:authenticated"]))).await);
            // The first request of a connection pays for its handshake.
            let _ = api.get_opt(&name).await;
            kubelets.push((name, api));
        }
        Self { kubelets, admin: nodes(plane.client(None).await), api_server: plane.processes()[0] }
    }

    /// Waits until the API server knows all configurations: it learns of them by watch.
    async fn wait_for(&mut self, kinds: &mut Vec<Kind>) {
        let deadline = Instant::now() + Duration::from_secs(30);
        for kind in kinds {
            loop {
                let (_, given) = self.create(0, kind.key).await;
                if given == Some(kind.gives) {
                    break;
                }
                assert!(Instant::now() < deadline, "CREATE of a node for {} gives something else", kind.key);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// One CREATE by one kubelet: how long it took, and what the node got.
    async fn create(&self, at: usize, kind: &str) -> (Duration, Option<Gives>) {
        let (name, kubelet) = &self.kubelets[at];
        let object = node(kind, name);
        let start = Instant::now();
        let created = kubelet.create(&PostParams::default(), &object).await.expect("created");
        let time = start.elapsed();
        self.admin.delete(name, &DeleteParams::default()).await.expect("deleted");
        (time, peer::given(&serde_json::to_value(created).expect("JSON")))
    }

    async fn load(&mut self, mut kinds: Vec<Kind>, clients: usize, each: usize, rounds: usize) -> Column {
        // The first rounds warm up all ends.
        let warm = rounds / 10 + 1;
        for round in 0..rounds + warm {
            for kind in &mut kinds {
                let cpu = cpu_seconds(self.api_server);
                let created = futures_util::future::join_all((0..clients).map(async |at| {
                    let mut times = Vec::new();
                    for _ in 0..each {
                        let (time, given) = self.create(at, kind.key).await;
                        assert!(given == Some(kind.gives), "CREATE of a node for {} gives something else", kind.key);
                        times.push(time.as_secs_f64() * 1e3);
                    }
                    times
                }));
                let created = created.await;
                if round >= warm {
                    kind.cpu += cpu_seconds(self.api_server) - cpu;
                    kind.times.extend(created.into_iter().flatten());
                }
            }
        }
        kinds.iter_mut().for_each(|kind| kind.times.sort_by(f64::total_cmp));
        let title = match clients {
            1 => "CREATE alone, p50 / p99".to_owned(),
            clients => format!("{clients} clients, p50 / p99, API server's CPU"),
        };
        Column { title, has_cpu: clients > 1, kinds }
    }
}
