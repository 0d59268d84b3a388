//! What happens in the demo: the requests, and what became of them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::TemporaryDirectory;
use super::client::ApiServer;
use super::fleet::{FLEETS, Fleet};
use crate::cli::run::serve::Running;
use nodegate_base::text::or_quotes;
use nodegate_policy::simulate::{identity, node_name, taints};

/// The label that decides what a node of the first fleet is.
pub(super) const TIER: &str = "hardware.tier";
/// The node whose owner is saved.
pub(super) const RECREATED: &str = "pgbee";
/// The node that becomes a worker.
pub(super) const WORKER: &str = "gpu-worker-0";
/// The node that is changed where it may not be.
pub(super) const ATTACKED: &str = "thinkpad01";

/// A node of a fleet that has joined, or was denied.
pub(super) struct Joined {
    pub(super) fleet: &'static str,
    pub(super) node: String,
    /// `key=value` of each label that it got.
    pub(super) labels: Vec<String>,
    /// The taints that it got.
    pub(super) taints: Vec<String>,
    /// The keys that the controller sets later.
    pub(super) deferred: Vec<String>,
    /// Why it was denied, if it was.
    pub(super) denial: Option<String>,
    pub(super) time: Duration,
}

/// A forbidden change, and what became of it.
pub(super) struct Attempt {
    /// As a sentence, and in short.
    pub(super) what: &'static str,
    pub(super) brief: &'static str,
    /// The tier that the node then has, or why the change was denied.
    pub(super) outcome: Result<String, String>,
    pub(super) warnings: Vec<String>,
}

/// Everything, in this order.
pub(super) struct Happened {
    pub(super) joined: Vec<Joined>,
    /// The labels that the write which makes a node a worker adds.
    pub(super) added_to_worker: Vec<String>,
    /// The owner of a node that was created again.
    pub(super) owner: String,
    pub(super) attempts: Vec<Attempt>,
}

/// Sends all requests.
pub(super) async fn run(
    api: &mut ApiServer,
    directory: &TemporaryDirectory,
    running: &Running,
) -> anyhow::Result<Happened> {
    let joined = join_fleets(api).await?;
    let added_to_worker = make_worker(api).await?;
    let owner = recreate(api, directory, running).await?;
    let attempts = attempt(api).await?;
    Ok(Happened { joined, added_to_worker, owner, attempts })
}

/// A node of a fleet, as its kubelet registers it.
fn node_of(fleet: &Fleet, name: &str) -> anyhow::Result<Json> {
    fleet.nodes()?.into_iter().find(|node| node_name(node) == name).context("the fleet has that node")
}

/// The labels and taints that are in `after` and not in `before`.
fn added(before: &Json, after: &Json) -> (Vec<String>, Vec<String>) {
    let labels = after["metadata"]["labels"].as_object().into_iter().flatten();
    let labels = labels.filter(|(key, value)| before["metadata"]["labels"].get(*key) != Some(value));
    let labels = labels.map(|(key, value)| format!("{key}={}", or_quotes(value.as_str().unwrap_or_default())));
    let known: BTreeSet<String> = taints(before).into_iter().collect();
    (labels.collect(), taints(after).into_iter().filter(|taint| !known.contains(taint)).collect())
}

async fn join_fleets(api: &mut ApiServer) -> anyhow::Result<Vec<Joined>> {
    let mut joined = Vec::new();
    for fleet in &FLEETS {
        for node in fleet.nodes()? {
            let written = api.write(&node, None, false, &identity("kubelet", node_name(&node), &[])).await?;
            let deferred = written.audit["deferred"].as_str().unwrap_or_default();
            let deferred = deferred.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect();
            let ((labels, taints), denial) = match written.outcome {
                Ok(stored) => (added(&node, &stored), None),
                Err(denial) => (Default::default(), Some(denial)),
            };
            let (fleet, node, time) = (fleet.name, node_name(&node).to_owned(), written.time);
            joined.push(Joined { fleet, node, labels, taints, deferred, denial, time });
        }
    }
    Ok(joined)
}

/// A role label adds another label in the same write.
async fn make_worker(api: &mut ApiServer) -> anyhow::Result<Vec<String>> {
    let worker = node_of(&FLEETS[1], WORKER)?;
    let mut with_role = worker.clone();
    with_role["metadata"]["labels"]["node-role.kubernetes.io/worker"] = json!("");
    let admin = identity("admin", WORKER, &[]);
    let stored = api.write(&with_role, Some(&worker), false, &admin).await?.outcome.map_err(anyhow::Error::msg)?;
    Ok(added(&with_role, &stored).0)
}

/// A node whose persisted label is restored; returns the label's value.
async fn recreate(api: &mut ApiServer, directory: &TemporaryDirectory, running: &Running) -> anyhow::Result<String> {
    let registered = node_of(&FLEETS[0], RECREATED)?;
    let kubelet = identity("kubelet", RECREATED, &[]);
    let joined = api.write(&registered, None, false, &kubelet).await?.outcome.map_err(anyhow::Error::msg)?;
    let mut labelled = joined.clone();
    labelled["metadata"]["labels"]["team.owner"] = json!("platform");
    let admin = identity("admin", RECREATED, &[]);
    api.write(&labelled, Some(&joined), false, &admin).await?.outcome.map_err(anyhow::Error::msg)?;
    let state = json!({"nodeName": RECREATED, "labels": {"team.owner": "platform"}, "capturedAt": jiff::Timestamp::now().to_string()});
    std::fs::write(directory.path().join("state").join(format!("{RECREATED}.json")), state.to_string())?;
    wait_for_state(running).await?;
    let stored = api.write(&registered, None, false, &kubelet).await?.outcome.map_err(anyhow::Error::msg)?;
    Ok(stored["metadata"]["labels"]["team.owner"].as_str().unwrap_or("(missing)").to_owned())
}

/// Waits until the server has read the state directory, as its metric shows.
async fn wait_for_state(running: &Running) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        if running.metrics().lines().any(|line| line == "nodegate_saved_states 1") {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    anyhow::bail!("the server did not read the saved state")
}

/// Forbidden changes.
async fn attempt(api: &mut ApiServer) -> anyhow::Result<Vec<Attempt>> {
    let registered = node_of(&FLEETS[0], ATTACKED)?;
    let (kubelet, admin) = (identity("kubelet", ATTACKED, &[]), identity("admin", ATTACKED, &[]));
    let stored = api.write(&registered, None, false, &kubelet).await?.outcome.map_err(anyhow::Error::msg)?;
    let with = |node: &Json, key: &str, value: &str| {
        let mut node = node.clone();
        node["metadata"]["labels"][key] = json!(value);
        node
    };
    let (kind, claimed) = (with(&stored, "node.kubernetes.io/kind", "fast"), with(&stored, TIER, "dual-gpu"));
    let forged = with(&registered, TIER, "dual-gpu");
    let reserved = "an administrator sets a reserved label, node.kubernetes.io/kind=fast";
    let later = "the same through nodes/status, which only the validating webhook receives";
    let writes = [
        (reserved, "admin sets node.kubernetes.io/kind", &kind, Some(&stored), false, &admin),
        (
            "a kubelet registers itself with hardware.tier=dual-gpu",
            "thinkpad01 claims to be dual-gpu",
            &forged,
            None,
            false,
            &kubelet,
        ),
        (
            "a kubelet changes its hardware.tier to dual-gpu later",
            "again, after it has joined",
            &claimed,
            Some(&stored),
            false,
            &kubelet,
        ),
        (later, "again, through nodes/status", &claimed, Some(&stored), true, &kubelet),
    ];
    let mut attempts = Vec::new();
    for (what, brief, node, old, status, user) in writes {
        let written = api.write(node, old, status, user).await?;
        let tier = |stored: Json| stored["metadata"]["labels"][TIER].as_str().unwrap_or("(none)").to_owned();
        attempts.push(Attempt { what, brief, outcome: written.outcome.map(tier), warnings: written.warnings });
    }
    Ok(attempts)
}
