//! The work of the leader.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use jiff::Timestamp;
use tokio::sync::watch;

use crate::cli::run::serve::cluster::node_watch::Blind;
use crate::cli::run::serve::cluster::policy_feed::PolicyUpdates;
use crate::cli::run::serve::cluster::{Cluster, Shared, identity};
use nodegate_base::kube_error::in_words;
use nodegate_controller::cluster::failure_policy;
use nodegate_controller::cluster::guard::{self, GuardFault};
use nodegate_controller::cluster::native::{self, NativeConfig};
use nodegate_controller::cluster::registration;
use nodegate_controller::leader::{self, LeaseConfig, Next};
use nodegate_controller::policies::{self, Reports};
use nodegate_controller::tell::published;
use nodegate_controller::{Ended, Events, KeepConfig, LeaderSession, LeaderSessionConfig, NodeApi, Reconciler};
use nodegate_policy::native::NativeOptions;
use nodegate_policy::{Exemptions, PendingTaints};

/// The delay between two sessions.
const PAUSE: Duration = Duration::from_secs(2);
/// The maximum delay after this replica has stood down for others.
const STAND_DOWN_MAX: Duration = Duration::from_secs(240);
/// The delays in that case. They increase until a session ends for another reason.
const STAND_DOWN: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(15))
    .with_max_delay(STAND_DOWN_MAX)
    .without_max_times();

impl Cluster {
    /// Does the work of the leader while this replica leads.
    pub(super) async fn lead(&self, shared: &Shared, objects: &PolicyUpdates) {
        let lease = LeaseConfig {
            namespace: self.config.place.namespace.clone(),
            identity: identity(),
            duration: self.config.lease,
        };
        let leading = |leads: bool| {
            shared.process.metrics.controller.leading.set(i64::from(leads));
        };
        let mut stand_downs = STAND_DOWN.build();
        let mut pause = PAUSE;
        loop {
            tokio::select! {
                () = self.until_nodes_are_seen(shared) => {}
                () = shared.process.shutdown.cancelled() => return,
            }
            let work = || self.session(shared, objects);
            let led =
                leader::lead(self.client.clone(), &lease, &self.lease, work, leading, shared.process.shutdown.clone());
            match led.await {
                Ok(_) if shared.process.shutdown.is_cancelled() => return,
                Ok(Next::Again) => (stand_downs, pause) = (STAND_DOWN.build(), PAUSE),
                Ok(Next::StandDown) => pause = stand_downs.next().unwrap_or(STAND_DOWN_MAX),
                Err(error) => tracing::warn!(error = in_words(&error), "could not read or create the Lease; retrying"),
            }
            tokio::select! {
                () = shared.process.shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Returns when nodes can be listed and watched. A replica that cannot do so does not try to lead.
    async fn until_nodes_are_seen(&self, shared: &Shared) {
        let (nodes, failing) =
            (NodeApi::new(self.client.clone()), &shared.process.metrics.controller.node_watch_failing);
        let mut reported = None;
        while let Err(error) = nodes.can_be_seen().await {
            failing.set(1);
            if reported.as_ref() != Some(&error) {
                tracing::warn!(%error, "cannot list and watch nodes, so this replica does not try to become leader; retrying");
                reported = Some(error);
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        failing.set(0);
    }

    /// Maintains certificates: the Secret, or the CA of the files in caBundle.
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

    /// Sets failurePolicy, once this replica serves.
    async fn keep_failure_policy(&self, shared: &Shared) {
        if !self.config.keep_failure_policy {
            std::future::pending::<()>().await;
        }
        let serving = || {
            let ready =
                shared.synced.load(Ordering::Relaxed) && shared.process.readiness.unmet(Timestamp::now()).is_empty();
            ready.then(|| shared.served.pair()).flatten()
        };
        failure_policy::keep_failure_policy(self.client.clone(), self.config.webhook_configuration.clone(), serving)
            .await;
    }

    /// Maintains the guard's parameters, once policies are known.
    async fn keep_guard(&self, shared: &Shared) {
        shared.until_synced().await;
        let (client, configuration) = (self.client.clone(), self.config.webhook_configuration.clone());
        let (policies, changes) = (shared.in_force.policies.clone(), shared.generation.clone());
        let gauge = &shared.process.metrics.controller.guard_not_current;
        let fault = GuardFault { why: &shared.guard_fault, gauge };
        guard::keep_guard(client, configuration, policies, changes, fault).await;
    }

    /// Maintains native policies, once policies are known.
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
            pending_taints: shared.pending_taints.clone(),
            ..NativeOptions::default()
        };
        let config = NativeConfig { options, keeper: self.config.place.namespace.clone() };
        let policies = shared.in_force.policies.clone();
        native::keep_native(self.client.clone(), config, policies, shared.generation.clone()).await;
    }

    /// One session: certificates, failurePolicy, the guard, native policies, policies and nodes. If one of them ended by
    /// itself, the session would start again.
    async fn session(&self, shared: &Shared, objects: &PolicyUpdates) -> Next {
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

    /// Records the policies in force, and publishes them for the command line.
    async fn keep_policies(&self, shared: &Shared, objects: &PolicyUpdates) {
        shared.until_synced().await;
        let (client, namespace) = (&self.client, &self.config.place.namespace);
        let policies = shared.in_force.policies.clone();
        tokio::select! {
            () = policies::keep_revisions(client.clone(), namespace, objects.good.clone(), &shared.process.metrics) => {}
            () = published::keep(client.clone(), namespace, policies, shared.generation.clone()) => {}
        }
    }

    async fn keep_nodes(&self, shared: &Shared, reports: &watch::Receiver<Reports>) -> Ended {
        shared.until_synced().await;
        let (events, publishing) = Events::new(self.client.clone(), &identity());
        let reconciler = Reconciler::new(
            self.client.clone(),
            self.keep_config(shared.pending_taints.clone(), shared.records_last_change),
            shared.in_force.policies.clone(),
            self.maps.clone(),
            self.inventory.clone(),
            events,
            shared.process.metrics.clone(),
        )
        .with_witnesses(self.witnesses.clone())
        .with_traces(shared.process.traces.clone());
        let config = LeaderSessionConfig {
            resync: self.config.resync,
            configuration: self.config.webhook_configuration.clone(),
            namespace: self.config.place.namespace.clone(),
            reports: self.config.cluster_reports,
            lease: self.config.lease,
            annotations_left_out: shared.left_out.subscribe(),
            guard_fault: shared.guard_fault.subscribe(),
        };
        let (generation, reports) = (shared.generation.clone(), reports.clone());
        let session = LeaderSession::new(
            self.client.clone(),
            Arc::new(reconciler),
            config,
            generation,
            reports,
            shared.refresher.clone(),
        );
        let blind = Blind(&shared.process.readiness);
        let failing = session.failing();
        tokio::select! {
            ended = session.run() => ended,
            () = publishing => Ended::Anew,
            () = blind.follow(failing, self.config.lease) => Ended::Anew,
        }
    }

    fn keep_config(&self, pending: PendingTaints, records_last_change: bool) -> KeepConfig {
        KeepConfig {
            max_removals: self.config.max_removals,
            writes_per_second: self.config.writes_per_second,
            pending,
            pending_timeout: self.config.pending_timeout,
            release_pending: self.config.release_pending,
            adopt: false,
            records_last_change,
            counted_labels: self.config.counted_labels.clone(),
        }
    }
}
