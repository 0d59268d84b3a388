//! Readiness of a leader whose watch of nodes fails.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use nodegate_webhook::health::Readiness;

/// Updates readiness while this replica leads.
pub(super) struct Blind<'a>(pub(super) &'a Readiness);

impl Blind<'_> {
    /// Reports "not ready" once the watch has failed for this long; runs until dropped.
    pub(super) async fn follow(&self, mut failing: watch::Receiver<Option<Instant>>, limit: Duration) {
        loop {
            let left = failing.borrow_and_update().map(|since| limit.saturating_sub(since.elapsed()));
            self.0.leads_blind(left.is_some_and(|left| left.is_zero()));
            let changed = tokio::select! {
                changed = failing.changed() => changed.is_ok(),
                () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some_and(|left| !left.is_zero()) => true,
            };
            if !changed {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for Blind<'_> {
    fn drop(&mut self) {
        self.0.leads_blind(false);
    }
}
