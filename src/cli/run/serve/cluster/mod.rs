//! With a cluster: the work of every replica besides the webhook. The work of the leader is in `leader`.

mod leader;
mod node_watch;
mod policy_feed;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::watch;

use self::policy_feed::PolicyFeed;
use crate::cli::run::serve::certificate::Served;
use crate::cli::run::serve::controller_args::ClusterConfig;
use crate::cli::run::serve::expiry::Expiry;
use crate::cli::run::serve::policies::InForce;
use crate::cli::run::serve::process::Process;
use crate::cli::shared::cluster::wait_for_cluster::{Unreached, reach};
use nodegate_base::metrics::Reload;
use nodegate_controller::Events;
use nodegate_controller::cluster::annotation_calls;
use nodegate_controller::cluster::certificates::ClusterCertificates;
use nodegate_controller::leader::{LeaseView, longest_delay};
use nodegate_controller::policies::{self, Combined};
use nodegate_policy::{Exemptions, PendingTaints};
use nodegate_stores::files::Loaded;
use nodegate_stores::inventory::{self, InventoryCache, Refresher};
use nodegate_stores::machines::Asked;
use nodegate_stores::state::{ConfigMaps, SavedStates, Unused, UnusedDocument};
use nodegate_stores::witnesses::Witnesses;
use nodegate_webhook::tls::SubjectName;

/// A cluster, and the namespace that nodegate uses in it.
pub(in crate::cli::run::serve) struct Cluster {
    pub(in crate::cli::run::serve) client: Client,
    config: ClusterConfig,
    /// The Lease as this replica observes it.
    pub(in crate::cli::run::serve) lease: LeaseView,
    /// The saved state of nodes.
    pub(in crate::cli::run::serve) saved: Arc<SavedStates>,
    maps: ConfigMaps,
    /// Who asked for the certificates of kubelets, and the objects that provisioners make for machines.
    pub(in crate::cli::run::serve) witnesses: Arc<Witnesses>,
    /// The answers of inventories.
    pub(in crate::cli::run::serve) inventory: Arc<InventoryCache>,
}

/// The state that the webhook and the cluster part of `serve` share.
pub(in crate::cli::run::serve) struct Shared {
    pub(in crate::cli::run::serve) process: Process,
    pub(in crate::cli::run::serve) in_force: Arc<InForce>,
    pub(in crate::cli::run::serve) served: Served,
    /// Whose writes are not judged; nodegate's own name is added when it is known.
    pub(in crate::cli::run::serve) exemptions: Arc<ArcSwap<Exemptions>>,
    /// How near the expiration of the serving certificate is.
    pub(in crate::cli::run::serve) expiry: watch::Receiver<Expiry>,
    /// Names in the issued certificate.
    pub(in crate::cli::run::serve) cert_names: Vec<SubjectName>,
    /// The certificate directory, if the certificate is in files.
    pub(in crate::cli::run::serve) cert_dir: Option<PathBuf>,
    /// The content of policy files.
    pub(in crate::cli::run::serve) files: watch::Receiver<Arc<Loaded>>,
    /// Counts the sets of policies that were put in force.
    pub(in crate::cli::run::serve) generation: watch::Receiver<u64>,
    pub(in crate::cli::run::serve) pending_taints: PendingTaints,
    /// Whether the webhook maintains stamps.
    pub(in crate::cli::run::serve) records_last_change: bool,
    /// Whether policies, saved state and the answers of inventories have been loaded.
    pub(in crate::cli::run::serve) synced: Arc<AtomicBool>,
    /// Whether the API server leaves out writes that change only annotations.
    pub(in crate::cli::run::serve) left_out: watch::Sender<bool>,
    /// Why the guard lacks keys of the policies in force, while this replica leads.
    pub(in crate::cli::run::serve) guard_fault: watch::Sender<Option<String>>,
    /// Asks inventories while this replica leads.
    pub(in crate::cli::run::serve) refresher: Arc<Refresher>,
}

impl Shared {
    /// Waits until policies and saved state have been loaded.
    pub(super) async fn until_synced(&self) {
        while !self.synced.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Cluster {
    /// Creates the cluster part, if there is one. No request is sent yet.
    ///
    /// # Errors
    /// Returns an error if the connection is not configured correctly, for example if the kubeconfig cannot be read.
    pub(in crate::cli::run::serve) async fn configured(config: Option<ClusterConfig>) -> anyhow::Result<Option<Self>> {
        let Some(config) = config else { return Ok(None) };
        let client = config.place.client().await?;
        let saved = Arc::new(SavedStates::new(config.identity));
        let maps = ConfigMaps::new(client.clone(), &config.place.namespace, saved.clone());
        Ok(Some(Self {
            client,
            lease: LeaseView::new(config.lease),
            saved,
            maps,
            witnesses: Arc::default(),
            inventory: Arc::default(),
            config,
        }))
    }

    /// Starts everything that runs besides the webhook. The task ends after `shutdown`, when the Lease is released.
    pub(in crate::cli::run::serve) fn start(self, shared: Shared) -> tokio::task::JoinHandle<()> {
        shared.process.readiness.waits_for_cluster();
        shared.process.readiness.waits_for_state();
        tokio::spawn(async move {
            if shared.process.shutdown.run_until_cancelled(self.reach(&shared)).await.is_none() {
                return;
            }
            let (feed, objects) = PolicyFeed::channel();
            let following = self.follow(&shared, feed);
            let leading = self.lead(&shared, &objects);
            tokio::select! {
                () = following => {}
                () = leading => {}
            }
        })
    }

    /// Waits until the API server answers and the namespace exists, and reads nodegate's own user name.
    async fn reach(&self, shared: &Shared) {
        let mut waited = false;
        let report = |unreached: &Unreached| {
            waited = true;
            tracing::warn!("{unreached}; nodegate is waiting, and is not ready until then");
        };
        let ask_name = shared.exemptions.load().self_user.is_none();
        let name = reach(&self.client, &self.config.place.namespace, ask_name, report).await;
        if let Some(name) = name {
            let exemptions = Exemptions::clone(&shared.exemptions.load());
            shared.exemptions.store(Arc::new(Exemptions { self_user: Some(name), ..exemptions }));
        }
        if waited {
            tracing::info!("connected to the cluster");
        }
        shared.process.readiness.cluster_reached();
    }

    /// Publishes events about the expiration of the serving certificate, on the webhook configuration that uses it.
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

    /// Does the work of every replica.
    async fn follow(&self, shared: &Shared, feed: PolicyFeed) {
        let metrics = &shared.process.metrics;
        let [has_state, has_policies, has_answers] = [const { AtomicBool::new(false) }; 3];
        let synced = || {
            let all = [&has_state, &has_policies, &has_answers].iter().all(|has| has.load(Ordering::Relaxed));
            shared.synced.fetch_or(all, Ordering::Relaxed);
            if all {
                metrics.loaded.everything_loaded();
            }
        };
        let state_read = || {
            shared.process.readiness.state_read();
            has_state.store(true, Ordering::Relaxed);
            synced();
            tracing::info!(nodes = self.saved.len(), "saved state read");
        };
        let mut composition = None;
        let combined = |combined: Combined, files: &Arc<Loaded>| {
            let now = Some((files.fingerprint, combined.composition()));
            let Combined { set, reports, good } = combined;
            // An invalid update does not change what is in force, so nothing restarts.
            if composition != now {
                composition = now;
                shared.in_force.put(set);
            }
            feed.publish(reports, good, &shared.process.metrics);
            has_policies.store(true, Ordering::Relaxed);
            synced();
        };
        let (events, publishing) = Events::new(self.client.clone(), &identity());
        let problem = |problem: UnusedDocument| {
            if matches!(problem.why, Unused::Unreadable(_)) {
                metrics.controller.unreadable_states.inc();
                metrics.loaded.state_reloaded(Reload::Failure);
            }
            let (reason, note) = problem.event();
            tracing::error!(node = problem.node, "saved state is not used: {note}");
            events.later_about(&problem.node, reason, note);
        };
        let counting = async {
            loop {
                metrics.loaded.set_saved_states(self.saved.len());
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        };
        let answers_read = || {
            has_answers.store(true, Ordering::Relaxed);
            synced();
        };
        tokio::join!(
            self.maps.follow(longest_delay(self.config.lease), state_read, problem),
            inventory::follow(
                self.client.clone(),
                &self.config.place.namespace,
                &self.inventory,
                &metrics.inventory,
                answers_read
            ),
            policies::follow(self.client.clone(), &self.config.place.namespace, shared.files.clone(), combined),
            self.follow_certificate(shared),
            self.follow_kubelet_certificates(shared),
            self.follow_machines(shared),
            annotation_calls::follow_annotation_calls(
                self.client.clone(),
                &self.config.webhook_configuration,
                &shared.left_out,
                &shared.in_force.policies,
                shared.generation.clone(),
            ),
            self.lease.follow(self.client.clone(), &self.config.place.namespace),
            publishing,
            self.publish_expiry(shared.expiry.clone(), &events),
            counting,
        );
    }

    /// Follows who asks for the certificates of kubelets, from when on policies ask for that.
    async fn follow_kubelet_certificates(&self, shared: &Shared) {
        let mut generation = shared.generation.clone();
        let asks = |_: &u64| shared.in_force.policies.load().asks_for_bootstrap();
        if generation.wait_for(asks).await.is_err() {
            std::future::pending::<()>().await;
        }
        self.witnesses.certificates.follow(self.client.clone(), longest_delay(self.config.lease)).await;
    }

    /// Follows the objects that provisioners make for machines, as far as policies ask for them.
    async fn follow_machines(&self, shared: &Shared) {
        let mut generation = shared.generation.clone();
        let asked = || Asked::by(&shared.in_force.policies.load());
        loop {
            let now = asked();
            let longest = longest_delay(self.config.lease);
            let following = self.witnesses.machines.follow(self.client.clone(), now.clone(), longest);
            let others = async { generation.wait_for(|_| asked() != now).await.is_ok() };
            let is_open = tokio::select! {
                () = following => true,
                is_open = others => is_open,
            };
            if !is_open {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Serves the certificate of the Secret, unless it is in files.
    async fn follow_certificate(&self, shared: &Shared) {
        if shared.cert_dir.is_some() {
            std::future::pending::<()>().await;
        }
        let metrics = shared.process.metrics.clone();
        let on_pair = |pair| {
            metrics.loaded.certificate_reloaded(Reload::Success);
            shared.served.serve(pair);
        };
        self.certificates(shared).follow(on_pair).await;
    }

    fn certificates(&self, shared: &Shared) -> ClusterCertificates {
        let (namespace, names) = (self.config.place.namespace.clone(), shared.cert_names.clone());
        ClusterCertificates {
            configuration: self.config.webhook_configuration.clone(),
            ..ClusterCertificates::new(self.client.clone(), namespace, names)
        }
    }
}

/// The identity of this start of the replica: the pod's name or the host, and when it started. In a container, each process has the
/// number 1: one that is started again must not take the Lease of the one before, of which requests may be under way, for its own.
static IDENTITY: LazyLock<String> = LazyLock::new(|| {
    let host = std::env::var("HOSTNAME").ok().filter(|host| !host.is_empty());
    identity_of(host.as_deref().unwrap_or("nodegate"), std::process::id(), Timestamp::now())
});

fn identity() -> String {
    IDENTITY.clone()
}

fn identity_of(host: &str, process: u32, start: Timestamp) -> String {
    format!("{host}_{process}-{:x}", start.as_nanosecond())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nodegate_controller::leader::Held;

    #[test]
    fn two_starts_of_one_pod_have_two_identities_and_one_start_has_one() {
        let start = |time: &str| identity_of("nodegate-7c9-x", 1, time.parse().unwrap());
        assert_ne!(start("2026-01-01T00:00:00.000000001Z"), start("2026-01-01T00:00:00.000000002Z"));
        let (holder, since, renewed, duration) = (start("2026-01-01T00:00:00Z"), None, None, None);
        assert!(holder.starts_with("nodegate-7c9-x_1-"), "{holder}");
        assert_eq!(Held { holder, since, renewed, duration }.host(), "nodegate-7c9-x");
        assert_eq!(identity(), identity());
    }
}
