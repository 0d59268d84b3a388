//! Metrics of reviews as they come in.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

/// Bodies that were not read to their end, and large reviews.
#[derive(Debug, Default)]
pub struct BodyMetrics {
    refusals: Family<RefusalLabels, Counter>,
    /// Reviews that were too large to be answered among the ordinary ones.
    pub large: Counter,
}

impl BodyMetrics {
    /// Counts a body that was not read to its end.
    pub fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&RefusalLabels { reason }).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let Self { refusals, large } = self;
        registry.register(
            "bodies_refused",
            "Bodies of reviews that were not read to their end: too_large, stalled, slow, reclaimed or unreadable",
            refusals.clone(),
        );
        registry.register("large_reviews", "Reviews that were too large for the ordinary places", large.clone());
    }
}
