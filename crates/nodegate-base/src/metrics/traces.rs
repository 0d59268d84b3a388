//! Metrics of traces.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::catalog::Catalog;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FateLabels {
    result: &'static str,
}

/// What became of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanFate {
    /// The collector took it.
    Sent,
    /// The collector did not take it.
    Failed,
    /// The queue was full.
    Dropped,
}

impl SpanFate {
    fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

/// Spans; no series if traces are not sent.
#[derive(Debug, Default)]
pub struct TraceMetrics {
    spans: Family<FateLabels, Counter>,
}

impl TraceMetrics {
    /// Creates every series at zero.
    pub fn begin(&self) {
        for fate in [SpanFate::Sent, SpanFate::Failed, SpanFate::Dropped] {
            self.ended(fate, 0);
        }
    }

    /// Counts spans.
    pub fn ended(&self, fate: SpanFate, spans: u64) {
        self.spans.get_or_create(&FateLabels { result: fate.as_str() }).inc_by(spans);
    }

    pub(super) fn register(&self, catalog: &mut Catalog) {
        let Self { spans } = self;
        catalog.section("Traces");
        let help = "Ended spans: sent, failed (the collector did not take them), dropped (the queue was full)";
        catalog.add("trace_spans", help, spans);
    }
}
