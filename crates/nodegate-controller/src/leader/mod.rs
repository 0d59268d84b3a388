//! Leader election: one replica holds a Lease, and all replicas watch it.
//!
//! kube-lease-manager acquires and renews the Lease, one attempt at a time. What the holder may do depends on what it
//! *observes*: a replica writes only if it has observed its own renewal within the Lease's duration by its own monotonic clock, and made it within
//! that time by its own wall clock: a watch may report a renewal late. So a holder that cannot reach the API server, or whose
//! wall clock jumps, stops by itself. A Lease that was not renewed for
//! long by that clock is released: the library compares wall clock times, and would wait for as long as a holder's
//! clock was ahead.

pub(crate) mod session;
mod watch_health;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use json_patch::{AddOperation, PatchOperation};
use jsonptr::PointerBuf;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use parking_lot::Mutex;
use serde_json::Value as Json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::registration::write_to;
use nodegate_base::kube_error::in_words;
use nodegate_base::object_watch::watch_objects_within;
use nodegate_base::telemetry::brief;

/// The name of the Lease.
pub const LEASE: &str = "nodegate";

/// Timeout for releasing the Lease.
const RELEASE: Duration = Duration::from_secs(2);

/// After how long the same failure is told again.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// The longest delay before a watch that a leader depends on is tried again, for a Lease of this duration: several attempts fit into
/// it.
pub fn longest_delay(lease: Duration) -> Duration {
    lease / 3
}

/// For how long nodes may not have been watched before another replica should lead.
fn blind_after(lease: Duration) -> Duration {
    lease * 2
}

/// The configuration of the Lease.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// The namespace it is in.
    pub namespace: String,
    /// The identity of this replica.
    pub identity: String,
    /// How long the Lease is valid without being renewed.
    pub duration: Duration,
}

impl LeaseConfig {
    /// How long before its end the Lease is renewed. A third of its duration remains for retries.
    fn grace(&self) -> Duration {
        self.duration * 2 / 3
    }

    /// After how long a request about the Lease is made again that failed. In client-go, it is two seconds for a Lease of 15.
    fn retry(&self) -> Duration {
        self.duration / 8
    }
}

/// The last observed state of the Lease.
#[derive(Clone, Debug, Default)]
struct ObservedLease {
    holder: Option<String>,
    renewed: Option<Timestamp>,
    /// When its renewal was observed, by the monotonic clock.
    at: Option<Instant>,
    /// Since when it has had its current renewal time, by the monotonic clock.
    since: Option<Instant>,
    /// How long it is valid, as it states itself.
    duration: Option<Duration>,
    version: Option<String>,
}

impl ObservedLease {
    /// How long until the holder counts as one that no longer renews: twice the duration of the Lease, so that the
    /// library can act first. `None` if nobody holds it.
    fn lives(&self, usually: Duration, now: Instant) -> Option<Duration> {
        self.holder.as_ref()?;
        Some((self.duration.unwrap_or(usually) * 2).saturating_sub(now.saturating_duration_since(self.since?)))
    }
}

/// The Lease as this replica observes it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LeaseView {
    seen: Arc<Mutex<ObservedLease>>,
    changed: watch::Sender<()>,
    duration: Duration,
}

impl LeaseView {
    /// A view that has not observed the Lease yet.
    pub fn new(duration: Duration) -> Self {
        Self { seen: Arc::default(), changed: watch::Sender::default(), duration }
    }

    fn last(&self) -> ObservedLease {
        self.seen.lock().clone()
    }

    /// Whether a leader has renewed within three lease durations, so that deferred work will be done.
    pub fn has_leader(&self, now: Instant) -> bool {
        let seen = self.last();
        seen.holder.is_some() && seen.at.is_some_and(|at| now.saturating_duration_since(at) < self.duration * 3)
    }

    /// How long `identity` may still write; zero if it may not. `clock` is its own wall clock, by which it dates renewals.
    pub(crate) fn authority(&self, identity: &str, now: Instant, clock: Timestamp) -> Duration {
        let seen = self.last();
        match (seen.holder.as_deref(), seen.at, seen.renewed) {
            (Some(holder), Some(at), Some(renewed)) if holder == identity => {
                let since_seen = now.saturating_duration_since(at);
                // Negative if the clock was set back.
                let since_made = Duration::try_from(clock.duration_since(renewed)).unwrap_or_default();
                self.duration.saturating_sub(since_seen.max(since_made))
            }
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn note(&self, lease: Option<&Lease>, listing: bool, now: Instant) {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.clone()).filter(|holder| !holder.is_empty());
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        let duration = spec.and_then(|spec| u64::try_from(spec.lease_duration_seconds?).ok()).map(Duration::from_secs);
        let version = lease.and_then(ResourceExt::resource_version);
        let mut seen = self.seen.lock();
        if seen.holder != holder || seen.renewed != renewed {
            // A list returns an earlier renewal. It counts no more than what was observed at that time.
            let before = seen.at.filter(|_| seen.holder == holder);
            let at = if listing { before } else { Some(now) };
            *seen = ObservedLease { holder, renewed, at, since: Some(now), duration, version: None };
        }
        seen.version = version;
        drop(seen);
        self.changed.send_replace(());
    }

    /// Returns the version of a Lease whose holder no longer renews it.
    async fn abandoned(&self) -> Option<String> {
        let mut changed = self.changed.subscribe();
        loop {
            let seen = self.last();
            let lives = seen.lives(self.duration, Instant::now());
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
        let mut stream = std::pin::pin!(watch_objects_within(api, only, longest_delay(self.duration)));
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Apply(lease)) => self.note(Some(&lease), false, Instant::now()),
                Ok(Event::InitApply(lease)) => self.note(Some(&lease), true, Instant::now()),
                Ok(Event::Delete(_)) => self.note(None, false, Instant::now()),
                Ok(Event::Init | Event::InitDone) => {}
                Err(error) => {
                    tracing::debug!(error = brief(in_words(&error)), "the watch of the Lease failed; retrying");
                }
            }
        }
    }
}

/// What to do when the work of a leader has ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Start it again.
    Again,
    /// Release the Lease, so that another replica can lead.
    StandDown,
}

/// Runs `work` whenever `config.identity` leads, and drops it at once when it no longer does. On `shutdown`, releases
/// the Lease so that another replica can lead immediately. Also returns when work wants to stand down, and when a
/// Lease that nobody renewed has been released; call it again then.
///
/// # Errors
/// Returns an error if the Lease can neither be read nor created.
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
    let (sender, mut holds) = watch::channel(false);
    let keeper = tokio::spawn(keep(manager, sender, config.retry()));
    let sessions = async {
        while holds.wait_for(|holds| *holds).await.is_ok() {
            if session(config, view, &mut holds, &mut work, &leading).await == Next::StandDown {
                return Next::StandDown;
            }
        }
        Next::Again
    };
    let next = tokio::select! {
        next = sessions => next,
        () = shutdown.cancelled() => Next::Again,
        () = free_abandoned(client, config, view) => Next::Again,
    };
    leading(false);
    // The Lease is released when nobody asks for it anymore.
    drop(holds);
    if tokio::time::timeout(RELEASE, keeper).await.is_err() {
        tracing::warn!("could not release the Lease; another replica leads when it expires");
    }
    Ok(next)
}

/// Acquires and renews the Lease until nobody asks for it anymore, and releases it then. What fails is tried again after the same short
/// time: the loop that the library has waits longer after each failure, up to 30 seconds, and forgets them only when the
/// holder changes, so a leader that has outlived a few would lose the Lease by the next.
async fn keep(manager: LeaseManager, holds: watch::Sender<bool>, retry: Duration) {
    let mut told: Option<(String, Instant)> = None;
    let keeping = async {
        loop {
            match manager.changed().await {
                Ok(is_holder) => drop(holds.send_replace(is_holder)),
                Err(error) => {
                    let error = brief(error.to_string());
                    let is_told = |(known, at): &(String, Instant)| *known == error && at.elapsed() < TOLD_AGAIN;
                    if !told.as_ref().is_some_and(is_told) {
                        tracing::warn!(%error, "could not keep the Lease; retrying");
                        told = Some((error, Instant::now()));
                    }
                    tokio::time::sleep(retry).await;
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = holds.closed() => {}
        () = keeping => {}
    }
    if let Err(error) = manager.release().await {
        tracing::debug!(error = brief(error.to_string()), "could not release the Lease");
    }
}

/// Releases a Lease whose holder was observed not to renew it. Returns when it is released, by this replica or
/// another: the library may be sleeping for as long as that holder's clock was ahead, and must be restarted.
async fn free_abandoned(client: Client, config: &LeaseConfig, view: &LeaseView) {
    let api: Api<Lease> = Api::namespaced(client, &config.namespace);
    loop {
        let version = view.abandoned().await;
        let nothing = ["holderIdentity", "acquireTime", "renewTime", "leaseDurationSeconds"].map(|field| {
            PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(["spec", field]), value: Json::Null })
        });
        match write_to(&api, LEASE, version.as_deref(), nothing.to_vec()).await {
            Ok(true) => {
                tracing::warn!("released the Lease: its holder has not renewed it for twice its duration");
                return;
            }
            Ok(false) => return,
            Err(error) => {
                tracing::debug!(%error, "could not release a Lease that is not renewed; retrying");
                tokio::time::sleep(config.duration).await;
            }
        }
    }
}

/// One session, from the first observed renewal to the last.
async fn session<Work: Future<Output = Next>>(
    config: &LeaseConfig,
    view: &LeaseView,
    holds: &mut watch::Receiver<bool>,
    work: &mut impl FnMut() -> Work,
    leading: &impl Fn(bool),
) -> Next {
    let mut changed = view.changed.subscribe();
    while *holds.borrow() && view.authority(&config.identity, Instant::now(), Timestamp::now()).is_zero() {
        tokio::select! {
            _ = changed.changed() => {}
            _ = holds.changed() => {}
        }
    }
    if view.authority(&config.identity, Instant::now(), Timestamp::now()).is_zero() {
        return Next::Again;
    }
    tracing::info!(identity = config.identity, "leading");
    leading(true);
    let next = tokio::select! {
        next = work() => next,
        () = lost(view, &config.identity, holds) => Next::Again,
    };
    leading(false);
    tracing::warn!(identity = config.identity, "no longer the leader; not writing anymore");
    next
}

/// Returns when this replica may no longer write.
async fn lost(view: &LeaseView, identity: &str, holds: &mut watch::Receiver<bool>) {
    loop {
        let left = view.authority(identity, Instant::now(), Timestamp::now());
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    const DURATION: Duration = Duration::from_secs(15);

    #[test]
    fn several_attempts_to_watch_fit_into_the_duration_of_the_lease() {
        let seconds = Duration::from_secs;
        assert_eq!([15, 3].map(|lease| longest_delay(seconds(lease))), [5, 1].map(seconds));
        assert!(longest_delay(DURATION) * 3 <= DURATION && blind_after(DURATION) > DURATION);
    }

    /// A Lease that `holder` renewed in this second.
    fn lease(holder: &str, second: u8) -> Lease {
        let renewed = format!("2026-01-01T00:00:{second:02}.000000Z");
        let spec = json!({"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15});
        serde_json::from_value(json!({"metadata": {"name": LEASE, "resourceVersion": "7"}, "spec": spec})).unwrap()
    }

    /// A view of a Lease, and the time of its first renewal.
    fn renewed_by(holder: &str) -> (LeaseView, Instant) {
        let (view, start) = (LeaseView::new(DURATION), Instant::now());
        view.note(Some(&lease(holder, 0)), false, start);
        (view, start)
    }

    /// How many seconds of authority are left so many seconds after the start, at which [`lease`] begins to count, too.
    fn authority(view: &LeaseView, identity: &str, start: Instant, seconds: u64) -> u64 {
        let clock: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        view.authority(identity, start + Duration::from_secs(seconds), clock + Duration::from_secs(seconds)).as_secs()
    }

    #[test]
    fn a_renewal_that_is_reported_late_counts_from_when_it_was_made() {
        let (view, start) = (LeaseView::new(DURATION), Instant::now());
        view.note(Some(&lease("a", 0)), false, start + Duration::from_secs(12));
        assert_eq!([12, 14, 15].map(|seconds| authority(&view, "a", start, seconds)), [3, 1, 0]);
        // The clock was set back: what was observed counts.
        let clock = "2025-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(view.authority("a", start + Duration::from_secs(14), clock).as_secs(), 13);
    }

    #[test]
    fn the_holder_may_write_until_the_duration_of_the_lease_after_its_last_observed_renewal() {
        let (view, start) = renewed_by("a");
        let left = |identity: &str, seconds| authority(&view, identity, start, seconds);
        assert_eq!((left("a", 0), left("a", 14), left("a", 15), left("a", 60)), (15, 1, 0, 0));
        assert_eq!(left("b", 0), 0, "another replica holds it");
        view.note(Some(&lease("a", 10)), false, start + Duration::from_secs(10));
        assert_eq!((left("a", 24), left("a", 25)), (1, 0));
        view.note(Some(&lease("b", 12)), false, start + Duration::from_secs(12));
        assert_eq!((left("a", 12), left("b", 12)), (0, 15));
        view.note(None, false, start + Duration::from_secs(13));
        assert_eq!(left("b", 13), 0, "the Lease was deleted");
    }

    #[test]
    fn an_earlier_renewal_in_a_list_does_not_count() {
        let (view, start) = (LeaseView::new(DURATION), Instant::now());
        view.note(Some(&lease("a", 0)), true, start);
        assert!(authority(&view, "a", start, 0) == 0 && !view.has_leader(start));
        view.note(Some(&lease("a", 5)), false, start);
        view.note(Some(&lease("a", 9)), true, start + Duration::from_secs(9));
        assert_eq!(authority(&view, "a", start, 9), 6, "as long as the observed renewal");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_tried_again_after_the_same_time_however_many_there_were() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let requests = asked.clone();
        let service = tower::service_fn(move |_: hyper::Request<Body>| {
            let mut requests = requests.lock();
            requests.push(tokio::time::Instant::now());
            let is_first = requests.len() == 1;
            async move {
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}, "spec": {}});
                let refused =
                    json!({"kind": "Status", "status": "Failure", "reason": "X", "message": "not now", "code": 503});
                let (code, answer) = if is_first { (200, lease) } else { (503, refused) };
                let answer = hyper::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, std::convert::Infallible>(answer.unwrap())
            }
        });
        let config =
            LeaseConfig { namespace: "n".to_owned(), identity: "a".to_owned(), duration: Duration::from_secs(16) };
        let manager = LeaseManagerBuilder::new(Client::new(service, "default"), LEASE)
            .with_identity(&config.identity)
            .with_duration(config.duration.as_secs())
            .with_grace(config.grace().as_secs())
            .build()
            .await
            .unwrap();
        let (holds, held) = watch::channel(false);
        let keeper = tokio::spawn(keep(manager, holds, config.retry()));
        tokio::time::sleep(Duration::from_secs(600)).await;
        let asked: Vec<tokio::time::Instant> = asked.lock().clone();
        let longest = asked.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest <= Duration::from_secs(3) && asked.len() > 250, "{longest:?} {}", asked.len());
        drop(held);
        keeper.await.unwrap();
    }

    #[test]
    fn a_leader_counts_for_three_durations_and_its_lease_is_released_after_two() {
        let (view, start) = renewed_by("a");
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(view.has_leader(at(44)) && !view.has_leader(at(45)));
        let lives = |seconds| view.last().lives(DURATION, at(seconds)).map(|left| left.as_secs());
        assert_eq!((lives(0), lives(29), lives(30)), (Some(30), Some(1), Some(0)));
        view.note(Some(&lease("", 20)), false, at(20));
        assert_eq!(lives(60), None, "nobody holds it");
        assert!(!view.has_leader(at(20)));
    }
}
