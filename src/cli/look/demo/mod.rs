//! `nodegate demo`: the main features on real input, without a cluster.

mod client;
mod fleet;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use client::{ApiServer, Written};
use fleet::FLEETS;

use crate::cli::run::serve::{PendingTaintMode, Running, ServeConfig, start};
use crate::cli::{Findings, shared::output};
use nodegate_base::text::or_quotes;
use nodegate_policy::simulate::{identity, node_name, taints};
use nodegate_policy::{Exemptions, PendingKey};
use nodegate_stores::files::Sources;
use nodegate_stores::inventory::RefresherConfig;
use nodegate_webhook::admission::Bounds;
use nodegate_webhook::tls::Limits;

/// Show how the nodes of two example fleets join, without a cluster
///
/// Starts the server on free ports and sends it, over HTTPS, the requests that an API server sends when kubelets
/// register. Prints what the nodes get, re-creates a node, and tries forbidden changes.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Keep the server running, and print commands to try
    #[arg(long)]
    keep: bool,
}

type User = (String, Vec<String>);

pub(in crate::cli) fn run(args: &DemoArgs) -> anyhow::Result<Findings> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        // Removed however the demo ends: it contains private keys.
        let directory = TemporaryDirectory::new()?;
        let running = tokio::select! {
            shown = show(&directory) => shown?,
            _ = terminate.recv() => bail!("the demo was terminated"),
            _ = interrupt.recv() => bail!("the demo was interrupted"),
        };
        if args.keep {
            keep(&directory, &running)?;
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        }
        running.stop().await;
        Ok(Findings::None)
    })
}

/// Starts the server and shows everything.
async fn show(directory: &TemporaryDirectory) -> anyhow::Result<Running> {
    let running = start(directory.config()?).await?;
    let mut api = ApiServer::connect(running.address, &directory.path().join("certs/ca.crt")).await?;
    output::print_while_read("nodegate serves two example fleets over HTTPS, with certificates that it created.\n\n")?;
    join_fleets(&mut api).await?;
    add_role(&mut api).await?;
    recreate_node(&mut api, directory, &running).await?;
    show_denials(&mut api).await?;
    Ok(running)
}

/// A temporary directory that nobody else can read, removed at the end.
struct TemporaryDirectory(TempDir);

impl TemporaryDirectory {
    fn new() -> anyhow::Result<Self> {
        let place = || std::env::temp_dir().display().to_string();
        let directory = tempfile::Builder::new().prefix("nodegate-demo-").tempdir().with_context(place)?;
        for part in ["policies", "state", "certs"] {
            std::fs::create_dir(directory.path().join(part)).with_context(place)?;
        }
        for fleet in &FLEETS {
            let file = directory.path().join("policies").join(format!("{}.yaml", fleet.name));
            std::fs::write(file, fleet.policy).with_context(place)?;
        }
        Ok(Self(directory))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn config(&self) -> anyhow::Result<ServeConfig> {
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        Ok(ServeConfig {
            sources: Sources { policies: vec![self.path().join("policies")], ..Sources::default() },
            listen: any_port,
            probe_listen: any_port,
            cert_dir: Some(self.path().join("certs")),
            cert_names: vec![
                "localhost".parse().map_err(anyhow::Error::msg)?,
                "127.0.0.1".parse().map_err(anyhow::Error::msg)?,
            ],
            callers: None,
            bounds: Bounds::default(),
            limits: Limits::default(),
            state_dir: self.path().join("state"),
            pending_taint: PendingTaintMode::Never,
            pending_taint_key: PendingKey::Auto,
            inventory: RefresherConfig::default(),
            traces: None,
            cluster: None,
            stamp_changes: false,
            exemptions: Exemptions::default(),
            node_name: None,
            drain_delay: Duration::ZERO,
        })
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// The labels and taints that are in `after` and not in `before`, one per line.
fn added(before: &Json, after: &Json) -> (String, String) {
    let labels = after["metadata"]["labels"].as_object().into_iter().flatten();
    let labels = labels.filter(|(key, value)| before["metadata"]["labels"].get(*key) != Some(value));
    let labels: Vec<String> =
        labels.map(|(key, value)| format!("{key}={}", or_quotes(value.as_str().unwrap_or_default()))).collect();
    let known: BTreeSet<String> = taints(before).into_iter().collect();
    let taints: Vec<String> = taints(after).into_iter().filter(|taint| !known.contains(taint)).collect();
    (labels.join("\n"), taints.join("\n"))
}

fn audit(written: &Written, key: &str) -> String {
    written.audit[key].as_str().unwrap_or_default().replace(',', "\n")
}

async fn join_fleets(api: &mut ApiServer) -> anyhow::Result<()> {
    for fleet in &FLEETS {
        let mut table = output::table(&["node", "labels it gets", "taints it gets", "deferred", "verdict", "time"]);
        for node in fleet.nodes()? {
            let kubelet = identity("kubelet", node_name(&node), &[]);
            let written = api.write(&node, None, false, &kubelet).await?;
            let (labels, taints, verdict) = match &written.outcome {
                Ok(stored) => {
                    let (labels, taints) = added(&node, stored);
                    (labels, taints, "admitted".to_owned())
                }
                Err(denial) => (String::new(), String::new(), denial.clone()),
            };
            let time = milliseconds(written.time);
            let deferred = audit(&written, "deferred");
            let cells = [node_name(&node).to_owned(), labels, taints, deferred, verdict, time];
            table.add_row_of_lines(cells.map(|cell| cell.lines().map(str::to_owned).collect()));
        }
        output::print_while_read(&format!(
            "Fleet {}: every kubelet registers its node (examples/{}).\n\n{table}\n\n",
            fleet.name, fleet.name
        ))?;
    }
    output::print_while_read(
        "Deferred: the controller sets role labels, because an API server rejects them in a kubelet's request.\n\
         The GPU nodes register without nvidia.com/gpu in their capacity, because no driver runs yet.\n\n",
    )
}

/// Shows a role label that adds another label in the same write.
async fn add_role(api: &mut ApiServer) -> anyhow::Result<()> {
    let name = "gpu-worker-0";
    let worker =
        FLEETS[1].nodes()?.into_iter().find(|node| node_name(node) == name).context("the fleet has that node")?;
    let mut with_role = worker.clone();
    with_role["metadata"]["labels"]["node-role.kubernetes.io/worker"] = json!("");
    let admin = identity("admin", name, &[]);
    let stored = api.write(&with_role, Some(&worker), false, &admin).await?.outcome.map_err(anyhow::Error::msg)?;
    let (labels, _) = added(&with_role, &stored);
    output::print_while_read(&format!(
        "Roles: an administrator labels {name} as a worker (node-role.kubernetes.io/worker). The same write adds:\n\x20 {labels}\n\n"
    ))
}

/// Shows a node whose persisted labels are restored.
async fn recreate_node(api: &mut ApiServer, directory: &TemporaryDirectory, running: &Running) -> anyhow::Result<()> {
    let name = "pgbee";
    let registered =
        FLEETS[0].nodes()?.into_iter().find(|node| node_name(node) == name).context("the fleet has that node")?;
    let kubelet = identity("kubelet", name, &[]);
    let joined = api.write(&registered, None, false, &kubelet).await?.outcome.map_err(anyhow::Error::msg)?;
    let mut labelled = joined.clone();
    labelled["metadata"]["labels"]["team.owner"] = json!("platform");
    api.write(&labelled, Some(&joined), false, &identity("admin", name, &[]))
        .await?
        .outcome
        .map_err(anyhow::Error::msg)?;
    let state = json!({"nodeName": name, "labels": {"team.owner": "platform"}, "capturedAt": jiff::Timestamp::now().to_string()});
    std::fs::write(directory.path().join("state").join(format!("{name}.json")), state.to_string())?;
    wait_for_state(running).await?;
    let again = api.write(&registered, None, false, &kubelet).await?;
    let stored = again.outcome.map_err(anyhow::Error::msg)?;
    output::print_while_read(&format!(
        "Re-creation: an administrator set the label team.owner=platform on {name}; it is in saved state.\n\
         The node is deleted, and its kubelet registers it again. The object that its CREATE returns has:\n\
         \x20 team.owner={}\n\n",
        stored["metadata"]["labels"]["team.owner"].as_str().unwrap_or("(missing)")
    ))
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

/// Tries forbidden changes, and prints the outcome of each.
async fn show_denials(api: &mut ApiServer) -> anyhow::Result<()> {
    let registered = FLEETS[0]
        .nodes()?
        .into_iter()
        .find(|node| node_name(node) == "thinkpad01")
        .context("the fleet has that node")?;
    let (kubelet, admin): (User, User) = (identity("kubelet", "thinkpad01", &[]), identity("admin", "thinkpad01", &[]));
    let stored = api.write(&registered, None, false, &kubelet).await?.outcome.map_err(anyhow::Error::msg)?;
    let with = |node: &Json, key: &str, value: &str| {
        let mut node = node.clone();
        node["metadata"]["labels"][key] = json!(value);
        node
    };
    let tier = "hardware.tier";
    let attempts: [(&str, Json, Option<&Json>, bool, &User); 4] = [
        (
            "an administrator sets a reserved label, node.kubernetes.io/kind=fast",
            with(&stored, "node.kubernetes.io/kind", "fast"),
            Some(&stored),
            false,
            &admin,
        ),
        (
            "a kubelet registers itself with hardware.tier=dual-gpu",
            with(&registered, tier, "dual-gpu"),
            None,
            false,
            &kubelet,
        ),
        (
            "a kubelet changes its hardware.tier to dual-gpu later",
            with(&stored, tier, "dual-gpu"),
            Some(&stored),
            false,
            &kubelet,
        ),
        (
            "the same through nodes/status, which only the validating webhook receives",
            with(&stored, tier, "dual-gpu"),
            Some(&stored),
            true,
            &kubelet,
        ),
    ];
    output::print_while_read("Forbidden changes to thinkpad01, whose tier is standard:\n")?;
    for (what, node, old, status, user) in attempts {
        let written = api.write(&node, old, status, user).await?;
        let mut text = format!("- {what}\n");
        match &written.outcome {
            Err(denial) => text.push_str(&format!("  denied: {denial}\n")),
            Ok(stored) => {
                let tier = stored["metadata"]["labels"][tier].as_str().unwrap_or("(none)");
                text.push_str(&format!("  admitted, corrected: hardware.tier={tier}\n"));
            }
        }
        text.extend(written.warnings.iter().map(|warning| format!("  warning: {warning}\n")));
        output::print_while_read(&text)?;
    }
    Ok(())
}

fn keep(directory: &TemporaryDirectory, running: &Running) -> anyhow::Result<()> {
    let ca = directory.path().join("certs/ca.crt");
    let review = directory.path().join("review.json");
    let node = FLEETS[0].nodes()?.into_iter().next().context("the fleet has nodes")?;
    let text = fleet::review(&node, None, false, &identity("kubelet", node_name(&node), &[]))?;
    std::fs::write(&review, serde_json::to_vec_pretty(&text)?)?;
    print_commands(&running.address, &running.probe_address, &ca, &review, directory.path())
}

fn print_commands(
    address: &SocketAddr,
    probe: &SocketAddr,
    ca: &Path,
    review: &Path,
    directory: &Path,
) -> anyhow::Result<()> {
    output::print_while_read(&format!(
        "\nThe server runs until you press Ctrl-C. Its files are in {}. Try:\n\
         \x20 curl --cacert {} -H 'Content-Type: application/json' --data @{} https://{address}/mutate\n\
         \x20 curl http://{probe}/metrics\n\
         \x20 nodegate render webhooks --url https://{address} --ca-file {} | kubectl apply -f -\n",
        directory.display(),
        ca.display(),
        review.display(),
        ca.display(),
    ))
}
