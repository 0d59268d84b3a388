//! Karpenter launches machines for pods that need what nodegate adds, with nodegate and without it: `just autoscalers`.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use hyper::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::autoscaling::{ACCELERATORS, Demand, bursts, kubelets, policy_of, run_of, setup};
use super::control_plane::{Component, ControlPlane, exclusive, free_port};
use super::guard::Guard;
use super::keeping::until_led;
use super::nodegate::{Nodegate, Setup};
use super::pools::until_older;
use crate::eventually::{eventually, for_a_while, holds};
use crate::shared::guides::block;

const GUIDE: &str = "karpenter";

/// The directory with Karpenter and its definitions (`tests/tools/karpenter/build`).
fn installed() -> PathBuf {
    std::env::var_os("NODEGATE_KARPENTER").expect("set NODEGATE_KARPENTER: just autoscalers").into()
}

fn karpenter(plane: &ControlPlane, log: &Path) -> Component {
    plane.program(&installed().join("karpenter"), log, |command| {
        command.envs([
            ("DISABLE_LEADER_ELECTION", "true"),
            ("SYSTEM_NAMESPACE", "kube-system"),
            ("KARPENTER_SERVICE", "karpenter"),
        ]);
        command.env("METRICS_PORT", free_port().to_string()).env("HEALTH_PROBE_PORT", free_port().to_string());
    })
}

/// What is there in every trial.
struct Running<'a> {
    plane: &'a ControlPlane,
    pods: Api<Pod>,
    _scheduler: Component,
    _kubelets: JoinSet<()>,
    _karpenter: Component,
    /// The log of Karpenter.
    _log: tempfile::NamedTempFile,
}

impl<'a> Running<'a> {
    async fn start(plane: &'a ControlPlane) -> Self {
        plane.define(&installed().join("crds"));
        let log = tempfile::NamedTempFile::new().unwrap();
        Self {
            plane,
            pods: Api::namespaced(plane.client(None).await, "default"),
            _scheduler: plane.component("kube-scheduler", &[]),
            _kubelets: kubelets(plane).await,
            _karpenter: karpenter(plane, log.path()),
            _log: log,
        }
    }

    fn trial(&self, needs_label: bool, bursts: u64) -> Trial<'a> {
        let demand = Demand { pods: self.pods.clone(), needs_label, bursts, patience: Duration::from_secs(240) };
        Trial { plane: self.plane, demand }
    }
}

/// The policy of the guide. The API server writes keys of headers in lower case.
fn policy() -> tempfile::NamedTempFile {
    policy_of(GUIDE, |text| {
        text.replace("label: karpenter.sh/nodepool}", "label: karpenter.sh/nodepool, instance: sessionname}")
    })
}

/// Does what the guide says so that Karpenter knows what nodegate adds.
fn tell_karpenter(plane: &ControlPlane, namespace: &str) {
    let patch = run_of(plane, GUIDE, "kubectl nodegate export autoscaler", namespace, &[]);
    let apply = block(GUIDE, "kubectl apply");
    let apply = apply.lines().find_map(|line| line.strip_prefix("kubectl apply ")?.strip_suffix("nodepools.yaml"));
    let apply: Vec<&str> = ["apply"].into_iter().chain(apply.unwrap().split_whitespace()).chain(["-"]).collect();
    plane.kubectl(&apply, Some(&patch)).unwrap();
}

/// What came of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    launched: usize,
    initialized: usize,
    bound: usize,
    disrupted: usize,
}

/// One trial: pods that come, and what Karpenter makes of them.
struct Trial<'a> {
    plane: &'a ControlPlane,
    demand: Demand,
}

impl Trial<'_> {
    /// Two NodePools, of machines of one kind, each with room for one pod.
    fn node_pools(&self) {
        let class = json!({"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}});
        let only = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
        let requirements = [
            only("karpenter.kwok.sh/instance-cpu", "4"),
            only("kubernetes.io/arch", "amd64"),
            only("kubernetes.io/os", "linux"),
            only("karpenter.sh/capacity-type", "on-demand"),
            only("topology.kubernetes.io/zone", "test-zone-a"),
        ];
        let pool = |name| {
            json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": {
                "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "5s"},
                "template": {"spec": {"expireAfter": "Never", "requirements": requirements,
                    "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}}}}})
        };
        let [one, other] = ACCELERATORS.map(pool);
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [class, one, other]});
        self.plane.kubectl(&["apply", "-f", "-"], Some(&objects.to_string())).unwrap();
    }

    /// The NodeClaims by name, with whether each is initialized.
    fn claims(&self) -> Vec<(String, bool)> {
        let claims = self.plane.ask(Method::GET, "/apis/karpenter.sh/v1/nodeclaims", None).unwrap();
        let claims: Value = serde_json::from_str(&claims).unwrap();
        let one = |claim: &Value| {
            let conditions = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let initialized = conditions.iter().any(|one| one["type"] == "Initialized" && one["status"] == "True");
            (claim["metadata"]["name"].as_str().unwrap().to_owned(), initialized)
        };
        claims["items"].as_array().unwrap().iter().map(one).collect()
    }

    async fn run(&self, after_first: impl AsyncFn()) -> Outcome {
        let names = async || self.claims().into_iter().map(|(name, _)| name).collect();
        let launched = self.demand.run(names, after_first).await.len();
        let last = self.claims();
        let initialized = last.iter().filter(|(_, initialized)| *initialized).count();
        Outcome { launched, initialized, bound: self.demand.bound().await, disrupted: launched - last.len() }
    }

    /// Nothing of the trial is left.
    async fn clear(&self) {
        for kind in ["pods", "nodepools.karpenter.sh", "nodeclaims.karpenter.sh"] {
            self.plane
                .kubectl(&["delete", kind, "--all", "--wait=false", "--grace-period=0", "--force"], None)
                .unwrap();
        }
        eventually("no NodeClaim and no node is left", async || {
            let nodes = self.plane.kubectl(&["get", "nodes", "-o", "name"], None).unwrap();
            holds(self.claims().is_empty() && nodes.is_empty(), || format!("{} claims, {nodes}", self.claims().len()))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Karpenter: just autoscalers"]
async fn karpenter_launches_what_it_launches_without_nodegate() {
    let cluster = exclusive();
    let (plane, running) = (cluster.plane, Running::start(cluster.plane).await);
    let trial = running.trial(false, bursts());
    let expected = trial.demand.expected();
    let right = Outcome { launched: expected, initialized: expected, bound: expected, disrupted: 0 };
    trial.node_pools();
    let without = trial.run(async || {}).await;
    println!("without nodegate: {without:?}");
    trial.clear().await;

    let _guard = Guard::install(plane, &[]);
    let policy = policy();
    let policies = [policy.path().to_str().unwrap()];
    let leader = Nodegate::start(plane, &Setup { unregistered: true, ..setup(&policies) });
    until_led(&leader).await;
    let namespace = leader.namespace.clone();
    let mut other = Nodegate::start(plane, &Setup { namespace: Some(&namespace), ..setup(&policies) });
    other.until_nodes_are_younger().await;
    until_older(plane).await;
    let trial = running.trial(true, bursts());

    // Templates that do not say what nodegate adds.
    trial.node_pools();
    trial.demand.burst(0, 1).await;
    for_a_while(Duration::from_secs(20)).await;
    let untold = trial.claims().len();
    println!("without the templates of `export autoscaler`: {untold} machines");
    trial.clear().await;

    trial.node_pools();
    tell_karpenter(plane, &namespace);
    let with = trial.run(async || {}).await;
    println!("with nodegate: {with:?}");
    run_of(plane, GUIDE, "kubectl nodegate export autoscaler --format nodepool-patch --check", &namespace, &[]);
    trial.clear().await;

    trial.node_pools();
    tell_karpenter(plane, &namespace);
    let leader = Mutex::new(leader);
    let dead = trial.run(async || leader.lock().unwrap().kill()).await;
    println!("the leader dies during the first burst: {dead:?}");
    trial.clear().await;
    other.terminate();
    assert_eq!((without, untold, with, dead), (right, 0, right, right));
}

/// Lets nodes wait for 40 s at a gate, with this key of the pending taint.
async fn waiting_with(key: &str) -> (usize, Outcome) {
    let cluster = exclusive();
    let (plane, running) = (cluster.plane, Running::start(cluster.plane).await);
    let trial = running.trial(true, 1);
    let _guard = Guard::install(plane, &[]);
    let policy = policy();
    let policies = [policy.path().to_str().unwrap(), "tests/cluster/slow-gate.yaml"];
    let serve: &[&str] = &["--writes-per-second", "1000", "--pending-taint-key", key];
    let mut nodegate = Nodegate::start(plane, &Setup { serve, ..setup(&policies) });
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    until_older(plane).await;
    trial.node_pools();
    tell_karpenter(plane, &nodegate.namespace);
    let found = trial.run(async || {}).await;
    println!("nodes wait for 40 s, key {key}: {found:?}");
    trial.clear().await;
    nodegate.terminate();
    (trial.demand.expected(), found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Karpenter: just autoscalers"]
async fn nodes_that_wait_at_a_gate_are_launched_once_with_the_key_that_karpenter_knows() {
    let (expected, found) = waiting_with("auto").await;
    assert_eq!(found, Outcome { launched: expected, initialized: expected, bound: expected, disrupted: 0 });
    // So the trials would see the wrong key.
    let (_, found) = waiting_with("nodegate.dev/pending").await;
    assert!(found.launched > found.bound, "{found:?}");
}
