//! Reports the expiration of the serving certificate, before and when it happens.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use nodegate_base::metrics::Metrics;
use nodegate_webhook::tls::{Certificate, Pair};

/// From when on the expiration is reported, but never before two thirds of a certificate's lifetime, because
/// certificates are renewed earlier.
const AHEAD: SignedDuration = SignedDuration::from_hours(14 * 24);
/// How often the certificate is checked.
const LOOK: Duration = Duration::from_secs(5);
/// How often the same state is reported again: a warning, and an error.
const REPEAT: (SignedDuration, SignedDuration) = (SignedDuration::from_hours(24), SignedDuration::from_mins(10));

/// How near the expiration of a certificate is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Expiry {
    /// It is not near, or there is no certificate yet.
    #[default]
    Far,
    /// The certificate expires within fourteen days.
    Near {
        /// The expiration time.
        not_after: Timestamp,
    },
    /// The certificate has expired, and callers refuse it.
    Over {
        /// The expiration time.
        not_after: Timestamp,
    },
}

impl Expiry {
    /// The state at `now` of a certificate that is valid from `not_before` until `not_after`.
    fn of(not_before: Timestamp, not_after: Timestamp, now: Timestamp) -> Self {
        let third = not_after.duration_since(not_before) / 3;
        if not_after <= now {
            Self::Over { not_after }
        } else if not_after.duration_since(now) <= AHEAD.min(third) {
            Self::Near { not_after }
        } else {
            Self::Far
        }
    }

    /// The reason and note of an event, if there is something to report.
    pub(super) fn event(self) -> Option<(&'static str, String)> {
        match self {
            Self::Far => None,
            Self::Near { not_after } => Some((
                "CertificateExpiresSoon",
                format!("the serving certificate expires at {not_after} and has not been renewed; renew it"),
            )),
            Self::Over { not_after } => Some((
                "CertificateExpired",
                format!("the serving certificate expired at {not_after}, so the API server refuses it; renew it"),
            )),
        }
    }

    fn repeat_after(self) -> SignedDuration {
        match self {
            Self::Far => SignedDuration::MAX,
            Self::Near { .. } => REPEAT.0,
            Self::Over { .. } => REPEAT.1,
        }
    }

    fn log(self, before: Self) {
        match (self.event(), self) {
            (Some((_, note)), Self::Over { .. }) => tracing::error!("{note}; nodegate is not ready until then"),
            (Some((_, note)), _) => tracing::warn!("{note}"),
            (None, _) if before != Self::Far => tracing::info!("the serving certificate has been renewed"),
            (None, _) => {}
        }
    }
}

/// Reports how near the expiration of the serving certificate is, in the log, in metrics and to `sender`, until
/// `shutdown`. The same state is reported again from time to time.
pub(super) async fn follow(
    certificate: Arc<Certificate>,
    now: fn() -> Timestamp,
    metrics: Arc<Metrics>,
    sender: watch::Sender<Expiry>,
    shutdown: CancellationToken,
) {
    let (mut last, mut at) = (Expiry::default(), now());
    loop {
        let moment = now();
        let expiry = |pair: Arc<Pair>| Expiry::of(pair.not_before(), pair.not_after(), moment);
        let expiry = certificate.current().map(expiry).unwrap_or_default();
        if expiry != last || moment.duration_since(at) >= expiry.repeat_after() {
            expiry.log(last);
            metrics.loaded.set_certificate_expiring(expiry != Expiry::Far);
            // Without a cluster there is no receiver.
            sender.send_replace(expiry);
            (last, at) = (expiry, moment);
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_near_its_expiration_from_fourteen_days_before() {
        let not_after: Timestamp = "2026-12-31T00:00:00Z".parse().unwrap();
        for (now, expected) in [
            ("2026-12-16T23:59:59Z", Expiry::Far),
            ("2026-12-17T00:00:00Z", Expiry::Near { not_after }),
            ("2026-12-30T23:59:59Z", Expiry::Near { not_after }),
            ("2026-12-31T00:00:00Z", Expiry::Over { not_after }),
            ("2030-01-01T00:00:00Z", Expiry::Over { not_after }),
        ] {
            let not_before = "2026-01-01T00:00:00Z".parse().unwrap();
            assert_eq!(Expiry::of(not_before, not_after, now.parse().unwrap()), expected, "{now}");
        }
        // A certificate that is valid for three days is near its expiration on the last day.
        let not_before = "2026-12-28T00:00:00Z".parse().unwrap();
        let of = |now: &str| Expiry::of(not_before, not_after, now.parse().unwrap());
        assert_eq!(of("2026-12-29T23:59:59Z"), Expiry::Far);
        assert_eq!(of("2026-12-30T00:00:00Z"), Expiry::Near { not_after });
    }
}
