//! Metrics of HTTPS connections.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use crate::metrics::catalog::Catalog;

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
    pub(in crate::metrics) fn register(&self, catalog: &mut Catalog) {
        let Self { open, ended, refused, handshake_failures, accept_failures } = self;
        catalog.section("Connections");
        catalog.add("connections", "Open HTTPS connections", open);
        catalog.add("connections_ended", "HTTPS connections that ended to make room for others", ended);
        catalog.add(
            "connections_refused",
            "HTTPS connections that were refused because all others had requests in progress",
            refused,
        );
        catalog.add("handshake_failures", "TLS handshakes that failed or timed out", handshake_failures);
        catalog.add("accept_failures", "Connections that the operating system could not accept", accept_failures);
    }
}
