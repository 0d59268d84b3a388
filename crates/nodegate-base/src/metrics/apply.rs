//! Metrics of one run of `nodegate apply`, as a file for the textfile collector of node_exporter.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Unit;

use super::bounded::number;
use super::catalog::{Catalog, Entry, Listed};
use super::{Format, rendered};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// What a run has done.
#[derive(Clone, Copy, Debug)]
pub struct ApplyRun {
    /// When it ended, in seconds since 1970.
    pub ended: f64,
    /// How long it took.
    pub seconds: f64,
    /// Whether nothing is left to do.
    pub succeeded: bool,
    /// Nodes that are as they should be.
    pub complete: usize,
    /// Nodes that failed, or that keep or lack something.
    pub unfinished: usize,
}

/// The metric that a failed run keeps from the file of the run before.
const LAST_SUCCESS: &str = "nodegate_apply_last_success_timestamp_seconds";

#[derive(Debug, Default)]
struct ApplyMetrics {
    last_run: Gauge<f64, AtomicU64>,
    last_success: Gauge<f64, AtomicU64>,
    duration: Gauge<f64, AtomicU64>,
    nodes: Family<ResultLabels, Gauge>,
}

impl ApplyMetrics {
    fn register(&self) -> Catalog {
        let Self { last_run, last_success, duration, nodes } = self;
        let mut catalog = Catalog::new();
        catalog.section("One run of apply");
        catalog.add_in(
            "apply_last_run_timestamp",
            Unit::Seconds,
            "When the last run ended, in seconds since 1970",
            last_run,
        );
        catalog.add_in(
            "apply_last_success_timestamp",
            Unit::Seconds,
            "When the last run that left nothing to do ended, in seconds since 1970; 0 before the first one",
            last_success,
        );
        catalog.add_in("apply_duration", Unit::Seconds, "How long the last run took", duration);
        catalog.add("apply_nodes", "Nodes of the last run; result is complete or unfinished", nodes);
        catalog
    }
}

/// What the reference says about the metrics of a run.
pub(super) fn entries() -> Vec<Entry> {
    ApplyMetrics::default().register().listed.iter().map(Listed::entry).collect()
}

impl ApplyRun {
    /// The file, in Prometheus' text format. `before` is the file of the run before: a run that did not succeed keeps from it
    /// when the last success was.
    pub fn exposition(&self, before: &str) -> String {
        let metrics = ApplyMetrics::default();
        let known = before.lines().find_map(|line| line.strip_prefix(LAST_SUCCESS)?.trim().parse::<f64>().ok());
        let known = known.filter(|seconds| seconds.is_finite()).unwrap_or_default();
        metrics.last_run.set(self.ended);
        metrics.last_success.set(if self.succeeded { self.ended } else { known });
        metrics.duration.set(self.seconds);
        for (result, nodes) in [("complete", self.complete), ("unfinished", self.unfinished)] {
            metrics.nodes.get_or_create(&ResultLabels { result }).set(number(nodes));
        }
        rendered(&metrics.register().registry, Format::Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_fails_keeps_when_the_last_success_was() {
        let run = |ended, succeeded| ApplyRun { ended, seconds: 1.5, succeeded, complete: 3, unfinished: 1 };
        let success =
            |text: &str| text.lines().find_map(|line| line.strip_prefix(LAST_SUCCESS)?.trim().parse::<f64>().ok());
        let first = run(100.0, false).exposition("");
        assert_eq!(success(&first), Some(0.0));
        let second = run(200.0, true).exposition(&first);
        assert_eq!(success(&second), Some(200.0));
        assert_eq!(success(&run(300.0, false).exposition(&second)), Some(200.0));
        for odd in [
            "nodegate_apply_last_success_timestamp_seconds NaN",
            "nodegate_apply_last_success_timestamp_seconds",
            "\u{0}",
        ] {
            assert_eq!(success(&run(300.0, false).exposition(odd)), Some(0.0), "{odd:?}");
        }
        assert!(second.contains("nodegate_apply_nodes{result=\"unfinished\"} 1\n"), "{second}");
    }
}
