//! Metrics of callers that have to show a client certificate.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{Reload, ReloadLabels};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

/// Who was refused in the handshake, and whose CAs are trusted; without series where anybody may call.
#[derive(Debug, Default)]
pub struct CallerMetrics {
    refusals: Family<RefusalLabels, Counter>,
    reloads: Family<ReloadLabels, Counter>,
}

impl CallerMetrics {
    /// Shows every series, at zero, from the start: an alert on its growth must not miss the first refusal.
    pub fn begin(&self, reasons: impl IntoIterator<Item = &'static str>) {
        for reason in reasons {
            drop(self.refusals.get_or_create(&RefusalLabels { reason }));
        }
        for result in [Reload::Success, Reload::Failure] {
            drop(self.reloads.get_or_create(&ReloadLabels { result: result.as_str() }));
        }
    }

    /// Counts a caller that was refused.
    pub fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&RefusalLabels { reason }).inc();
    }

    /// Counts a file of CAs taken over or refused.
    pub fn reloaded(&self, result: Reload) {
        self.reloads.get_or_create(&ReloadLabels { result: result.as_str() }).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let Self { refusals, reloads } = self;
        registry.register(
            "callers_refused",
            "TLS handshakes refused because of the caller's client certificate",
            refusals.clone(),
        );
        registry.register("client_ca_reloads", "Files of callers' CAs taken over or refused", reloads.clone());
    }
}
