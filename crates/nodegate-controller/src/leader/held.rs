//! The Lease as it states itself, for all who read it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;

/// The duration of a Lease, in seconds, unless somebody chooses another.
pub const LEASE_SECONDS: u64 = 15;
/// Maximum duration of a Lease that nodegate makes, in seconds.
pub const LEASE_SECONDS_MAX: u64 = 3600;

/// A Lease that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The identity of the holder.
    pub holder: String,
    /// Since when, by the holder's clock.
    pub since: Option<Timestamp>,
    /// When the holder renewed it last, by its own clock.
    pub renewed: Option<Timestamp>,
    /// How long it is valid without a renewal. `None` if it does not say so, or longer than nodegate lets one be: anybody with
    /// access to the Lease can write any number into it.
    pub duration: Option<Duration>,
}

impl Held {
    /// Reads a Lease; `None` if nobody holds it.
    pub fn of(lease: &Lease) -> Option<Self> {
        let spec = lease.spec.as_ref()?;
        let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty())?;
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Some(Self {
            holder,
            since: spec.acquire_time.as_ref().map(|time| time.0),
            renewed: spec.renew_time.as_ref().map(|time| time.0),
            duration: seconds.filter(|seconds| (1..=LEASE_SECONDS_MAX).contains(seconds)).map(Duration::from_secs),
        })
    }

    /// The host of the holder. In a pod that is the pod's name, unless the pod uses the network of its node.
    pub fn host(&self) -> &str {
        // `serve` adds what distinguishes one start of it from another.
        self.holder.rsplit_once('_').map_or(&*self.holder, |(host, _)| host)
    }

    /// How long it is valid without a renewal, for programs that do not know how `serve` was started.
    pub fn valid_for(&self) -> Duration {
        self.duration.unwrap_or(Duration::from_secs(LEASE_SECONDS))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn held(spec: Json) -> Option<Held> {
        Held::of(&serde_json::from_value(json!({"metadata": {"name": "nodegate"}, "spec": spec})).unwrap())
    }

    #[test]
    fn a_lease_that_names_no_holder_is_held_by_nobody() {
        for spec in [json!(null), json!({}), json!({"holderIdentity": ""}), json!({"leaseDurationSeconds": 15})] {
            assert_eq!(held(spec.clone()), None, "{spec}");
        }
        let times = json!({"holderIdentity": "a", "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:07.000000Z"});
        let at = |time: &str| Some(time.parse().unwrap());
        let (since, renewed) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:00:07Z"));
        assert_eq!(held(times), Some(Held { holder: "a".to_owned(), since, renewed, duration: None }));
    }

    #[test]
    fn a_duration_that_nodegate_does_not_write_counts_as_the_usual_one() {
        for (stated, valid) in
            [(json!(3), 3), (json!(3600), 3600), (json!(3601), 15), (json!(0), 15), (json!(-1), 15), (json!(null), 15)]
        {
            let held = held(json!({"holderIdentity": "a", "leaseDurationSeconds": stated})).unwrap();
            assert_eq!(held.valid_for().as_secs(), valid, "{stated}");
        }
    }
}
