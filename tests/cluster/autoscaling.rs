//! What tests with real autoscalers and schedulers share: pods that come in bursts, and what kubelets do.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{Config, Event, watcher};
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::task::JoinSet;

use super::commands::run;
use super::control_plane::ControlPlane;
use super::nodegate::Setup;
use super::random::setting;
use crate::eventually::for_a_while;
use crate::shared::guides::block;

pub(super) const ACCELERATOR: &str = "example.com/accelerator";
/// Its values, each of a pool of that name.
pub(super) const ACCELERATORS: [&str; 2] = ["h100", "l4"];
pub(super) const ROLE: &str = "node-role.kubernetes.io/fleet";
/// How many pods come at once, unless `NODEGATE_BURST` says it.
const BURST: u64 = 50;

/// How many bursts come.
pub(super) fn bursts() -> u64 {
    setting("NODEGATE_BURSTS", 2)
}

/// What kubelets do after they have created their nodes: each becomes Ready once.
pub(super) async fn kubelets(plane: &ControlPlane) -> JoinSet<()> {
    let (api, mut task) = (Api::<Node>::all(plane.client(None).await), JoinSet::new());
    task.spawn(async move {
        let mut events = std::pin::pin!(watcher(api.clone(), Config::default()));
        let mut ready = BTreeSet::new();
        while let Some(event) = events.next().await {
            let Ok(Event::Apply(node) | Event::InitApply(node)) = event else { continue };
            let Some(name) = node.metadata.name else { continue };
            if ready.insert(name.clone()) {
                let condition = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                    "lastHeartbeatTime": "2026-11-21T00:00:00Z", "lastTransitionTime": "2026-11-21T00:00:00Z"}]);
                let status = Patch::Merge(json!({"status": {"conditions": condition}}));
                api.patch_status(&name, &PatchParams::default(), &status).await.unwrap();
            }
            // The node lifecycle controller's part.
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            if let Some(at) = taints.iter().position(|taint| taint.key == "node.kubernetes.io/not-ready") {
                let path = format!("/spec/taints/{at}");
                let operations = json!([{"op": "test", "path": format!("{path}/key"), "value": "node.kubernetes.io/not-ready"},
                    {"op": "remove", "path": path}]);
                // If the taints have changed meanwhile, the next event comes.
                let operations: json_patch::Patch = serde_json::from_value(operations).unwrap();
                let _ = api.patch(&name, &PatchParams::default(), &Patch::<()>::Json(operations)).await;
            }
        }
    });
    task
}

/// The policy of a guide in a file. `adapt` makes of it what the test needs.
pub(super) fn policy_of(guide: &str, adapt: impl Fn(String) -> String) -> NamedTempFile {
    let file = NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), adapt(block(guide, "kind: NodePolicy"))).unwrap();
    file
}

/// A replica with this policy and others, whose Lease holds as long as the chart's.
pub(super) fn setup<'a>(policies: &'a [&'a str]) -> Setup<'a> {
    Setup { policies, cluster: true, serve: &["--writes-per-second", "1000"], lease_seconds: 15, ..Setup::default() }
}

/// What the command of a guide that begins so prints, for a namespace. `files`: where those that it names are. What the shell does with
/// its output is left out.
pub(super) fn run_of(
    plane: &ControlPlane,
    guide: &str,
    begin: &str,
    namespace: &str,
    files: &[(&str, &Path)],
) -> String {
    let text = block(guide, begin);
    let line = text.lines().find(|line| line.starts_with(begin)).unwrap();
    let words = line.strip_prefix("kubectl nodegate ").unwrap().split(" > ").next().unwrap();
    let here = |word| files.iter().find(|(name, _)| *name == word).map_or(word, |(_, path)| path.to_str().unwrap());
    let words: Vec<&str> = words.split_whitespace().map(here).chain(["--namespace", namespace]).collect();
    run(plane, None, &words).with(0)
}

/// What an autoscaler is asked for: one pod, and then bursts of them. Each needs a machine of its own.
pub(super) struct Demand {
    pub(super) pods: Api<Pod>,
    /// Whether pods go only to nodes with what nodegate gives.
    pub(super) needs_label: bool,
    /// The number of bursts.
    pub(super) bursts: u64,
    /// How long a burst may take.
    pub(super) patience: Duration,
}

impl Demand {
    /// The number of all pods.
    pub(super) fn expected(&self) -> usize {
        usize::try_from(1 + self.bursts * setting("NODEGATE_BURST", BURST)).unwrap()
    }

    /// Lets the pods come, a burst when those before it are bound, and looks on for a while afterwards. So the first burst finds a pool
    /// with one node, and one without. It is followed by `after_first`. Returns the names of all `machines` that were ever there.
    pub(super) async fn run(
        &self,
        machines: impl AsyncFn() -> BTreeSet<String>,
        after_first: impl AsyncFn(),
    ) -> BTreeSet<String> {
        let (mut seen, mut expected) = (BTreeSet::new(), 0);
        for number in 0..=self.bursts {
            let size = if number == 0 { 1 } else { setting("NODEGATE_BURST", BURST) };
            self.burst(number, size).await;
            if number == 1 {
                after_first().await;
            }
            expected += usize::try_from(size).unwrap();
            let deadline = Instant::now() + self.patience;
            while self.bound().await < expected && Instant::now() < deadline {
                seen.extend(machines().await);
                for_a_while(Duration::from_millis(500)).await;
            }
        }
        // Whoever is wrong about what is there launches more, or takes something away.
        for _ in 0..20 {
            seen.extend(machines().await);
            for_a_while(Duration::from_secs(1)).await;
        }
        seen
    }

    /// Creates so many pods, each as large as a machine of 4 CPUs, for both pools.
    pub(super) async fn burst(&self, number: u64, size: u64) {
        let each = |at| {
            let accelerator = ACCELERATORS[usize::try_from(at).unwrap() % 2];
            let selector = if self.needs_label { json!({ACCELERATOR: accelerator, ROLE: ""}) } else { json!({}) };
            let pod: Pod = serde_json::from_value(json!({"metadata": {"name": format!("pod-{number}-{at}")}, "spec": {
                "nodeSelector": selector, "tolerations": [{"key": "example.com/dedicated", "operator": "Exists"}],
                "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "3"}}}]}}))
            .unwrap();
            async move { self.pods.create(&PostParams::default(), &pod).await.unwrap() }
        };
        stream::iter(0..size).map(each).buffer_unordered(10).collect::<Vec<_>>().await;
    }

    /// How many pods have a node.
    pub(super) async fn bound(&self) -> usize {
        let pods = self.pods.list(&ListParams::default()).await.unwrap();
        pods.items.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())).count()
    }
}
