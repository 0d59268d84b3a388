//! Cluster Autoscaler launches machines for pods that need what nodegate adds, with nodegate and without it: `just cluster-autoscaler`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::autoscaling::{ACCELERATORS, Demand, bursts, kubelets, policy_of, run_of, setup};
use super::control_plane::{Component, ControlPlane, exclusive, free_port};
use super::guard::Guard;
use super::keeping::{config_maps, is_pending, until_led, until_published};
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, join};
use super::requester::Requester;
use crate::eventually::{eventually, for_a_while, holds};

const GUIDE: &str = "cluster-autoscaler";
/// How long a burst may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// Cluster Autoscaler, and a cloud with two node groups.
struct Cloud<'a> {
    plane: &'a ControlPlane,
    directory: TempDir,
    provider: u16,
    pods: Api<Pod>,
    nodes: Api<Node>,
    autoscaler: Mutex<Option<Component>>,
    _provider: Component,
    _scheduler: Component,
    _kubelets: JoinSet<()>,
}

fn installed(name: &str) -> PathBuf {
    let set = std::env::var_os("NODEGATE_CLUSTER_AUTOSCALER");
    PathBuf::from(set.expect("set NODEGATE_CLUSTER_AUTOSCALER: just cluster-autoscaler")).join(name)
}

/// What the provider says about the next node of each group.
fn tell(directory: &Path, templates: &Value) {
    let group = |id| json!({"id": id, "max": 2000, "labels": {}, "template": templates[id]});
    std::fs::write(directory.join("groups.new"), json!(ACCELERATORS.map(group)).to_string()).unwrap();
    std::fs::rename(directory.join("groups.new"), directory.join("groups.json")).unwrap();
}

impl<'a> Cloud<'a> {
    async fn start(plane: &'a ControlPlane) -> Self {
        let directory = TempDir::with_prefix("nodegate-cluster-autoscaler-").unwrap();
        let client = plane.client(None).await;
        let provider = free_port();
        let groups = directory.path().join("groups.json");
        tell(directory.path(), &json!({"h100": {}, "l4": {}}));
        let log = directory.path().join("provider.log");
        let started = plane.program(&installed("provider"), &log, |command| {
            command.arg(format!("127.0.0.1:{provider}")).arg(groups);
        });
        Self {
            plane,
            pods: Api::namespaced(client.clone(), "default"),
            nodes: Api::all(client),
            provider,
            autoscaler: Mutex::new(None),
            _provider: started,
            _scheduler: plane.component("kube-scheduler", &[]),
            _kubelets: kubelets(plane).await,
            directory,
        }
    }

    /// Starts Cluster Autoscaler anew: it remembers the groups that had a node.
    fn restart(&self) {
        let config = self.directory.path().join("cloud.json");
        std::fs::write(&config, json!({"address": format!("127.0.0.1:{}", self.provider)}).to_string()).unwrap();
        let arguments = [
            "--cloud-provider=externalgrpc".to_owned(),
            format!("--cloud-config={}", config.display()),
            format!("--kubeconfig={}", self.plane.kubeconfig_file("cluster-autoscaler", None).display()),
            format!("--address=127.0.0.1:{}", free_port()),
            "--leader-elect=false".to_owned(),
            "--scan-interval=2s".to_owned(),
            "--scale-down-delay-after-add=10s".to_owned(),
            "--scale-down-unneeded-time=5s".to_owned(),
            "--max-scale-down-parallelism=1000".to_owned(),
        ];
        let mut autoscaler = self.autoscaler.lock().unwrap();
        *autoscaler = None;
        let log = self.directory.path().join("cluster-autoscaler.log");
        *autoscaler = Some(self.plane.program(&installed("cluster-autoscaler"), &log, |command| {
            command.args(arguments);
        }));
    }

    async fn node_names(&self) -> BTreeSet<String> {
        let nodes = self.nodes.list(&ListParams::default()).await.unwrap();
        nodes.items.into_iter().filter_map(|node| node.metadata.name).collect()
    }

    fn demand(&self, needs_label: bool) -> Demand {
        Demand { pods: self.pods.clone(), needs_label, bursts: bursts(), patience: PATIENCE }
    }

    async fn run(&self, demand: &Demand, after_first: impl AsyncFn()) -> Outcome {
        let seen = demand.run(async || self.node_names().await, after_first).await;
        let left = self.node_names().await.len();
        Outcome { launched: seen.len(), bound: demand.bound().await, removed: seen.len() - left }
    }

    /// No pod is left, and Cluster Autoscaler has removed every node.
    async fn clear(&self) {
        self.plane.kubectl(&["delete", "pods", "--all", "--grace-period=0", "--force"], None).unwrap();
        eventually("no node is left", async || {
            let left = self.node_names().await;
            holds(left.is_empty(), || format!("{} nodes", left.len()))
        })
        .await;
    }

    /// Lets one node of each group join, and tells the cloud the tags that come from it.
    async fn tell_what_is_exported(&self, namespace: &str) {
        until_published(&config_maps(self.plane, namespace).await).await;
        let admin = Requester::admin(self.plane).await;
        for group in ACCELERATORS {
            let seed = format!("{group}-seed");
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": seed}});
            join(self.plane, &node, Credential::default(), false).await.unwrap();
            // One that waits says nothing about the next one.
            admin.eventually(&seed, "it waits no more", |node| !is_pending(node)).await;
        }
        let templates = self.exported(namespace);
        self.plane.kubectl(&["delete", "nodes", "--all"], None).unwrap();
        tell(self.directory.path(), &templates);
    }

    /// What `nodegate export autoscaler` prints as tags of the groups, as the provider of AWS reads them. Groups with these tags pass the
    /// check of the guide.
    fn exported(&self, namespace: &str) -> Value {
        let export = "kubectl nodegate export autoscaler --format asg-tags -o json";
        let tags: Value = serde_json::from_str(&run_of(self.plane, GUIDE, export, namespace, &[])).unwrap();
        let described = |(group, tags): (&String, &Value)| {
            let tags = tags.as_object().unwrap().iter().map(|(key, value)| json!({"Key": key, "Value": value}));
            json!({"AutoScalingGroupName": group, "Tags": tags.collect::<Vec<_>>()})
        };
        let groups: Vec<Value> = tags.as_object().unwrap().iter().map(described).collect();
        let file = self.directory.path().join("groups.json");
        std::fs::write(&file, json!({"AutoScalingGroups": groups}).to_string()).unwrap();
        let check = "kubectl nodegate export autoscaler --format asg-tags --groups";
        run_of(self.plane, GUIDE, check, namespace, &[("groups.json", &file)]);
        let template = |group: &str| {
            let (mut labels, mut taints) = (Map::new(), Vec::new());
            for (tag, value) in tags[group].as_object().unwrap_or_else(|| panic!("{tags:#}")) {
                let tag = tag.strip_prefix("k8s.io/cluster-autoscaler/node-template/").unwrap();
                match tag.split_once('/').unwrap() {
                    ("label", key) => drop(labels.insert(key.to_owned(), value.clone())),
                    ("taint", key) => {
                        let (value, effect) = value.as_str().unwrap().split_once(':').unwrap();
                        taints.push(json!({"key": key, "value": value, "effect": effect}));
                    }
                    other => panic!("{other:?}"),
                }
            }
            (group.to_owned(), json!({"labels": labels, "taints": taints}))
        };
        ACCELERATORS.map(template).into_iter().collect::<Map<_, _>>().into()
    }
}

/// What came of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    launched: usize,
    bound: usize,
    removed: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cluster Autoscaler: just cluster-autoscaler"]
async fn cluster_autoscaler_launches_what_it_launches_without_nodegate() {
    let cluster = exclusive();
    let (plane, cloud) = (cluster.plane, Cloud::start(cluster.plane).await);
    let demand = cloud.demand(false);
    let right = Outcome { launched: demand.expected(), bound: demand.expected(), removed: 0 };

    cloud.restart();
    let without = cloud.run(&demand, async || {}).await;
    println!("without nodegate: {without:?}");
    cloud.clear().await;

    let _guard = Guard::install(plane, &[]);
    let policy = policy_of(GUIDE, |text| text);
    let policies = [policy.path().to_str().unwrap()];
    let leader = Nodegate::start(plane, &Setup { unregistered: true, ..setup(&policies) });
    until_led(&leader).await;
    let namespace = leader.namespace.clone();
    let mut other = Nodegate::start(plane, &Setup { namespace: Some(&namespace), ..setup(&policies) });
    other.until_nodes_are_younger().await;
    let demand = cloud.demand(true);

    // Tags that do not say what nodegate adds.
    cloud.restart();
    demand.burst(0, 1).await;
    for_a_while(Duration::from_secs(20)).await;
    let untold = cloud.node_names().await.len();
    println!("without the tags of `export autoscaler`: {untold} machines");
    assert_eq!(untold, 0);

    plane.kubectl(&["delete", "pods", "--all", "--grace-period=0", "--force"], None).unwrap();
    cloud.tell_what_is_exported(&namespace).await;
    cloud.restart();
    let with = cloud.run(&demand, async || {}).await;
    println!("with nodegate: {with:?}");
    cloud.clear().await;

    cloud.restart();
    let again = async || {
        for_a_while(Duration::from_secs(3)).await;
        cloud.restart();
    };
    let restarted = cloud.run(&demand, again).await;
    println!("Cluster Autoscaler is restarted during the first burst: {restarted:?}");
    cloud.clear().await;

    cloud.restart();
    let leader = Mutex::new(leader);
    let dead = cloud.run(&demand, async || leader.lock().unwrap().kill()).await;
    println!("the leader dies during the first burst: {dead:?}");
    cloud.clear().await;
    other.terminate();
    assert_eq!((without, with, restarted, dead), (right, right, right, right));
}

/// Lets nodes wait for 40 s at a gate, with this key of the pending taint.
async fn waiting_with(key: &str, patience: Duration) -> (Demand, Outcome) {
    let cluster = exclusive();
    let (plane, cloud) = (cluster.plane, Cloud::start(cluster.plane).await);
    let _guard = Guard::install(plane, &[]);
    let policy = policy_of(GUIDE, |text| text);
    let policies = [policy.path().to_str().unwrap(), "tests/cluster/slow-gate.yaml"];
    let serve: &[&str] = &["--writes-per-second", "1000", "--pending-taint-key", key];
    let mut nodegate = Nodegate::start(plane, &Setup { serve, ..setup(&policies) });
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    cloud.tell_what_is_exported(&nodegate.namespace).await;
    cloud.restart();
    let demand = Demand { bursts: 1, patience, ..cloud.demand(true) };
    let found = cloud.run(&demand, async || {}).await;
    println!("nodes wait for 40 s, key {key}: {found:?}");
    nodegate.terminate();
    (demand, found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cluster Autoscaler: just cluster-autoscaler"]
async fn nodes_that_wait_at_a_gate_are_launched_once_with_the_key_that_cluster_autoscaler_knows() {
    let (demand, found) = waiting_with("auto", PATIENCE).await;
    assert_eq!(found, Outcome { launched: demand.expected(), bound: demand.expected(), removed: 0 });
    // So the trials would see the wrong key: the group is scaled down, and refused from then on.
    let (_, found) = waiting_with("nodegate.dev/pending", Duration::from_secs(60)).await;
    assert!(found.bound == 0 || found.launched > found.bound, "{found:?}");
}
