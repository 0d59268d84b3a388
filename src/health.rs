//! The probe address: `/healthz`, `/readyz`, `/metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use crate::metrics::Metrics;

/// Whether the server may get requests, and if not, why.
#[derive(Debug, Default)]
pub struct Readiness {
    policies: AtomicBool,
    certificate: AtomicBool,
    listening: AtomicBool,
    draining: AtomicBool,
    waits_for_state: AtomicBool,
    leads_blind: AtomicBool,
}

impl Readiness {
    /// Policies are compiled.
    pub fn policies_compiled(&self) {
        self.policies.store(true, Ordering::Relaxed);
    }

    /// Saved state must be read before this is ready.
    pub fn waits_for_state(&self) {
        self.waits_for_state.store(true, Ordering::Relaxed);
    }

    /// Saved state has been read.
    pub fn state_read(&self) {
        self.waits_for_state.store(false, Ordering::Relaxed);
    }

    /// Whether this replica leads and cannot watch nodes.
    pub fn leads_blind(&self, blind: bool) {
        self.leads_blind.store(blind, Ordering::Relaxed);
    }

    /// A certificate is loaded.
    pub fn certificate_loaded(&self) {
        self.certificate.store(true, Ordering::Relaxed);
    }

    /// The HTTPS address is bound.
    pub fn listening(&self) {
        self.listening.store(true, Ordering::Relaxed);
    }

    /// The server is about to end; from now on it is not ready.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// What is missing; nothing when ready.
    pub fn unmet(&self) -> Vec<&'static str> {
        let conditions = [
            (self.policies.load(Ordering::Relaxed), "policies are not compiled"),
            (!self.waits_for_state.load(Ordering::Relaxed), "saved state has not been read"),
            (self.certificate.load(Ordering::Relaxed), "no certificate is loaded"),
            (self.listening.load(Ordering::Relaxed), "the HTTPS address is not bound"),
            (!self.leads_blind.load(Ordering::Relaxed), "this replica leads and cannot watch nodes"),
            (!self.draining.load(Ordering::Relaxed), "shutting down"),
        ];
        conditions.into_iter().filter(|(met, _)| !met).map(|(_, unmet)| unmet).collect()
    }
}

/// The router of the probe address.
pub fn router(readiness: Arc<Readiness>, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { ready(&readiness) }))
        .route("/metrics", get(move || async move { exposition(&metrics) }))
}

fn ready(readiness: &Readiness) -> Response {
    let unmet = readiness.unmet();
    if unmet.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", unmet.join("\n"))).into_response()
}

fn exposition(metrics: &Metrics) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], metrics.render()).into_response()
}
