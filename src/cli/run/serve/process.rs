//! The state that all parts of a running server share.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use nodegate_base::metrics::Metrics;
use nodegate_base::traces::Traces;
use nodegate_webhook::health::Readiness;

/// How often files are read again if the file system reports no change.
pub(super) const POLL: Duration = Duration::from_secs(10);

/// The state that all parts of a running server share.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) metrics: Arc<Metrics>,
    pub(super) traces: Traces,
    pub(super) readiness: Arc<Readiness>,
    pub(super) shutdown: CancellationToken,
}

impl Process {
    /// The initial state.
    pub(super) fn new(metrics: Arc<Metrics>, traces: Traces) -> Self {
        Self { metrics, traces, readiness: Arc::default(), shutdown: CancellationToken::new() }
    }
}
