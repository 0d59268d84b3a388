//! Cluster Autoscaler launches machines for pods that need what nodegate adds, with nodegate and without it: `just cluster-autoscaler`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::autoscaling::{BURST, BURSTS, bound, burst, kubelets};
use super::commands::run;
use super::control_plane::{Component, ControlPlane, exclusive, free_port};
use super::guard::Guard;
use super::keeping::{config_maps, is_pending, until_led, until_published};
use super::nodegate::{Nodegate, Setup};
use super::pools::{Credential, join};
use super::random::setting;
use super::requester::Requester;
use crate::eventually::{eventually, for_a_while, holds};

/// How long a burst may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// Cluster Autoscaler, and a cloud with one node group.
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

/// What the provider says about the next node of the group.
fn tell(directory: &Path, template: &Value) {
    let group = json!([{"id": "fleet", "max": 2000, "labels": {}, "template": template}]);
    std::fs::write(directory.join("groups.new"), group.to_string()).unwrap();
    std::fs::rename(directory.join("groups.new"), directory.join("groups.json")).unwrap();
}

impl<'a> Cloud<'a> {
    async fn start(plane: &'a ControlPlane) -> Self {
        let directory = TempDir::with_prefix("nodegate-cluster-autoscaler-").unwrap();
        let client = plane.client(None).await;
        let provider = free_port();
        let groups = directory.path().join("groups.json");
        tell(directory.path(), &json!({}));
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
            _kubelets: kubelets(plane, "fleet-").await,
            directory,
        }
    }

    /// What the cloud says about the next node of the group.
    fn tell(&self, template: &Value) {
        tell(self.directory.path(), template);
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

    /// Lets the bursts come, one when the pods of the one before are bound, but none takes longer than `patience`; and looks on for a
    /// while afterwards.
    async fn run(&self, needs_label: bool, patience: Duration, during: impl AsyncFn(u64)) -> Outcome {
        let (bursts, size) = (setting("NODEGATE_BURSTS", BURSTS), setting("NODEGATE_BURST", BURST));
        let mut seen = BTreeSet::new();
        for number in 0..bursts {
            burst(&self.pods, number, size, needs_label).await;
            during(number).await;
            let expected = usize::try_from((number + 1) * size).unwrap();
            let deadline = Instant::now() + patience;
            while bound(&self.pods).await < expected && Instant::now() < deadline {
                seen.extend(self.node_names().await);
                for_a_while(Duration::from_millis(500)).await;
            }
        }
        // Whoever is wrong about what is there launches more, or takes something away.
        for _ in 0..20 {
            seen.extend(self.node_names().await);
            for_a_while(Duration::from_secs(1)).await;
        }
        let left = self.node_names().await.len();
        Outcome { launched: seen.len(), bound: bound(&self.pods).await, removed: seen.len() - left }
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

    /// Lets one node join, and tells the cloud the tags that come from it.
    async fn tell_what_is_exported(&self, namespace: &str) {
        until_published(&config_maps(self.plane, namespace).await).await;
        let seed = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "fleet-seed"}});
        join(self.plane, &seed, Credential::default(), false).await.unwrap();
        // One that waits says nothing about the next one.
        let admin = Requester::admin(self.plane).await;
        admin.eventually("fleet-seed", "it waits no more", |node| !is_pending(node)).await;
        let template = self.exported(namespace);
        self.plane.kubectl(&["delete", "node", "fleet-seed"], None).unwrap();
        self.tell(&template);
    }

    /// What `nodegate export autoscaler` prints as tags of a group, as the provider of AWS reads them.
    fn exported(&self, namespace: &str) -> Value {
        let export = ["export", "autoscaler", "--format", "asg-tags", "--namespace", namespace, "-o", "json"];
        let tags: Value = serde_json::from_str(&run(self.plane, None, &export).with(0)).unwrap();
        let (mut labels, mut taints) = (Map::new(), Vec::new());
        for (tag, value) in tags["fleet"].as_object().unwrap_or_else(|| panic!("{tags:#}")) {
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
        json!({"labels": labels, "taints": taints})
    }
}

/// What came of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    launched: usize,
    bound: usize,
    removed: usize,
}

/// A replica whose Lease holds as long as the chart's.
fn setup() -> Setup<'static> {
    Setup {
        policies: &["tests/cluster/cluster-autoscaler.yaml"],
        cluster: true,
        serve: &["--writes-per-second", "1000"],
        lease_seconds: 15,
        ..Setup::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cluster Autoscaler: just cluster-autoscaler"]
async fn cluster_autoscaler_launches_what_it_launches_without_nodegate() {
    let cluster = exclusive();
    let (plane, cloud) = (cluster.plane, Cloud::start(cluster.plane).await);
    let expected = usize::try_from(setting("NODEGATE_BURSTS", BURSTS) * setting("NODEGATE_BURST", BURST)).unwrap();
    let right = Outcome { launched: expected, bound: expected, removed: 0 };

    cloud.restart();
    let without = cloud.run(false, PATIENCE, async |_| {}).await;
    println!("without nodegate: {without:?}");
    cloud.clear().await;

    let _guard = Guard::install(plane, &[]);
    let leader = Nodegate::start(plane, &setup());
    until_led(&leader).await;
    let namespace = leader.namespace.clone();
    let mut other = Nodegate::start(plane, &Setup { namespace: Some(&namespace), unregistered: true, ..setup() });

    // Tags that do not say what nodegate adds.
    cloud.restart();
    burst(&cloud.pods, 0, 1, true).await;
    for_a_while(Duration::from_secs(20)).await;
    let untold = cloud.node_names().await.len();
    println!("without the tags of `export autoscaler`: {untold} machines");
    assert_eq!(untold, 0);

    plane.kubectl(&["delete", "pods", "--all", "--grace-period=0", "--force"], None).unwrap();
    cloud.tell_what_is_exported(&namespace).await;
    cloud.restart();
    let with = cloud.run(true, PATIENCE, async |_| {}).await;
    println!("with nodegate: {with:?}");
    cloud.clear().await;

    cloud.restart();
    let again = cloud.run(true, PATIENCE, async |number| {
        if number == 0 {
            for_a_while(Duration::from_secs(3)).await;
            cloud.restart();
        }
    });
    let restarted = again.await;
    println!("Cluster Autoscaler is restarted during the first burst: {restarted:?}");
    cloud.clear().await;

    cloud.restart();
    let leader = Mutex::new(leader);
    let dead = cloud
        .run(true, PATIENCE, async |number| {
            if number == 0 {
                leader.lock().unwrap().kill();
            }
        })
        .await;
    println!("the leader dies during the first burst: {dead:?}");
    cloud.clear().await;
    other.terminate();
    assert_eq!((without, with, restarted, dead), (right, right, right, right));
}

/// Lets nodes wait for 40 s at a gate, with this key of the pending taint.
async fn waiting_with(key: &str, patience: Duration) -> Outcome {
    let cluster = exclusive();
    let (plane, cloud) = (cluster.plane, Cloud::start(cluster.plane).await);
    let _guard = Guard::install(plane, &[]);
    let policies: &[&str] = &["tests/cluster/cluster-autoscaler.yaml", "tests/cluster/slow-gate.yaml"];
    let serve: &[&str] = &["--writes-per-second", "1000", "--pending-taint-key", key];
    let mut nodegate = Nodegate::start(plane, &Setup { policies, serve, ..setup() });
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    cloud.tell_what_is_exported(&nodegate.namespace).await;
    cloud.restart();
    let found = cloud.run(true, patience, async |_| {}).await;
    println!("nodes wait for 40 s, key {key}: {found:?}");
    nodegate.terminate();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cluster Autoscaler: just cluster-autoscaler"]
async fn nodes_that_wait_at_a_gate_are_launched_once_with_the_key_that_cluster_autoscaler_knows() {
    let found = waiting_with("auto", PATIENCE).await;
    let expected = usize::try_from(setting("NODEGATE_BURSTS", BURSTS) * setting("NODEGATE_BURST", BURST)).unwrap();
    assert_eq!(found, Outcome { launched: expected, bound: expected, removed: 0 });
    // So the trials would see the wrong key: the group is scaled down, and refused from then on.
    let found = waiting_with("nodegate.dev/pending", Duration::from_secs(60)).await;
    assert!(found.bound == 0 || found.launched > found.bound, "{found:?}");
}
