//! Metrics of HTTPS connections.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Metrics of HTTPS connections, including those that failed.
#[derive(Debug, Default)]
pub struct ConnectionMetrics {
    /// Open HTTPS connections.
    pub open: Gauge,
    /// HTTPS connections that were closed in favor of others.
    pub ended: Counter,
    /// HTTPS connections that were refused because all others had requests in progress.
    pub refused: Counter,
    /// TLS handshakes that failed or timed out.
    pub handshake_failures: Counter,
    /// Failures of `accept`.
    pub accept_failures: Counter,
}

impl ConnectionMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let Self { open, ended, refused, handshake_failures, accept_failures } = self;
        registry.register("connections", "Open HTTPS connections", open.clone());
        registry.register("connections_ended", "HTTPS connections that ended to make room for others", ended.clone());
        registry.register(
            "connections_refused",
            "HTTPS connections that were refused because all others had requests in progress",
            refused.clone(),
        );
        registry.register("handshake_failures", "TLS handshakes that failed or timed out", handshake_failures.clone());
        registry.register(
            "accept_failures",
            "Connections that the operating system could not accept",
            accept_failures.clone(),
        );
    }
}
