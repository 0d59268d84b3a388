//! The probe address: `/healthz`, `/readyz`, `/metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use jiff::Timestamp;

use nodegate_base::metrics::{Format, Metrics};

/// Whether the server may receive requests, and if not, why.
#[derive(Debug)]
pub struct Readiness {
    waits_for_cluster: AtomicBool,
    policies: AtomicBool,
    /// The expiration time of the certificate, in seconds since 1970; the minimum value if there is none.
    certificate: AtomicI64,
    listening: AtomicBool,
    draining: AtomicBool,
    waits_for_state: AtomicBool,
    leads_blind: AtomicBool,
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            waits_for_cluster: AtomicBool::default(),
            policies: AtomicBool::default(),
            certificate: AtomicI64::new(i64::MIN),
            listening: AtomicBool::default(),
            draining: AtomicBool::default(),
            waits_for_state: AtomicBool::default(),
            leads_blind: AtomicBool::default(),
        }
    }
}

impl Readiness {
    /// Requires that the cluster is reached before the server is ready.
    pub fn waits_for_cluster(&self) {
        self.waits_for_cluster.store(true, Ordering::Relaxed);
    }

    /// Records that the cluster is reached.
    pub fn cluster_reached(&self) {
        self.waits_for_cluster.store(false, Ordering::Relaxed);
    }

    /// Records that policies are compiled.
    pub fn policies_compiled(&self) {
        self.policies.store(true, Ordering::Relaxed);
    }

    /// Requires that saved state is read before the server is ready.
    pub fn waits_for_state(&self) {
        self.waits_for_state.store(true, Ordering::Relaxed);
    }

    /// Records that saved state has been read.
    pub fn state_read(&self) {
        self.waits_for_state.store(false, Ordering::Relaxed);
    }

    /// Records whether this replica leads and cannot watch nodes.
    pub fn leads_blind(&self, blind: bool) {
        self.leads_blind.store(blind, Ordering::Relaxed);
    }

    /// Records that a certificate is loaded, which is valid until `not_after`.
    pub fn certificate_loaded(&self, not_after: Timestamp) {
        self.certificate.store(not_after.as_second(), Ordering::Relaxed);
    }

    /// Records that the HTTPS address is bound.
    pub fn listening(&self) {
        self.listening.store(true, Ordering::Relaxed);
    }

    /// Records that the server is shutting down; from now on it is not ready.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The unmet conditions at `now`; empty if the server is ready.
    pub fn unmet(&self, now: Timestamp) -> Vec<String> {
        let conditions = [
            (!self.waits_for_cluster.load(Ordering::Relaxed), "the cluster has not been reached"),
            (self.policies.load(Ordering::Relaxed), "policies are not compiled"),
            (!self.waits_for_state.load(Ordering::Relaxed), "saved state has not been read"),
            (self.listening.load(Ordering::Relaxed), "the HTTPS address is not bound"),
            (!self.leads_blind.load(Ordering::Relaxed), "this replica leads but cannot watch nodes"),
            (!self.draining.load(Ordering::Relaxed), "shutting down"),
        ];
        let unmet = conditions.into_iter().filter(|(met, _)| !met).map(|(_, unmet)| unmet.to_owned());
        unmet.chain(self.certificate_fault(now)).collect()
    }

    fn certificate_fault(&self, now: Timestamp) -> Option<String> {
        match self.certificate.load(Ordering::Relaxed) {
            i64::MIN => Some("no certificate is loaded".to_owned()),
            not_after if not_after > now.as_second() => None,
            not_after => {
                let when = Timestamp::from_second(not_after).unwrap_or(Timestamp::MIN);
                Some(format!("the certificate expired at {when}; renew it"))
            }
        }
    }
}

/// The router of the probe address. A restart solves neither an expired certificate nor an unreachable API server, so
/// `/healthz` succeeds even if `/readyz` fails.
pub fn router(readiness: Arc<Readiness>, metrics: Arc<Metrics>, now: fn() -> Timestamp) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { ready(&readiness, now()) }))
        .route("/metrics", get(move |headers: HeaderMap| async move { exposition(&metrics, &headers) }))
}

fn ready(readiness: &Readiness, now: Timestamp) -> Response {
    let unmet = readiness.unmet(now);
    if unmet.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", unmet.join("\n"))).into_response()
}

fn exposition(metrics: &Metrics, headers: &HeaderMap) -> Response {
    let accept: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::accepted_by(&accept.join(","));
    let kind = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    (kind, metrics.render(format)).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_certificate_is_not_ready_until_another_is_loaded() {
        let readiness = Readiness::default();
        readiness.policies_compiled();
        readiness.listening();
        let moment = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = moment("2026-12-31T00:00:00Z");
        assert_eq!(readiness.unmet(now), ["no certificate is loaded"]);
        readiness.certificate_loaded(now);
        assert_eq!(readiness.unmet(moment("2026-12-30T23:59:59Z")), Vec::<String>::new());
        assert_eq!(readiness.unmet(now), ["the certificate expired at 2026-12-31T00:00:00Z; renew it"]);
        readiness.certificate_loaded(moment("2027-12-31T00:00:00Z"));
        assert_eq!(readiness.unmet(now), Vec::<String>::new());
    }
}
