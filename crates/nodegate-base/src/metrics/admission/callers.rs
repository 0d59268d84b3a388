//! Metrics of client certificates.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::metrics::catalog::Catalog;
use crate::metrics::labels::{Reload, Reloads, begin_at_zero, count};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

/// Refused handshakes, and reloads of the CA file; no series if client certificates are not required.
#[derive(Debug, Default)]
pub struct CallerMetrics {
    refusals: Family<RefusalLabels, Counter>,
    reloads: Reloads,
}

impl CallerMetrics {
    /// Creates every series at zero at the start, so that an alert on its increase does not miss the first refusal.
    pub fn begin(&self, reasons: impl IntoIterator<Item = &'static str>) {
        for reason in reasons {
            drop(self.refusals.get_or_create(&RefusalLabels { reason }));
        }
        begin_at_zero(&self.reloads);
    }

    /// Counts a refused caller.
    pub fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&RefusalLabels { reason }).inc();
    }

    /// Counts a reload of the CA file.
    pub fn reloaded(&self, result: Reload) {
        count(&self.reloads, result);
    }

    pub(in crate::metrics) fn register(&self, catalog: &mut Catalog) {
        let Self { refusals, reloads } = self;
        catalog.add("callers_refused", "TLS handshakes refused because of the caller's client certificate", refusals);
        catalog.add("client_ca_reloads", "Reloads of the file with CAs of client certificates by result", reloads);
    }
}
