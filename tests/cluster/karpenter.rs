//! Karpenter launches machines for pods that need what nodegate adds, with nodegate and without it: `just autoscalers`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hyper::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::autoscaling::{BURST, BURSTS, bound, burst, kubelets};
use super::commands::run;
use super::control_plane::{Component, ControlPlane, exclusive, free_port};
use super::guard::Guard;
use super::keeping::until_led;
use super::nodegate::{Nodegate, Setup};
use super::pools::until_older;
use super::random::setting;
use crate::eventually::{eventually, for_a_while, holds};

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
            _kubelets: kubelets(plane, "kwok-").await,
            _karpenter: karpenter(plane, log.path()),
            _log: log,
        }
    }

    fn trial(&self) -> Trial<'a> {
        Trial {
            plane: self.plane,
            pods: self.pods.clone(),
            needs_label: false,
            bursts: setting("NODEGATE_BURSTS", BURSTS),
        }
    }
}

/// A replica whose Lease holds as long as the chart's.
fn setup() -> Setup<'static> {
    Setup {
        policies: &["tests/cluster/karpenter.yaml"],
        cluster: true,
        serve: &["--writes-per-second", "1000"],
        lease_seconds: 15,
        ..Setup::default()
    }
}

/// What came of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    launched: usize,
    initialized: usize,
    bound: usize,
    disrupted: usize,
}

/// One trial: so many bursts of pods, and what Karpenter makes of them.
struct Trial<'a> {
    plane: &'a ControlPlane,
    pods: Api<Pod>,
    needs_label: bool,
    /// The number of bursts.
    bursts: u64,
}

impl Trial<'_> {
    /// The NodePool, of machines of one kind, each with room for one pod.
    fn node_pool(&self) {
        let class = json!({"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}});
        let only = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
        let requirements = [
            only("karpenter.kwok.sh/instance-cpu", "4"),
            only("kubernetes.io/arch", "amd64"),
            only("kubernetes.io/os", "linux"),
            only("karpenter.sh/capacity-type", "on-demand"),
            only("topology.kubernetes.io/zone", "test-zone-a"),
        ];
        let pool = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "fleet"}, "spec": {
            "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "5s"},
            "template": {"spec": {"expireAfter": "Never", "requirements": requirements,
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}}}}});
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [class, pool]});
        self.plane.kubectl(&["apply", "-f", "-"], Some(&objects.to_string())).unwrap();
    }

    /// A burst of pods.
    async fn burst(&self, number: u64, pods: u64) {
        burst(&self.pods, number, pods, self.needs_label).await;
    }

    async fn bound(&self) -> usize {
        bound(&self.pods).await
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

    /// Lets the bursts come, one when the pods of the one before are bound, and looks on for a while afterwards.
    async fn run(&self, during: impl AsyncFn(u64)) -> Outcome {
        let size = setting("NODEGATE_BURST", BURST);
        let mut seen = BTreeSet::new();
        for number in 0..self.bursts {
            self.burst(number, size).await;
            during(number).await;
            let expected = usize::try_from((number + 1) * size).unwrap();
            let deadline = Instant::now() + Duration::from_secs(240);
            while self.bound().await < expected {
                seen.extend(self.claims().into_iter().map(|(name, _)| name));
                assert!(
                    Instant::now() < deadline,
                    "{} of {expected} pods are bound, {} NodeClaims",
                    self.bound().await,
                    seen.len()
                );
                for_a_while(Duration::from_millis(500)).await;
            }
        }
        // Whoever is wrong about what is there launches more, or takes something away.
        for _ in 0..20 {
            seen.extend(self.claims().into_iter().map(|(name, _)| name));
            for_a_while(Duration::from_secs(1)).await;
        }
        let last = self.claims();
        let initialized = last.iter().filter(|(_, initialized)| *initialized).count();
        Outcome { launched: seen.len(), initialized, bound: self.bound().await, disrupted: seen.len() - last.len() }
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
    let expected = usize::try_from(setting("NODEGATE_BURSTS", BURSTS) * setting("NODEGATE_BURST", BURST)).unwrap();
    let right = Outcome { launched: expected, initialized: expected, bound: expected, disrupted: 0 };

    let mut trial = running.trial();
    trial.node_pool();
    let without = trial.run(async |_| {}).await;
    println!("without nodegate: {without:?}");
    trial.clear().await;

    let _guard = Guard::install(plane, &[]);
    let leader = Nodegate::start(plane, &Setup { unregistered: true, ..setup() });
    until_led(&leader).await;
    let namespace = leader.namespace.clone();
    let mut other = Nodegate::start(plane, &Setup { namespace: Some(&namespace), ..setup() });
    other.until_nodes_are_younger().await;
    until_older(plane).await;
    trial.needs_label = true;

    // A template that does not say what nodegate adds.
    trial.node_pool();
    trial.burst(0, 1).await;
    for_a_while(Duration::from_secs(20)).await;
    let untold = trial.claims().len();
    println!("without the template of `export autoscaler`: {untold} machines");
    trial.clear().await;

    trial.node_pool();
    let export = ["export", "autoscaler", "--format", "nodepool-patch", "--namespace", &namespace];
    let patch = run(plane, None, &export).with(0);
    let tell = || plane.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], Some(&patch)).unwrap();
    tell();
    let with = trial.run(async |_| {}).await;
    println!("with nodegate: {with:?}");
    run(plane, None, &[&export[..], &["--check"]].concat()).with(0);
    trial.clear().await;

    trial.node_pool();
    tell();
    let leader = Mutex::new(leader);
    let dead = trial
        .run(async |number| {
            if number == 0 {
                leader.lock().unwrap().kill();
            }
        })
        .await;
    println!("the leader dies during the first burst: {dead:?}");
    trial.clear().await;
    other.terminate();
    assert_eq!((without, untold, with, dead), (right, 0, right, right));
}

/// Lets nodes wait for 40 s at a gate, with this key of the pending taint.
async fn waiting_with(key: &str) -> Outcome {
    let cluster = exclusive();
    let (plane, running) = (cluster.plane, Running::start(cluster.plane).await);
    let trial = Trial { needs_label: true, bursts: 1, ..running.trial() };
    let _guard = Guard::install(plane, &[]);
    let policies: &[&str] = &["tests/cluster/karpenter.yaml", "tests/cluster/slow-gate.yaml"];
    let serve: &[&str] = &["--writes-per-second", "1000", "--pending-taint-key", key];
    let mut nodegate = Nodegate::start(plane, &Setup { policies, serve, ..setup() });
    until_led(&nodegate).await;
    nodegate.until_nodes_are_younger().await;
    until_older(plane).await;
    trial.node_pool();
    let export = ["export", "autoscaler", "--format", "nodepool-patch", "--namespace", &nodegate.namespace];
    let patch = run(plane, None, &export).with(0);
    plane.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], Some(&patch)).unwrap();
    let found = trial.run(async |_| {}).await;
    println!("nodes wait for 40 s, key {key}: {found:?}");
    trial.clear().await;
    nodegate.terminate();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Karpenter: just autoscalers"]
async fn nodes_that_wait_at_a_gate_are_launched_once_with_the_key_that_karpenter_knows() {
    let found = waiting_with("auto").await;
    assert_eq!(found, Outcome { launched: found.bound, initialized: found.bound, disrupted: 0, ..found });
    // So the trials would see the wrong key.
    let found = waiting_with("nodegate.dev/pending").await;
    assert!(found.launched > found.bound, "{found:?}");
}
