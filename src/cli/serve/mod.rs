//! `nodegate serve`: the only place where everything is put together.

mod args;
mod callers;
mod expiry;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use args::{PendingTaintMode, ServeConfig};
pub(super) use args::{ServeArgs, duration};
pub(super) use expiry::Expiry;

use super::cluster::{Cluster, Shared};
use super::{Findings, output};
use crate::admission::{self, PendingTaint};
use crate::api::names::{LabelKey, TaintEffect, TaintId};
use crate::files::{self, LoadError, Loaded, Sources};
use crate::health::{self, Readiness};
use crate::metrics::{Metrics, Reload};
use crate::policy::PolicySet;
use crate::state::{self, SavedStates, StateError};
use crate::telemetry;
use crate::tls::{self, Certificate, Directory, Event, Limits, Observer, Pair, Protocol};

/// How often files are looked at when the file system tells nothing.
const POLL: Duration = Duration::from_secs(10);

/// A running server.
pub struct Running {
    /// The HTTPS address, with its real port.
    pub address: SocketAddr,
    /// The probe address, with its real port.
    pub probe_address: SocketAddr,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
    server: JoinHandle<()>,
    cluster: Option<JoinHandle<()>>,
}

impl Running {
    /// What `/metrics` shows.
    pub fn metrics(&self) -> String {
        self.metrics.render()
    }

    /// Drains and ends the server.
    pub async fn stop(self) {
        self.shutdown.cancel();
        // The task ends by itself; if it panicked there is nothing left to stop.
        let _ = self.server.await;
        if let Some(cluster) = self.cluster {
            // Ends when the Lease is released, or could not be.
            let _ = cluster.await;
        }
    }
}

pub(super) fn run(args: ServeArgs) -> anyhow::Result<Findings> {
    let environment = |name: &str| std::env::var(name).ok();
    telemetry::init(telemetry::filter(environment("RUST_LOG").as_deref(), environment("LOG_LEVEL").as_deref())?);
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let running = start(ServeConfig::try_from(args)?).await?;
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        tracing::info!("shutting down; a second signal ends at once");
        tokio::select! {
            () = running.stop() => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(Findings::None)
    })
}

/// Raises the limit of open files as far as it may go: where it is 1,024, as containers often have it, the connections that
/// are permitted would leave none for the API server and for probes.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}

/// Starts the server and returns when it listens; without a cluster it is ready then.
///
/// # Errors
/// If policies have faults (all of them are in the error), files cannot be read, or addresses cannot be bound.
pub async fn start(config: ServeConfig) -> anyhow::Result<Running> {
    let metrics = Metrics::new();
    let readiness = Arc::new(Readiness::default());
    let shutdown = CancellationToken::new();

    let loaded = config.sources.load_documents().map_err(|errors| output::load_errors(&errors))?;
    let (generations, generation) = tokio::sync::watch::channel(0);
    let in_force = Arc::new(InForce {
        policies: Arc::default(),
        generations,
        metrics: metrics.clone(),
        readiness: readiness.clone(),
    });
    let policies = in_force.policies.clone();

    let cluster = match config.cluster {
        Some(cluster) => Some(Cluster::new(cluster).await?),
        None => None,
    };
    let exemptions = Arc::new(ArcSwap::from_pointee(config.exemptions));
    let saved = match &cluster {
        Some(cluster) => cluster.saved.clone(),
        None => saved_in_directory(config.state_dir, &metrics, &shutdown),
    };

    let served = Served { certificate: Arc::default(), metrics: metrics.clone(), readiness: readiness.clone() };
    let callers = config.callers.map(|callers| callers.open(&metrics)).transpose()?;
    let https = tls::https(served.certificate.clone(), callers.clone()).context("TLS")?;
    let directory = match &config.cert_dir {
        Some(path) => {
            let (directory, pair) =
                Directory::open(path, &config.cert_names, Timestamp::now()).context("--cert-dir")?;
            served.serve(pair);
            Some(directory)
        }
        None => None,
    };

    let listener = tls::bind(config.listen).with_context(|| format!("--listen {}", config.listen))?;
    let probe = tls::bind(config.probe_listen).with_context(|| format!("--probe-listen {}", config.probe_listen))?;
    let (address, probe_address) = (listener.local_addr()?, probe.local_addr()?);

    let observer = observer(metrics.clone(), readiness.clone());
    let (told, expiry) = tokio::sync::watch::channel(Expiry::default());
    let certificate = served.certificate.clone();
    tokio::spawn(expiry::follow(certificate, Timestamp::now, metrics.clone(), told, shutdown.clone()));
    if let Some(directory) = directory {
        let certificate = served.certificate.clone();
        tokio::spawn(tls::watch(directory, certificate, POLL, Timestamp::now, observer.clone(), shutdown.clone()));
    }
    if let Some(callers) = callers {
        tokio::spawn(tls::watch_callers(callers, POLL, Timestamp::now, observer.clone(), shutdown.clone()));
    }
    let since = loaded.fingerprint;
    let (loads, files) = tokio::sync::watch::channel(Arc::new(loaded));
    if cluster.is_none() {
        in_force.put(files.borrow().set.clone());
    }
    let alone = cluster.is_none().then(|| in_force.clone());
    tokio::spawn(watch_policies((config.sources, since), alone, loads, metrics.clone(), shutdown.clone()));

    let synced = Arc::new(AtomicBool::new(cluster.is_none()));
    let pending_taint = pending_taint(config.pending_taint, config.pending_taint_key.clone(), cluster.as_ref());
    let cluster = cluster.map(|cluster| {
        cluster.start(Shared {
            in_force,
            served,
            exemptions: exemptions.clone(),
            expiry,
            cert_names: config.cert_names,
            cert_dir: config.cert_dir,
            files,
            generation,
            pending: TaintId { key: config.pending_taint_key, effect: TaintEffect::NoSchedule },
            stamps: config.stamp_changes,
            readiness: readiness.clone(),
            synced: synced.clone(),
            metrics: metrics.clone(),
            shutdown: shutdown.clone(),
        })
    });
    let stamps = config.stamp_changes;
    let context =
        admission::Context { policies, saved, pending_taint, synced, stamps, exemptions, metrics: metrics.clone() };
    let webhook = admission::router(Arc::new(context), config.bounds);
    let probes = health::router(readiness.clone(), metrics.clone(), Timestamp::now);
    let servers = Servers {
        https: (listener, Protocol::Https(https), webhook),
        limits: config.limits,
        probes: (probe, probes),
        readiness: readiness.clone(),
        observer,
        drain_delay: config.drain_delay,
    };
    let server = tokio::spawn(servers.run(shutdown.clone()));
    readiness.listening();
    let unmet = readiness.unmet(Timestamp::now());
    if unmet.is_empty() {
        tracing::info!(%address, %probe_address, "ready");
    } else {
        tracing::info!(%address, %probe_address, waits_for = unmet.join(", "), "listening");
    }
    Ok(Running { address, probe_address, metrics, shutdown, server, cluster })
}

/// The pending taint, and whether somebody is there to lift it.
fn pending_taint(mode: PendingTaintMode, key: LabelKey, cluster: Option<&Cluster>) -> Option<PendingTaint> {
    match (mode, cluster.map(|cluster| cluster.lease.clone())) {
        (PendingTaintMode::Always, _) => Some(PendingTaint::new(key, || true)),
        (PendingTaintMode::Auto, Some(lease)) => Some(PendingTaint::new(key, move || lease.has_leader())),
        (PendingTaintMode::Auto, None) | (PendingTaintMode::Never, _) => None,
    }
}

/// Saved state as it is in a directory, and as it will be.
fn saved_in_directory(directory: PathBuf, metrics: &Arc<Metrics>, shutdown: &CancellationToken) -> Arc<SavedStates> {
    let saved = Arc::new(SavedStates::default());
    let (states, errors) = state::read(&directory, &Default::default());
    saved.replace(states.values().cloned());
    report_states(saved.len(), &errors, metrics);
    let state_metrics = metrics.clone();
    let told = Arc::new(move |states: usize, errors: &[StateError]| report_states(states, errors, &state_metrics));
    tokio::spawn(state::watch(directory, states, saved.clone(), POLL, told, shutdown.clone()));
    saved
}

/// The two servers, from the first request to the last.
struct Servers {
    https: (TcpListener, Protocol, axum::Router),
    limits: Limits,
    probes: (TcpListener, axum::Router),
    readiness: Arc<Readiness>,
    observer: Observer,
    drain_delay: Duration,
}

impl Servers {
    /// Serves until `shutdown`: then readiness goes first, then accepting ends, then requests in flight
    /// do, and the probe address last.
    async fn run(self, shutdown: CancellationToken) {
        let (stop_accepting, stop_probes) = (CancellationToken::new(), CancellationToken::new());
        let (listener, router) = self.probes;
        let silent: Observer = Arc::new(|_| {});
        let probes =
            tls::serve(listener, Protocol::Http, hyper_service(router), Limits::probes(), silent, stop_probes.clone());
        let probes = tokio::spawn(probes);
        let (listener, protocol, router) = self.https;
        let https =
            tls::serve(listener, protocol, hyper_service(router), self.limits, self.observer, stop_accepting.clone());
        let draining = async {
            shutdown.cancelled().await;
            self.readiness.drain();
            tokio::time::sleep(self.drain_delay).await;
            stop_accepting.cancel();
        };
        let (drained, ()) = tokio::join!(https, draining);
        if drained.cut_off > 0 {
            tracing::warn!(connections = drained.cut_off, "cut off requests that took too long to finish");
        }
        stop_probes.cancel();
        // The probe server ends by itself; a panic in it was logged when it happened.
        let _ = probes.await;
        tracing::info!("drained");
    }
}

fn hyper_service(router: axum::Router) -> TowerToHyperService<axum::Router> {
    TowerToHyperService::new(router)
}

/// Says what is in force, and what is not acted on yet.
fn announce(policies: &PolicySet, metrics: &Metrics) {
    metrics.policies_reloaded(Reload::Success, policies.policies().count(), policies.rule_count());
    let names: Vec<&str> = policies.policies().collect();
    tracing::info!(policies = names.join(", "), rules = policies.rule_count(), "policies in force");
    let trusting: Vec<String> = policies.trusting_rules().collect();
    if !trusting.is_empty() {
        tracing::info!(rules = trusting.join(", "), "these rules take a kubelet's word (trustKubelet)");
    }
    if !policies.not_acted_on().is_empty() {
        tracing::warn!(
            sections = policies.not_acted_on().join(", "),
            "these sections are checked but not acted on by this version"
        );
    }
}

/// The certificate that is served, and everybody who wants to know of it.
pub(super) struct Served {
    certificate: Arc<Certificate>,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
}

impl Served {
    /// Serves a pair from now on.
    pub(super) fn serve(&self, pair: Pair) {
        self.metrics.certificate_not_after.set(pair.not_after().as_second() as f64);
        self.readiness.certificate_loaded(pair.not_after());
        self.certificate.swap(pair);
    }

    /// The pair served now.
    pub(super) fn pair(&self) -> Option<Arc<Pair>> {
        self.certificate.current()
    }
}

/// The policies in force, and everybody who wants to know of others.
pub(super) struct InForce {
    pub(super) policies: Arc<ArcSwap<PolicySet>>,
    generations: tokio::sync::watch::Sender<u64>,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
}

impl InForce {
    /// Puts a set in force.
    pub(super) fn put(&self, set: PolicySet) {
        announce(&set, &self.metrics);
        self.policies.store(Arc::new(set));
        self.generations.send_modify(|generation| *generation += 1);
        self.readiness.policies_compiled();
    }
}

/// Follows the files. Without a cluster what they hold is in force; with one it is put together with objects first.
async fn watch_policies(
    (sources, since): (Sources, u64),
    alone: Option<Arc<InForce>>,
    loads: tokio::sync::watch::Sender<Arc<Loaded>>,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
) {
    let observer = |loaded: Result<Loaded, &[LoadError]>| match loaded {
        Ok(loaded) => {
            if let Some(alone) = &alone {
                alone.put(loaded.set.clone());
            }
            loads.send_replace(Arc::new(loaded));
        }
        Err(errors) => {
            metrics.policies_reloaded(Reload::Failure, 0, 0);
            for error in errors {
                tracing::error!(%error, "policies not reloaded, the last good ones stay in force");
            }
        }
    };
    files::watch(sources, since, POLL, observer, shutdown).await;
}

fn report_states(states: usize, errors: &[StateError], metrics: &Metrics) {
    metrics.saved_states.set(i64::try_from(states).unwrap_or(i64::MAX));
    metrics.state_reloaded(if errors.is_empty() { Reload::Success } else { Reload::Failure });
    for error in errors {
        tracing::error!(%error, "saved state not read, the last good one stays");
    }
}

/// Counts what happens in the TLS layer.
fn observer(metrics: Arc<Metrics>, readiness: Arc<Readiness>) -> Observer {
    Arc::new(move |event| match event {
        Event::Opened => {
            metrics.connections.inc();
        }
        Event::Closed => {
            metrics.connections.dec();
        }
        Event::ConnectionEnded => {
            metrics.connections_ended.inc();
        }
        Event::ConnectionRefused => {
            metrics.connections_refused.inc();
        }
        Event::HandshakeFailed => {
            metrics.handshake_failures.inc();
        }
        Event::CallerRefused(refusal) => metrics.callers.refused(refusal.as_str()),
        Event::CallersReloaded => metrics.callers.reloaded(Reload::Success),
        Event::CallersReloadFailed { .. } => metrics.callers.reloaded(Reload::Failure),
        Event::AcceptFailed { .. } => {
            metrics.accept_failures.inc();
        }
        Event::Reloaded { not_after } | Event::Renewed { not_after } => {
            metrics.certificate_reloaded(Reload::Success);
            metrics.certificate_not_after.set(not_after.as_second() as f64);
            readiness.certificate_loaded(not_after);
        }
        Event::ReloadFailed { .. } => metrics.certificate_reloaded(Reload::Failure),
    })
}
