//! The Lease as a replica observes it: who holds it, and how long the holder may still write.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Held, LEASE, longest_delay};
use nodegate_base::kube_error::in_words;
use nodegate_base::object_watch::watch_objects_within;
use nodegate_base::telemetry::brief;

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
    /// Told of each observation.
    pub(super) changed: watch::Sender<()>,
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
        let (holder, renewed, duration) = match lease.and_then(Held::of) {
            Some(Held { holder, since: _, renewed, duration }) => (Some(holder), renewed, duration),
            None => (None, None, None),
        };
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
    pub(super) async fn abandoned(&self) -> Option<String> {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    const DURATION: Duration = Duration::from_secs(15);

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
