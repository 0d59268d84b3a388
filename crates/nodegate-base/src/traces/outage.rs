//! Whether the collector takes spans: an outage is two log lines, one at its beginning and one at its end.

use std::time::{Duration, Instant};

/// What became of the last batches.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// When the first batch was lost, and how many spans since.
    lost: Option<(Instant, u64)>,
}

/// What is to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Spans are lost.
    Begun,
    /// The collector takes spans again.
    Ended {
        /// How long spans were lost.
        after: Duration,
        /// How many were lost.
        spans: u64,
    },
}

impl Outage {
    /// Notes that the collector took a batch.
    pub(super) fn taken(&mut self, now: Instant) -> Option<News> {
        let (since, spans) = self.lost.take()?;
        Some(News::Ended { after: now.saturating_duration_since(since), spans })
    }

    /// Notes that so many spans were lost.
    pub(super) fn lost(&mut self, spans: u64, now: Instant) -> Option<News> {
        match &mut self.lost {
            Some((_, lost)) => {
                *lost = lost.saturating_add(spans);
                None
            }
            None => {
                self.lost = Some((now, spans));
                Some(News::Begun)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_at_its_beginning_and_its_end() {
        let (mut outage, now) = (Outage::default(), Instant::now());
        assert_eq!(outage.taken(now), None);
        assert_eq!((outage.lost(5, now), outage.lost(7, now)), (Some(News::Begun), None));
        let later = now + Duration::from_secs(9);
        assert_eq!(outage.taken(later), Some(News::Ended { after: Duration::from_secs(9), spans: 12 }));
        assert_eq!((outage.taken(later), outage.lost(1, later)), (None, Some(News::Begun)));
    }
}
