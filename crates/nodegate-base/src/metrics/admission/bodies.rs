//! Metrics of the bodies of reviews.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::metrics::catalog::Catalog;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

/// Bodies that were not read completely, and large reviews.
#[derive(Debug, Default)]
pub struct BodyMetrics {
    refusals: Family<RefusalLabels, Counter>,
    /// Reviews that exceeded the size of ordinary ones.
    pub large: Counter,
}

impl BodyMetrics {
    /// Counts a body that was not read completely.
    pub fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&RefusalLabels { reason }).inc();
    }

    pub(in crate::metrics) fn register(&self, catalog: &mut Catalog) {
        let Self { refusals, large } = self;
        catalog.add(
            "bodies_refused",
            "Bodies of reviews that were not read completely: too_large, stalled, slow, reclaimed or unreadable",
            refusals,
        );
        catalog.add("large_reviews", "Reviews that exceeded the size of ordinary ones", large);
    }
}
