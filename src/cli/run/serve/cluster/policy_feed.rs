//! The status of `NodePolicy` objects, from every replica's watch of them to the leader that writes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use nodegate_base::metrics::Metrics;
use nodegate_controller::policies::{Good, Report, Reports};

/// The sending end for the results of compiling `NodePolicy` objects.
pub(super) struct PolicyFeed {
    reports: watch::Sender<Reports>,
    good: watch::Sender<Arc<Vec<Good>>>,
}

/// The receiving end, for the leader.
pub(super) struct PolicyUpdates {
    /// The status of each object.
    pub(super) reports: watch::Receiver<Reports>,
    /// The generations in force, to be recorded.
    pub(super) good: watch::Receiver<Arc<Vec<Good>>>,
}

impl PolicyFeed {
    pub(super) fn channel() -> (Self, PolicyUpdates) {
        let ((reports, seen_reports), (good, seen_good)) =
            (watch::channel(Reports::default()), watch::channel(Arc::default()));
        (Self { reports, good }, PolicyUpdates { reports: seen_reports, good: seen_good })
    }

    /// Publishes what is in force now, and logs new errors.
    pub(super) fn publish(&self, now: BTreeMap<String, Report>, good: Vec<Good>, metrics: &Metrics) {
        metrics.loaded.policies_judged(now.iter().map(|(name, report)| (name.as_str(), !report.errors.is_empty())));
        self.reports.send_if_modified(|reports| {
            let news = **reports != now;
            if news {
                for (name, report) in &now {
                    if let Some(complaint) = report.complaint() {
                        tracing::error!(policy = name, "this NodePolicy is invalid: {complaint}");
                    }
                }
                *reports = Arc::new(now);
            }
            news
        });
        self.good.send_replace(Arc::new(good));
    }
}
