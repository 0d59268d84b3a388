//! `nodegate demo`: the main features on real input, without a cluster.

mod client;
mod fleet;
mod steps;
mod text;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use client::ApiServer;
use fleet::FLEETS;

use crate::cli::run::serve::{PendingTaintMode, Running, ServeConfig, start};
use crate::cli::{Findings, shared::output};
use nodegate_policy::simulate::{identity, node_name};
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
    /// Show each node with all that it gets, and every message as a whole
    #[arg(long)]
    all: bool,
    /// Keep the server running, and print commands to try
    #[arg(long)]
    keep: bool,
}

pub(in crate::cli) fn run(args: &DemoArgs) -> anyhow::Result<Findings> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        // Removed however the demo ends: it contains private keys.
        let directory = TemporaryDirectory::new()?;
        let running = tokio::select! {
            shown = show(&directory, args.all) => shown?,
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

/// Starts the server and shows what happens.
async fn show(directory: &TemporaryDirectory, all: bool) -> anyhow::Result<Running> {
    let running = start(directory.config()?).await?;
    let mut api = ApiServer::connect(running.address, &directory.path().join("certs/ca.crt")).await?;
    let happened = steps::run(&mut api, directory, &running).await?;
    output::print_while_read(&if all { text::all(&happened) } else { text::brief(&happened)? })?;
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
