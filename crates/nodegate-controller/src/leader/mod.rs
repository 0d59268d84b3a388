//! Leader election: one replica holds a Lease, and all replicas watch it.
//!
//! kube-lease-manager acquires and renews the Lease, one attempt at a time. What the holder may do depends on what it
//! *observes*: a replica writes only if it has observed its own renewal within the Lease's duration by its own monotonic
//! clock, and made it within that time by its own wall clock: a watch may report a renewal late. So a holder that cannot
//! reach the API server, or whose wall clock jumps, stops by itself. A Lease that was not renewed for long by that clock is
//! released: the library compares wall clock times, and would wait for as long as a holder's clock was ahead.

mod held;
pub(crate) mod session;
mod view;
mod watch_health;

use std::time::{Duration, Instant};

use json_patch::{AddOperation, PatchOperation};
use jsonptr::PointerBuf;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use serde_json::Value as Json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::held::{Held, LEASE_SECONDS, LEASE_SECONDS_MAX};
pub use self::view::LeaseView;
use crate::cluster::registration::write_to;
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
    use std::sync::Arc;

    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    const DURATION: Duration = Duration::from_secs(15);

    #[test]
    fn several_attempts_to_watch_fit_into_the_duration_of_the_lease() {
        let seconds = Duration::from_secs;
        assert_eq!([15, 3].map(|lease| longest_delay(seconds(lease))), [5, 1].map(seconds));
        assert!(longest_delay(DURATION) * 3 <= DURATION && blind_after(DURATION) > DURATION);
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
}
