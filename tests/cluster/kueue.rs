//! Gangs wait while the nodes of four racks join at once, with Kueue, the scheduler and the policy of the guide about topologies:
//! `just kueue`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures_util::{StreamExt as _, stream};
use hyper::Method;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Resource};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::autoscaling::kubelets;
use super::commands::run;
use super::control_plane::{Component, ControlPlane, exclusive, free_port};
use super::guard::Guard;
use super::keeping::until_led;
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, join};
use super::requester::Requester;
use crate::authority::Authority;
use crate::cmdb::Cmdb;
use crate::eventually::{eventually, holds};
use crate::shared::guides::block;

const BLOCK: &str = "fabric.example.com/block";
const RACK: &str = "fabric.example.com/rack";
/// Nodes of a rack; two racks are a block.
const OF_RACK: usize = 8;
const NODES: usize = 4 * OF_RACK;
/// Pods of a gang, each as large as a node: a block of them.
const GANG: usize = NODES / 2;

/// Kueue's controller.
struct Kueue {
    _program: Component,
    directory: TempDir,
}

impl Kueue {
    fn start(plane: &ControlPlane) -> Self {
        let installed = PathBuf::from(std::env::var_os("NODEGATE_KUEUE").expect("set NODEGATE_KUEUE: just kueue"));
        plane.define(&installed.join("crds"));
        let directory = TempDir::with_prefix("nodegate-kueue-").unwrap();
        let path = |name: &str| directory.path().join(name);
        let identity = Authority::new("kueue CA").sign("kueue", |_| {});
        std::fs::write(path("tls.crt"), identity.certificate).unwrap();
        std::fs::write(path("tls.key"), identity.key).unwrap();
        let config = json!({
            "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "namespace": "kube-system",
            "health": {"healthProbeBindAddress": format!("127.0.0.1:{}", free_port())},
            "metrics": {"bindAddress": format!("127.0.0.1:{}", free_port())},
            "webhook": {"host": "127.0.0.1", "port": free_port(), "certDir": directory.path()},
            "leaderElection": {"leaderElect": false}, "internalCertManagement": {"enable": false},
            "integrations": {"frameworks": ["batch/job"]}, "featureGates": {"VisibilityOnDemand": false},
        });
        std::fs::write(path("config.yaml"), config.to_string()).unwrap();
        let program = plane.program(&installed.join("kueue"), &path("log"), |command| {
            command.arg("--config").arg(path("config.yaml"));
        });
        Self { _program: program, directory }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

/// What the API server stored, by its resource versions.
#[derive(Default)]
struct Seen {
    /// Since when each node has had all levels.
    complete: BTreeMap<String, u64>,
    /// On which node each pod has been, and since when.
    bound: BTreeMap<String, (String, u64)>,
}

fn version(object: &impl Resource) -> u64 {
    object.meta().resource_version.as_deref().unwrap().parse().unwrap()
}

/// Looks on, in the order in which things were stored.
async fn look_on(plane: &ControlPlane, seen: &Arc<Mutex<Seen>>) -> JoinSet<()> {
    let client = plane.client(None).await;
    let (nodes, pods) = (Api::<Node>::all(client.clone()), Api::<Pod>::all(client));
    let mut tasks = JoinSet::new();
    let of_nodes = Arc::clone(seen);
    tasks.spawn(async move {
        let mut events = std::pin::pin!(watcher(nodes, Config::default()));
        while let Some(event) = events.next().await {
            let Ok(Event::Apply(node) | Event::InitApply(node)) = event else { continue };
            let labels = node.metadata.labels.clone().unwrap_or_default();
            if labels.contains_key(BLOCK) && labels.contains_key(RACK) {
                let name = node.metadata.name.clone().unwrap();
                of_nodes.lock().unwrap().complete.entry(name).or_insert_with(|| version(&node));
            }
        }
    });
    let of_pods = Arc::clone(seen);
    tasks.spawn(async move {
        let mut events = std::pin::pin!(watcher(pods, Config::default()));
        while let Some(event) = events.next().await {
            let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event else { continue };
            let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else { continue };
            let name = pod.metadata.name.clone().unwrap();
            of_pods.lock().unwrap().bound.entry(name).or_insert_with(|| (node, version(&pod)));
        }
    });
    tasks
}

impl Seen {
    /// Whether all pods are bound that are in no gang.
    fn others_are_bound(&self) -> bool {
        self.bound.keys().filter(|pod| pod.starts_with("others-")).count() == NODES
    }

    /// The pods that were bound to a node before it had all levels.
    fn too_early(&self) -> Vec<&str> {
        let is_early = |(node, since): &(String, u64)| self.complete.get(node).is_none_or(|complete| complete > since);
        self.bound.iter().filter(|(_, bound)| is_early(bound)).map(|(pod, _)| pod.as_str()).collect()
    }
}

/// What is there in both trials.
struct Running<'a> {
    plane: &'a ControlPlane,
    kueue: Kueue,
    cmdb: Cmdb,
    _scheduler: Component,
    _controllers: Component,
    _kubelets: JoinSet<()>,
}

fn name(at: usize) -> String {
    format!("gpu-{at}")
}

fn place(at: usize) -> (String, String) {
    (format!("b{}", at / (2 * OF_RACK)), format!("r{}", at / OF_RACK))
}

impl<'a> Running<'a> {
    async fn start(plane: &'a ControlPlane) -> Self {
        let kueue = Kueue::start(plane);
        let cmdb = Cmdb::start();
        // Of the last rack, the inventory knows nothing.
        let line = |at| {
            let (block, rack) = place(at);
            format!("{},{block},{rack}\n", name(at))
        };
        let table: String = (0..NODES - OF_RACK).map(line).collect();
        cmdb.answer("/racks.csv", Some(&format!("name,block,rack\n{table}")));
        let resources = json!({"resources": [{"name": "cpu", "nominalQuota": 1000}], "name": "gpu"});
        let groups = json!([{"coveredResources": ["cpu"], "flavors": [resources]}]);
        let queues = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "all"},
                "spec": {"namespaceSelector": {}, "resourceGroups": groups}},
            {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
                "metadata": {"name": "all", "namespace": "default"}, "spec": {"clusterQueue": "all"}}]});
        for objects in [block("topology", "kind: Topology"), queues.to_string()] {
            plane.kubectl(&["apply", "-f", "-"], Some(&objects)).unwrap();
        }
        eventually("Kueue's queue is active", async || {
            let path = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/all";
            let queue: Value = serde_json::from_str(&plane.ask(Method::GET, path, None).unwrap()).unwrap();
            let active = |one: &Value| one["type"] == "Active" && one["status"] == "True";
            let is_active = queue["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(active));
            holds(is_active, || format!("{queue:#}\n{}", kueue.log()))
        })
        .await;
        let controllers = plane.component("kube-controller-manager", &["--controllers=job-controller"]);
        let scheduler = plane.component("kube-scheduler", &[]);
        let kubelets = kubelets(plane).await;
        Self { plane, kueue, cmdb, _scheduler: scheduler, _controllers: controllers, _kubelets: kubelets }
    }

    /// A gang that needs a block, and pods that take what they find, one a node.
    fn workloads(&self) {
        let container = |cpu: &str, port: Value| json!({"name": "c", "image": "none", "ports": port, "resources": {"requests": {"cpu": cpu}}});
        let gang = |name: &str| {
            json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "all"}},
            "spec": {"suspend": true, "parallelism": GANG, "completions": GANG, "template": {
                "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": BLOCK}},
                "spec": {"restartPolicy": "Never", "containers": [container("3", json!([]))]}}}})
        };
        let others = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "others"},
            "spec": {"parallelism": NODES, "completions": NODES, "template": {"spec": {"restartPolicy": "Never",
                "containers": [container("1", json!([{"containerPort": 9999, "hostPort": 9999}]))]}}}});
        let all = json!({"apiVersion": "v1", "kind": "List", "items": [gang("one"), gang("other"), others]});
        self.plane.kubectl(&["apply", "-f", "-"], Some(&all.to_string())).unwrap();
    }

    /// The CREATE of every node, all at once.
    async fn join(&self) {
        let each = |at| {
            let resources = json!({"cpu": "4", "memory": "16Gi", "pods": "10"});
            let labels = json!({"node-class": "gpu", "kubernetes.io/hostname": name(at)});
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name(at), "labels": labels},
                "status": {"capacity": resources, "allocatable": resources}});
            async move { join(self.plane, &node, Credential::default(), false).await.unwrap() }
        };
        stream::iter(0..NODES).map(each).buffer_unordered(NODES).collect::<Vec<_>>().await;
    }

    /// What another program does for the last rack: one level, and some time later the other.
    async fn label_last_rack(&self) {
        let admin = Requester::admin(self.plane).await;
        for at in NODES - OF_RACK..NODES {
            let (block, rack) = place(at);
            admin.label(&name(at), BLOCK, json!(block)).await.unwrap();
            admin.label(&name(at), RACK, json!(rack)).await.unwrap();
        }
    }

    /// Lets the nodes join while the gangs wait, and returns how many pods came too early.
    async fn trial(&self, policy: &str, until: impl Fn(&Seen) -> bool) -> usize {
        let directory = TempDir::with_prefix("nodegate-topology-").unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let here = policy.replace("https://inventory.internal", &format!("https://127.0.0.1:{}", self.cmdb.port));
        std::fs::write(path("policy.yaml"), here).unwrap();
        self.cmdb.credentials(Path::new(&path("credentials")), "racks");
        let serve = ["--inventory-credentials", &path("credentials"), "--writes-per-second", "1000"];
        let policies = [path("policy.yaml")];
        let policies = [policies[0].as_str()];
        let setup = Setup {
            policies: &policies,
            serve: &serve,
            environment: &[("NO_PROXY", "*")],
            cluster: true,
            ..Setup::default()
        };
        let mut nodegate = Nodegate::start(self.plane, &setup);
        until_led(&nodegate).await;
        nodegate
            .eventually("the inventory has answered", || {
                let known =
                    format!("nodegate_inventory_nodes{{policy=\"topology\",inventory=\"racks\"}} {}", NODES - OF_RACK);
                nodegate.probe("/metrics").is_some_and(|metrics| metrics.contains(&known))
            })
            .await;
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let _watches = look_on(self.plane, &seen).await;
        self.workloads();
        self.join().await;
        eventually("some pods are bound", async || {
            let seen = seen.lock().unwrap();
            holds(until(&seen), || format!("{} pods are", seen.bound.len()))
        })
        .await;
        self.label_last_rack().await;
        let all = NODES + 2 * GANG;
        eventually("all pods are bound", async || {
            let bound = seen.lock().unwrap().bound.len();
            holds(bound == all, || format!("{bound} of {all} pods are bound\n{}", self.kueue.log()))
        })
        .await;
        let plan = run(self.plane, None, &["plan", "--namespace", &nodegate.namespace]).with(0);
        assert!(!plan.contains("Kueue"), "{plan}");
        nodegate.terminate();
        let seen = seen.lock().unwrap();
        seen.too_early().len()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Kueue: just kueue"]
async fn no_pod_comes_to_a_node_before_its_place_is_known() {
    let cluster = exclusive();
    let running = Running::start(cluster.plane).await;
    let _guard = Guard::install(cluster.plane, &[]);
    let early = running.trial(&block("topology", "topologies:"), |seen| seen.bound.len() >= NODES - OF_RACK).await;
    println!("with a topology, {early} of {} pods came before the place of their node was known", NODES + 2 * GANG);
    assert_eq!(early, 0);
}

/// Otherwise the test above could not fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Kueue: just kueue"]
async fn without_a_topology_pods_take_every_node_at_once() {
    let cluster = exclusive();
    let running = Running::start(cluster.plane).await;
    let whole = block("topology", "topologies:");
    let (policy, _) = whole.split_once("  topologies:").unwrap();
    let early = running.trial(policy, Seen::others_are_bound).await;
    println!("without a topology, {early} of {} pods came before the place of their node was known", NODES + 2 * GANG);
    assert_eq!(early, OF_RACK, "one for each node of which the inventory knows nothing");
}
