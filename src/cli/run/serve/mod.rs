//! `nodegate serve`: the composition root.
//!
//! [`start`] creates the parts in the order of their dependencies: it reads and checks the configuration first, then
//! starts tasks, and the servers last. With a cluster, `cluster` is everything that runs besides the webhook.

mod args;
mod callers;
mod certificate;
mod cluster;
mod controller_args;
pub(in crate::cli) mod duration;
mod expiry;
mod inventories;
mod policies;
mod process;
mod saved;
mod servers;
mod traces;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(in crate::cli) use args::ServeArgs;
pub use args::{PendingTaintMode, ServeConfig};
pub use controller_args::ClusterConfig;

use self::certificate::Opened;
use self::cluster::{Cluster, Shared};
use self::policies::InForce;
use self::process::Process;
use self::servers::Servers;
use crate::cli::{Findings, shared::output};
use nodegate_base::metrics::{Format, Metrics};
use nodegate_base::traces::Exporter;
use nodegate_policy::{PendingKey, PendingTaints};
use nodegate_webhook::admission::{self, AnnotationCalls, Callers, PendingTaint};
use nodegate_webhook::health;
use nodegate_webhook::tls::{self, Protocol};

/// A running server.
pub struct Running {
    /// The HTTPS address with its actual port.
    pub address: SocketAddr,
    /// The probe address with its actual port.
    pub probe_address: SocketAddr,
    process: Process,
    server: JoinHandle<()>,
    cluster: Option<JoinHandle<()>>,
    exporter: Option<Exporter>,
}

impl Running {
    /// The content of `/metrics`, as OpenMetrics.
    pub fn metrics(&self) -> String {
        self.process.metrics.render(Format::OpenMetrics)
    }

    /// Drains and stops the server.
    pub async fn stop(self) {
        self.process.shutdown.cancel();
        // The task ends by itself; if it panicked there is nothing left to stop.
        let _ = self.server.await;
        if let Some(cluster) = self.cluster {
            // Ends when the Lease is released, or could not be released.
            let _ = cluster.await;
        }
        if let Some(exporter) = self.exporter {
            exporter.stop().await;
        }
    }
}

/// The stack of a thread. The work of a leader is one future, and in a build without optimization its frames need nearly two
/// MiB, tokio's default. Pages that are not used take no memory.
const STACK: usize = 4 * 1024 * 1024;

pub(in crate::cli) fn run(args: ServeArgs) -> anyhow::Result<Findings> {
    raise_descriptor_limit();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().thread_stack_size(STACK).build().context("no runtime")?;
    let ended = runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let running = start(ServeConfig::try_from(args)?).await?;
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        tracing::info!("shutting down; send a second signal to exit immediately");
        tokio::select! {
            () = running.stop() => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(Findings::None)
    });
    // A thread may still wait for a name server.
    runtime.shutdown_background();
    ended
}

/// Raises the limit of open files as far as permitted. With 1,024, which is common in containers, the permitted
/// connections would leave no files for the API server and for probes.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
}

/// Starts the server and returns when it listens; without a cluster it is ready then.
///
/// # Errors
/// Returns an error if policies are invalid (it lists all errors), files cannot be read, or addresses cannot be
/// bound.
pub async fn start(config: ServeConfig) -> anyhow::Result<Running> {
    let metrics = Metrics::new();
    if let Some(node) = &config.node_name {
        metrics.replica.runs_on(node);
    }
    let (traces, exporter) = traces::start(config.traces, &metrics)?;
    let process = Process::new(metrics, traces);
    let loaded = config.sources.load_documents().map_err(|errors| output::load_errors(&errors))?;
    let cluster = Cluster::configured(config.cluster).await?;
    let pending_taints = pending_taints(config.pending_taint, config.pending_taint_key);
    let in_directory = || saved::watch_directory(config.state_dir, &process);
    let saved = cluster.as_ref().map_or_else(in_directory, |cluster| cluster.saved.clone());
    let left_out = watch::Sender::new(false);
    let callers = if config.callers.is_some() { Callers::Authenticated } else { Callers::Unauthenticated };
    let mut certificate = Opened::open(config.callers, config.cert_dir.as_ref(), &config.cert_names, &process)?;
    let (listener, address) = bind("--listen", config.listen)?;
    let (probe, probe_address) = bind("--probe-listen", config.probe_listen)?;

    let (in_force, generation) = InForce::new(&process);
    let alone = cluster.is_none().then(|| in_force.clone());
    if alone.is_some() {
        process.metrics.loaded.everything_loaded();
    }
    let files = policies::watch_files(config.sources, loaded, alone, &process);
    let refresher = inventories::refresher(config.inventory, cluster.as_ref(), &in_force, &generation, &process);
    let expiry = certificate.watch(&process);
    let Opened { served, https, observer, .. } = certificate;
    let exemptions = Arc::new(ArcSwap::from_pointee(config.exemptions));
    let context = admission::Context {
        policies: in_force.policies.clone(),
        saved,
        witnesses: cluster.as_ref().map(|cluster| cluster.witnesses.clone()).unwrap_or_default(),
        inventory: refresher.cache().clone(),
        pending_taint: pending_taint(config.pending_taint, pending_taints.clone(), cluster.as_ref()),
        synced: Arc::new(AtomicBool::new(cluster.is_none())),
        records_last_change: config.stamp_changes,
        exemptions: exemptions.clone(),
        metrics: process.metrics.clone(),
        traces: process.traces.clone(),
        annotation_calls: AnnotationCalls::new(left_out.subscribe()),
        callers,
        denials: admission::Denials::default(),
    };
    let cluster = cluster.map(|cluster| {
        cluster.start(Shared {
            process: process.clone(),
            in_force,
            generation,
            files,
            served,
            expiry,
            cert_names: config.cert_names,
            cert_dir: config.cert_dir,
            exemptions,
            pending_taints,
            records_last_change: config.stamp_changes,
            synced: context.synced.clone(),
            refresher,
            left_out,
            guard_fault: watch::Sender::default(),
        })
    });

    let probes = health::router(process.readiness.clone(), process.metrics.clone(), Timestamp::now);
    let servers = Servers {
        https: (listener, Protocol::Https(https), admission::router(Arc::new(context), config.bounds)),
        limits: config.limits,
        probes: (probe, probes),
        readiness: process.readiness.clone(),
        observer,
        drain_delay: config.drain_delay,
    };
    let server = tokio::spawn(servers.run(process.shutdown.clone()));
    process.readiness.listening();
    log_addresses(address, probe_address, &process.readiness.unmet(Timestamp::now()));
    Ok(Running { address, probe_address, process, server, cluster, exporter })
}

/// Listens on an address, and returns it with the actual port.
fn bind(flag: &str, address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = tls::bind(address).with_context(|| format!("{flag} {address}"))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

fn log_addresses(address: SocketAddr, probe_address: SocketAddr, unmet: &[String]) {
    if unmet.is_empty() {
        tracing::info!(%address, %probe_address, "ready");
    } else {
        tracing::info!(%address, %probe_address, waits_for = unmet.join(", "), "listening");
    }
}

/// The pending taints. Warns if autoscalers must be configured for the key of the one that is set.
fn pending_taints(mode: PendingTaintMode, key: PendingKey) -> PendingTaints {
    if let Some(key) = key.unknown_to_autoscalers().filter(|_| mode != PendingTaintMode::Never) {
        tracing::warn!(
            %key,
            "no autoscaler knows this key as that of a startup taint, so one that is not configured for it creates other nodes \
             while a node waits; use --pending-taint-key auto, or configure the autoscaler (docs/guides/autoscalers.md)"
        );
    }
    PendingTaints::new(key)
}

/// The pending taints, and whether a controller is running that can remove them.
fn pending_taint(mode: PendingTaintMode, taints: PendingTaints, cluster: Option<&Cluster>) -> PendingTaint {
    match (mode, cluster.map(|cluster| cluster.lease.clone())) {
        (PendingTaintMode::Always, _) => PendingTaint::new(taints, || true),
        (PendingTaintMode::Auto, Some(lease)) => PendingTaint::new(taints, move || lease.has_leader(Instant::now())),
        (PendingTaintMode::Auto, None) | (PendingTaintMode::Never, _) => PendingTaint::new(taints, || false),
    }
}
