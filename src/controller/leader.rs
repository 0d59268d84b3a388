//! Who of the replicas writes: one holds a Lease, everybody watches it.
//!
//! The Lease is taken and renewed by kube-lease-manager. What a holder may do is decided by what is *seen* of the
//! Lease: nobody writes who has not seen his own renewal within the lease's duration by his own clock, so that a
//! holder that cannot reach the API server, or whose clock jumped, stops by himself. What was not renewed for long by
//! that clock is freed: the library compares times of day, and would wait for as long as a holder's clock was ahead.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use json_patch::{AddOperation, PatchOperation};
use jsonptr::PointerBuf;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use kube_lease_manager::{LeaseManagerBuilder, LeaseManagerError};
use serde_json::Value as Json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::registration::write_to;
use crate::kube_error::in_words;
use crate::telemetry::brief;

/// The name of the Lease.
pub const LEASE: &str = "nodegate";

/// How long releasing the Lease may take.
const RELEASE: Duration = Duration::from_secs(2);

/// How the Lease is kept.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// The namespace it is in.
    pub namespace: String,
    /// Who we are among the replicas.
    pub identity: String,
    /// How long it holds without being renewed.
    pub duration: Duration,
}

impl LeaseConfig {
    /// How long before its end it is renewed: a third of it is left then for trying again.
    fn grace(&self) -> Duration {
        self.duration * 2 / 3
    }
}

/// What was last seen of the Lease.
#[derive(Clone, Debug, Default)]
struct Seen {
    holder: Option<String>,
    renewed: Option<k8s_openapi::jiff::Timestamp>,
    /// When its renewal was seen, by our own clock that does not jump.
    at: Option<Instant>,
    /// Since when it has been known to be renewed as it is, by that clock.
    since: Option<Instant>,
    /// How long it holds, by what it says itself.
    duration: Option<Duration>,
    version: Option<String>,
}

impl Seen {
    /// How long until the holder is one who does not renew any more: twice the time that the Lease holds, so that the
    /// library has had its turn. `None` when nobody holds it.
    fn lives(&self, usually: Duration) -> Option<Duration> {
        self.holder.as_ref()?;
        Some((self.duration.unwrap_or(usually) * 2).saturating_sub(self.since?.elapsed()))
    }
}

/// The Lease as it is seen from here. Cheap to share.
#[derive(Clone, Debug)]
pub struct LeaseView {
    seen: Arc<Mutex<Seen>>,
    changed: watch::Sender<()>,
    duration: Duration,
}

impl LeaseView {
    /// Nothing has been seen yet.
    pub fn new(duration: Duration) -> Self {
        Self { seen: Arc::default(), changed: watch::Sender::default(), duration }
    }

    fn last(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether some leader has renewed within three lease durations, so that deferred work will be done.
    pub fn has_leader(&self) -> bool {
        let seen = self.last();
        seen.holder.is_some() && seen.at.is_some_and(|at| at.elapsed() < self.duration * 3)
    }

    /// How long `identity` may still write; zero when it may not.
    fn authority(&self, identity: &str) -> Duration {
        let seen = self.last();
        match (seen.holder.as_deref(), seen.at) {
            (Some(holder), Some(at)) if holder == identity => self.duration.saturating_sub(at.elapsed()),
            _ => Duration::ZERO,
        }
    }

    fn note(&self, lease: Option<&Lease>, listing: bool) {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.clone()).filter(|holder| !holder.is_empty());
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        let duration = spec.and_then(|spec| u64::try_from(spec.lease_duration_seconds?).ok()).map(Duration::from_secs);
        let version = lease.and_then(ResourceExt::resource_version);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.holder != holder || seen.renewed != renewed {
            // A list shows a renewal of some time before: it counts no more than what was seen then.
            let before = seen.at.filter(|_| seen.holder == holder);
            let at = if listing { before } else { Some(Instant::now()) };
            *seen = Seen { holder, renewed, at, since: Some(Instant::now()), duration, version: None };
        }
        seen.version = version;
        drop(seen);
        self.changed.send_replace(());
    }

    /// Returns the version of a Lease that is held by somebody who does not renew it any more.
    async fn abandoned(&self) -> Option<String> {
        let mut changed = self.changed.subscribe();
        loop {
            let seen = self.last();
            let lives = seen.lives(self.duration);
            if lives.is_some_and(|lives| lives.is_zero()) {
                return seen.version;
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = tokio::time::sleep(lives.unwrap_or(self.duration)) => {}
            }
        }
    }

    /// Watches the Lease; runs until dropped.
    pub async fn follow(&self, client: Client, namespace: &str) {
        let api: Api<Lease> = Api::namespaced(client, namespace);
        let only = watcher::Config::default().fields(&format!("metadata.name={LEASE}"));
        let mut stream = std::pin::pin!(watcher::watcher(api, only).default_backoff());
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Apply(lease)) => self.note(Some(&lease), false),
                Ok(Event::InitApply(lease)) => self.note(Some(&lease), true),
                Ok(Event::Delete(_)) => self.note(None, false),
                Ok(Event::Init | Event::InitDone) => {}
                Err(error) => {
                    tracing::debug!(error = brief(in_words(&error)), "the watch of the Lease failed; trying again");
                }
            }
        }
    }
}

/// What is to be done when work has ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Begin it anew.
    Again,
    /// Give up the Lease, so that another replica may lead.
    StandDown,
}

/// Runs `work` whenever `config.identity` leads, and drops it at once when it does not any more; until `shutdown`,
/// when the Lease is released so that another replica can lead at once. Also returns when work wants to stand down, and when
/// a Lease that nobody renewed has been freed; begin again then.
///
/// # Errors
/// If the Lease can neither be read nor made.
pub async fn lead<Work: Future<Output = Next>>(
    client: Client,
    config: &LeaseConfig,
    view: &LeaseView,
    mut work: impl FnMut() -> Work,
    leading: impl Fn(bool),
    shutdown: CancellationToken,
) -> Result<Next, LeaseManagerError> {
    let manager = LeaseManagerBuilder::new(client.clone(), LEASE)
        .with_namespace(&config.namespace)
        .with_identity(&config.identity)
        .with_duration(config.duration.as_secs())
        .with_grace(config.grace().as_secs())
        .build()
        .await?;
    let (mut holds, keeper) = manager.watch().await;
    let terms = async {
        while holds.wait_for(|holds| *holds).await.is_ok() {
            if term(config, view, &mut holds, &mut work, &leading).await == Next::StandDown {
                return Next::StandDown;
            }
        }
        Next::Again
    };
    let next = tokio::select! {
        next = terms => next,
        () = shutdown.cancelled() => Next::Again,
        () = free_abandoned(client, config, view) => Next::Again,
    };
    leading(false);
    // The keeper releases the Lease when nobody listens to it any more.
    drop(holds);
    if tokio::time::timeout(RELEASE, keeper).await.is_err() {
        tracing::warn!("the Lease could not be released; another replica leads when it has expired");
    }
    Ok(next)
}

/// Frees a Lease whose holder has been seen not to renew it. Returns when it is freed, or was by somebody else: the
/// library, which may be asleep for as long as that holder's clock was ahead, must be begun anew.
async fn free_abandoned(client: Client, config: &LeaseConfig, view: &LeaseView) {
    let api: Api<Lease> = Api::namespaced(client, &config.namespace);
    loop {
        let version = view.abandoned().await;
        let nothing = ["holderIdentity", "acquireTime", "renewTime", "leaseDurationSeconds"].map(|field| {
            PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(["spec", field]), value: Json::Null })
        });
        match write_to(&api, LEASE, version.as_deref(), nothing.to_vec()).await {
            Ok(true) => {
                tracing::warn!("freed the Lease: its holder has not renewed it for twice the time it holds");
                return;
            }
            Ok(false) => return,
            Err(error) => {
                tracing::debug!(%error, "a Lease that is not renewed could not be freed; trying again");
                tokio::time::sleep(config.duration).await;
            }
        }
    }
}

/// One term, from the first renewal that is seen to the last.
async fn term<Work: Future<Output = Next>>(
    config: &LeaseConfig,
    view: &LeaseView,
    holds: &mut watch::Receiver<bool>,
    work: &mut impl FnMut() -> Work,
    leading: &impl Fn(bool),
) -> Next {
    let mut changed = view.changed.subscribe();
    while *holds.borrow() && view.authority(&config.identity).is_zero() {
        tokio::select! {
            _ = changed.changed() => {}
            _ = holds.changed() => {}
        }
    }
    if view.authority(&config.identity).is_zero() {
        return Next::Again;
    }
    tracing::info!(identity = config.identity, "leading");
    leading(true);
    let next = tokio::select! {
        next = work() => next,
        () = lost(view, &config.identity, holds) => Next::Again,
    };
    leading(false);
    tracing::warn!(identity = config.identity, "not leading any more; nothing is written");
    next
}

/// Returns when authority has ended.
async fn lost(view: &LeaseView, identity: &str, holds: &mut watch::Receiver<bool>) {
    loop {
        let left = view.authority(identity);
        if left.is_zero() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(left) => {}
            gone = holds.wait_for(|holds| !*holds) => {
                drop(gone);
                return;
            }
        }
    }
}
