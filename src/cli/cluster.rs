//! Running with a cluster: everything that then runs besides the webhook.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::connect::Place;
use super::reach::{Unreached, reach};
use super::serve::{Expiry, InForce, Served};
use crate::api::names::TaintId;
use crate::controller::arming;
use crate::controller::certificates::ClusterCertificates;
use crate::controller::guard;
use crate::controller::leader::{self, LeaseConfig, LeaseView, Next};
use crate::controller::native::{self, NativeConfig};
use crate::controller::policies::{self, Combined, Good, Report, Reports};
use crate::controller::published;
use crate::controller::registration;
use crate::controller::{Ended, Events, KeepConfig, MaxRemovals, NodeApi, Reconciler, Term, TermConfig};
use crate::files::Loaded;
use crate::health::Readiness;
use crate::kube_error::in_words;
use crate::metrics::{Metrics, Reload};
use crate::policy::Exemptions;
use crate::policy::native::NativeOptions;
use crate::state::{ConfigMaps, Identity, Problem, SavedStates};
use crate::tls::SubjectName;

/// Flags of `serve` that matter with a cluster only.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ControllerArgs {
    /// What saved state is kept for.
    #[arg(long, value_enum, env = "NODEGATE_IDENTITY", default_value_t = Identity::Name)]
    identity: Identity,
    /// How many nodes may lose owned labels or taints by one change [default: the larger of 10 and 10 %]
    #[arg(long, value_name = "N", env = "NODEGATE_MAX_REMOVALS")]
    max_removals: Option<usize>,
    /// Most writes per second. Nodes that join have as many again, and may use 20 seconds' worth of them at once.
    #[arg(long, value_name = "N", env = "NODEGATE_WRITES_PER_SECOND", default_value_t = 100)]
    writes_per_second: u32,
    /// Every node is looked at again after so many seconds, whatever was missed.
    #[arg(long, value_name = "SECONDS", env = "RESYNC_INTERVAL_SECONDS", default_value_t = 300)]
    resync_interval_seconds: u64,
    /// How long the leader's Lease holds without being renewed, in seconds.
    #[arg(long, value_name = "SECONDS", env = "NODEGATE_LEASE_SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=3600))]
    lease_seconds: u64,
    /// A node that has the pending taint for longer gets an event.
    #[arg(long, value_name = "DURATION", env = "NODEGATE_PENDING_TIMEOUT", default_value = "5m", value_parser = super::serve::duration)]
    pending_timeout: Duration,
    /// Release a node that has the pending taint for longer, although it lacks something.
    #[arg(long, env = "NODEGATE_RELEASE_PENDING")]
    release_pending: bool,
    /// With --cert-dir: keep caBundle of the webhook configurations equal to ca.crt of that directory.
    #[arg(long, env = "NODEGATE_INJECT_CA", requires = "cert_dir")]
    inject_ca: bool,
    /// Report what each node violates as ClusterReport objects of openreports.io, whose definition must be there.
    #[arg(long, env = "NODEGATE_CLUSTER_REPORTS")]
    cluster_reports: bool,
    /// Set failurePolicy Fail on the entries that the annotation nodegate.dev/failure-policy of the validating webhook
    /// configuration names (ENTRY=Fail), once this serves and callers trust its certificate.
    #[arg(long, env = "NODEGATE_KEEP_FAILURE_POLICY")]
    keep_failure_policy: bool,
    /// Keep the policies that the API server can evaluate by itself as native admission policies (Kubernetes 1.36) in the
    /// cluster, so that rules and governance hold while no replica answers.
    #[arg(long, env = "NODEGATE_NATIVE_POLICIES")]
    native_policies: bool,
    /// Name of the mutating and of the validating webhook configuration.
    #[arg(long, value_name = "NAME", env = "NODEGATE_WEBHOOK_CONFIGURATION", default_value = "nodegate")]
    webhook_configuration: String,
}

/// What runs besides the webhook.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Which cluster.
    pub place: Place,
    /// What saved state is kept for.
    pub identity: Identity,
    /// How many nodes may lose owned keys by one change.
    pub max_removals: MaxRemovals,
    /// Most writes per second.
    pub writes_per_second: u32,
    /// Every node is looked at again after so long.
    pub resync: Duration,
    /// How long the Lease holds.
    pub lease: Duration,
    /// A node that is pending for longer is reported.
    pub pending_timeout: Duration,
    /// Whether it is released as well.
    pub release_pending: bool,
    /// Whether caBundle is kept equal to the `ca.crt` of the certificate directory.
    pub inject_ca: bool,
    /// Whether `ClusterReport` objects are kept.
    pub cluster_reports: bool,
    /// Whether the annotated failure policy is kept while this serves.
    pub keep_failure_policy: bool,
    /// Whether native admission policies are kept.
    pub native_policies: bool,
    /// The name of the webhook configurations.
    pub webhook_configuration: String,
}

impl ControllerArgs {
    pub(crate) fn config(&self, place: Place) -> ClusterConfig {
        ClusterConfig {
            place,
            identity: self.identity,
            max_removals: self.max_removals.map_or(MaxRemovals::Tenth, MaxRemovals::Nodes),
            writes_per_second: self.writes_per_second,
            resync: Duration::from_secs(self.resync_interval_seconds.max(1)),
            lease: Duration::from_secs(self.lease_seconds),
            pending_timeout: self.pending_timeout,
            release_pending: self.release_pending,
            inject_ca: self.inject_ca,
            cluster_reports: self.cluster_reports,
            keep_failure_policy: self.keep_failure_policy,
            native_policies: self.native_policies,
            webhook_configuration: self.webhook_configuration.clone(),
        }
    }
}

/// A cluster to work on.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    config: ClusterConfig,
    /// The Lease as it is seen from here.
    pub(crate) lease: LeaseView,
    /// What is saved of nodes.
    pub(crate) saved: Arc<SavedStates>,
    maps: ConfigMaps,
}

/// What the parts of `serve` share.
pub(crate) struct Shared {
    pub(crate) in_force: Arc<InForce>,
    pub(crate) served: Served,
    /// Who is not judged; our own name is entered when it is known.
    pub(crate) exemptions: Arc<ArcSwap<Exemptions>>,
    /// How near the end of the served certificate's life is.
    pub(crate) expiry: watch::Receiver<Expiry>,
    /// Names in our own certificate.
    pub(crate) cert_names: Vec<SubjectName>,
    /// Where the certificate's files are, if it is in files.
    pub(crate) cert_dir: Option<PathBuf>,
    /// What policy files hold.
    pub(crate) files: watch::Receiver<Arc<Loaded>>,
    /// Counts up with every set of policies put in force.
    pub(crate) generation: watch::Receiver<u64>,
    pub(crate) pending: TaintId,
    /// Whether the webhook keeps stamps.
    pub(crate) stamps: bool,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) synced: Arc<AtomicBool>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shutdown: CancellationToken,
}

impl Shared {
    /// Waits until policies and saved state have been read.
    async fn until_synced(&self) {
        while !self.synced.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Tells the leader's work of `NodePolicy` objects.
struct Told {
    reports: watch::Sender<Reports>,
    good: watch::Sender<Arc<Vec<Good>>>,
}

/// The other end of [`Told`].
struct ToldOf {
    reports: watch::Receiver<Reports>,
    good: watch::Receiver<Arc<Vec<Good>>>,
}

impl Told {
    fn channel() -> (Self, ToldOf) {
        let ((reports, told), (good, in_force)) = (watch::channel(Reports::default()), watch::channel(Arc::default()));
        (Self { reports, good }, ToldOf { reports: told, good: in_force })
    }

    fn tell(&self, now: BTreeMap<String, Report>, good: Vec<Good>, metrics: &Metrics) {
        metrics.policies_judged(now.iter().map(|(name, report)| (name.as_str(), !report.errors.is_empty())));
        self.reports.send_if_modified(|reports| {
            let news = **reports != now;
            if news {
                for (name, report) in &now {
                    if let Some(complaint) = report.complaint() {
                        tracing::error!(policy = name, "this NodePolicy is faulty: {complaint}");
                    }
                }
                *reports = Arc::new(now);
            }
            news
        });
        self.good.send_replace(Arc::new(good));
    }
}

impl Cluster {
    /// A cluster that is about to be worked on. No request is sent yet.
    ///
    /// # Errors
    /// If it is not said how it is reached: a kubeconfig that cannot be read, say.
    pub(crate) async fn new(config: ClusterConfig) -> anyhow::Result<Self> {
        let client = config.place.client().await?;
        let saved = Arc::new(SavedStates::new(config.identity));
        let maps = ConfigMaps::new(client.clone(), &config.place.namespace, saved.clone());
        Ok(Self { client, lease: LeaseView::new(config.lease), saved, maps, config })
    }

    /// Starts everything that runs besides the webhook. The task ends after `shutdown`, when the Lease is released.
    pub(crate) fn start(self, shared: Shared) -> tokio::task::JoinHandle<()> {
        shared.readiness.waits_for_cluster();
        shared.readiness.waits_for_state();
        tokio::spawn(async move {
            if shared.shutdown.run_until_cancelled(self.reach(&shared)).await.is_none() {
                return;
            }
            let (told, objects) = Told::channel();
            let following = self.follow(&shared, told);
            let leading = self.lead(&shared, &objects);
            tokio::select! {
                () = following => {}
                () = leading => {}
            }
        })
    }

    /// Waits until the API server answers and the namespace is there, and learns who we are.
    async fn reach(&self, shared: &Shared) {
        let mut waited = false;
        let told = |unreached: &Unreached| {
            waited = true;
            tracing::warn!("{unreached}; waiting, and not ready until then");
        };
        let ask_name = shared.exemptions.load().self_user.is_none();
        let name = reach(&self.client, &self.config.place.namespace, ask_name, told).await;
        if let Some(name) = name {
            let exemptions = Exemptions::clone(&shared.exemptions.load());
            shared.exemptions.store(Arc::new(Exemptions { self_user: Some(name), ..exemptions }));
        }
        if waited {
            tracing::info!("the cluster is reached");
        }
        shared.readiness.cluster_reached();
    }

    /// Publishes how near the end of the served certificate's life is, on the webhook configuration that it is for.
    async fn publish_expiry(&self, mut expiry: watch::Receiver<Expiry>, events: &Events) {
        let about = ObjectReference {
            api_version: Some("admissionregistration.k8s.io/v1".to_owned()),
            kind: Some("MutatingWebhookConfiguration".to_owned()),
            name: Some(self.config.webhook_configuration.clone()),
            ..ObjectReference::default()
        };
        loop {
            if let Some((reason, note)) = expiry.borrow_and_update().event() {
                events.later_for(about.clone(), reason, note);
            }
            if expiry.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// What every replica does.
    async fn follow(&self, shared: &Shared, told: Told) {
        let metrics = &shared.metrics;
        let (has_state, has_policies) = (AtomicBool::new(false), AtomicBool::new(false));
        let synced = || {
            let both = has_state.load(Ordering::Relaxed) && has_policies.load(Ordering::Relaxed);
            shared.synced.fetch_or(both, Ordering::Relaxed);
        };
        let state_read = || {
            shared.readiness.state_read();
            has_state.store(true, Ordering::Relaxed);
            synced();
            tracing::info!(nodes = self.saved.len(), "saved state read");
        };
        let mut composition = None;
        let combined = |combined: Combined, files: &Arc<Loaded>| {
            let now = Some((files.fingerprint, combined.composition()));
            let Combined { set, reports, good } = combined;
            // A faulty update leaves what is in force as it is: nothing begins anew.
            if composition != now {
                composition = now;
                shared.in_force.put(set);
            }
            told.tell(reports, good, &shared.metrics);
            has_policies.store(true, Ordering::Relaxed);
            synced();
        };
        let (events, publishing) = Events::new(self.client.clone(), &identity());
        let problem = |problem: Problem| {
            metrics.controller.unreadable_states.inc();
            metrics.state_reloaded(Reload::Failure);
            tracing::error!(
                config_map = problem.config_map,
                error = problem.why,
                "saved state cannot be read; it counts as none and is kept aside"
            );
            let note =
                format!("ConfigMap {}: {}; it counts as empty and is kept aside", problem.config_map, problem.why);
            events.later_about(&problem.node, "UnreadableState", note);
        };
        let counting = async {
            loop {
                metrics.saved_states.set(i64::try_from(self.saved.len()).unwrap_or(i64::MAX));
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        };
        tokio::join!(
            self.maps.follow(state_read, problem),
            policies::follow(self.client.clone(), &self.config.place.namespace, shared.files.clone(), combined),
            self.follow_certificate(shared),
            self.lease.follow(self.client.clone(), &self.config.place.namespace),
            publishing,
            self.publish_expiry(shared.expiry.clone(), &events),
            counting,
        );
    }

    /// What the leader does, while it leads.
    async fn lead(&self, shared: &Shared, objects: &ToldOf) {
        let lease = LeaseConfig {
            namespace: self.config.place.namespace.clone(),
            identity: identity(),
            duration: self.config.lease,
        };
        let leading = |leads: bool| {
            shared.metrics.controller.leading.set(i64::from(leads));
        };
        let mut stood_down = 0;
        loop {
            tokio::select! {
                () = self.until_nodes_are_seen(shared) => {}
                () = shared.shutdown.cancelled() => return,
            }
            let work = || self.term(shared, objects);
            let led = leader::lead(self.client.clone(), &lease, &self.lease, work, leading, shared.shutdown.clone());
            match led.await {
                Ok(_) if shared.shutdown.is_cancelled() => return,
                Ok(Next::Again) => stood_down = 0,
                Ok(Next::StandDown) => stood_down += 1,
                Err(error) => tracing::warn!(error = in_words(&error), "the Lease cannot be had; trying again"),
            }
            tokio::select! {
                () = shared.shutdown.cancelled() => return,
                () = tokio::time::sleep(pause(stood_down)) => {}
            }
        }
    }

    /// Returns when nodes can be listed and watched: who cannot does not try to lead.
    async fn until_nodes_are_seen(&self, shared: &Shared) {
        let (nodes, failing) = (NodeApi::new(self.client.clone()), &shared.metrics.controller.node_watch_failing);
        let mut said = None;
        while let Err(error) = nodes.can_be_seen().await {
            failing.set(1);
            if said.as_ref() != Some(&error) {
                tracing::warn!(%error, "nodes cannot be listed and watched, so this replica does not try to lead; trying again");
                said = Some(error);
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        failing.set(0);
    }

    /// The certificate of the Secret, unless it is in files.
    async fn follow_certificate(&self, shared: &Shared) {
        if shared.cert_dir.is_some() {
            std::future::pending::<()>().await;
        }
        let metrics = shared.metrics.clone();
        let on_pair = |pair| {
            metrics.certificate_reloaded(Reload::Success);
            shared.served.serve(pair);
        };
        self.certificates(shared).follow(on_pair).await;
    }

    /// What the leader does for certificates: keeps the Secret, or tells callers of the CA in the files.
    async fn lead_certificates(&self, shared: &Shared) {
        let configuration = self.config.webhook_configuration.clone();
        match &shared.cert_dir {
            Some(directory) if self.config.inject_ca => {
                registration::inject_ca(self.client.clone(), configuration, directory.join("ca.crt")).await;
            }
            Some(_) => std::future::pending().await,
            None => self.certificates(shared).lead().await,
        }
    }

    fn certificates(&self, shared: &Shared) -> ClusterCertificates {
        let (namespace, names) = (self.config.place.namespace.clone(), shared.cert_names.clone());
        ClusterCertificates {
            configuration: self.config.webhook_configuration.clone(),
            ..ClusterCertificates::new(self.client.clone(), namespace, names)
        }
    }

    /// What the leader does for the failure policy, once it serves itself.
    async fn keep_failure_policy(&self, shared: &Shared) {
        if !self.config.keep_failure_policy {
            std::future::pending::<()>().await;
        }
        let serving = || {
            let ready = shared.synced.load(Ordering::Relaxed) && shared.readiness.unmet(Timestamp::now()).is_empty();
            ready.then(|| shared.served.pair()).flatten()
        };
        arming::keep_failure_policy(self.client.clone(), self.config.webhook_configuration.clone(), serving).await;
    }

    /// What the leader does for the guard, once policies are known.
    async fn keep_guard(&self, shared: &Shared) {
        shared.until_synced().await;
        let (client, configuration) = (self.client.clone(), self.config.webhook_configuration.clone());
        guard::keep_guard(client, configuration, shared.in_force.policies.clone(), shared.generation.clone()).await;
    }

    /// What the leader does for native policies, once policies are known.
    async fn keep_native(&self, shared: &Shared) {
        if !self.config.native_policies {
            std::future::pending::<()>().await;
        }
        shared.until_synced().await;
        let exemptions = Exemptions::clone(&shared.exemptions.load());
        let options = NativeOptions {
            name: self.config.webhook_configuration.clone(),
            break_glass_groups: exemptions.break_glass_groups.written().map(str::to_owned).collect(),
            self_user: exemptions.self_user,
            ..NativeOptions::default()
        };
        let config = NativeConfig { options, keeper: self.config.place.namespace.clone() };
        let policies = shared.in_force.policies.clone();
        native::keep_native(self.client.clone(), config, policies, shared.generation.clone()).await;
    }

    /// One term: certificates, the failure policy, the guard, native policies, policies and nodes. If any ended by itself, the
    /// term would begin anew.
    async fn term(&self, shared: &Shared, objects: &ToldOf) -> Next {
        tokio::select! {
            () = self.lead_certificates(shared) => Next::Again,
            () = self.keep_failure_policy(shared) => Next::Again,
            () = self.keep_guard(shared) => Next::Again,
            () = self.keep_native(shared) => Next::Again,
            () = self.keep_policies(shared, objects) => Next::Again,
            ended = self.keep_nodes(shared, &objects.reports) => match ended {
                Ended::Anew => Next::Again,
                Ended::Blind => Next::StandDown,
            },
        }
    }

    /// What the leader does for policies: records what is in force, and tells the command line of it.
    async fn keep_policies(&self, shared: &Shared, objects: &ToldOf) {
        shared.until_synced().await;
        let (client, namespace) = (&self.client, &self.config.place.namespace);
        let policies = shared.in_force.policies.clone();
        tokio::select! {
            () = policies::keep_revisions(client.clone(), namespace, objects.good.clone(), &shared.metrics) => {}
            () = published::keep(client.clone(), namespace, policies, shared.generation.clone()) => {}
        }
    }

    async fn keep_nodes(&self, shared: &Shared, reports: &watch::Receiver<Reports>) -> Ended {
        shared.until_synced().await;
        let (events, publishing) = Events::new(self.client.clone(), &identity());
        let reconciler = Reconciler::new(
            self.client.clone(),
            self.keep_config(shared.pending.clone(), shared.stamps),
            shared.in_force.policies.clone(),
            self.maps.clone(),
            events,
            shared.metrics.clone(),
        );
        let config = TermConfig {
            resync: self.config.resync,
            configuration: self.config.webhook_configuration.clone(),
            reports: self.config.cluster_reports,
            blind_after: self.config.lease * 2,
        };
        let (generation, reports) = (shared.generation.clone(), reports.clone());
        let term = Term::new(self.client.clone(), Arc::new(reconciler), config, generation, reports);
        let blind = Blind(&shared.readiness);
        let failing = term.failing();
        tokio::select! {
            ended = term.run() => ended,
            () = publishing => Ended::Anew,
            () = blind.follow(failing, self.config.lease) => Ended::Anew,
        }
    }

    fn keep_config(&self, pending: TaintId, stamps: bool) -> KeepConfig {
        KeepConfig {
            max_removals: self.config.max_removals,
            writes_per_second: self.config.writes_per_second,
            pending: vec![pending],
            pending_timeout: self.config.pending_timeout,
            release_pending: self.config.release_pending,
            adopt: false,
            stamps,
        }
    }
}

/// Tells whether this replica leads without seeing nodes, for as long as it leads.
struct Blind<'a>(&'a Readiness);

impl Blind<'_> {
    /// Not ready once the watch has failed for so long; runs until dropped.
    async fn follow(&self, mut failing: watch::Receiver<Option<Instant>>, limit: Duration) {
        loop {
            let left = failing.borrow_and_update().map(|since| limit.saturating_sub(since.elapsed()));
            self.0.leads_blind(left.is_some_and(|left| left.is_zero()));
            let changed = tokio::select! {
                changed = failing.changed() => changed.is_ok(),
                () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some_and(|left| !left.is_zero()) => true,
            };
            if !changed {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for Blind<'_> {
    fn drop(&mut self) {
        self.0.leads_blind(false);
    }
}

/// How long to wait before leading again: longer each time that this replica has stood down for others.
fn pause(stood_down: u32) -> Duration {
    if stood_down == 0 { Duration::from_secs(2) } else { Duration::from_secs(15) * 2_u32.pow(stood_down.min(5) - 1) }
}

/// Who this process is among the replicas: the pod's name, or host and process.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").ok().filter(|host| !host.is_empty());
    format!("{}_{}", host.as_deref().unwrap_or("nodegate"), std::process::id())
}
