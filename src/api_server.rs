//! Whether the API server answers: an outage is two log lines, one at its beginning and one at its end.
//!
//! Everything that nodegate does with a cluster fails during an outage, and each part would report it. So the client notes
//! here what becomes of its requests, and the log leaves out what an outage explains (`telemetry`).

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How many requests in a row must get no answer: a single connection breaks for many reasons.
const FAILURES: u32 = 2;

static SEEN: Mutex<Seen> = Mutex::new(Seen::new());

/// What became of the last requests.
#[derive(Debug)]
struct Seen {
    /// Whether any request was answered yet.
    ever: bool,
    /// The number of requests without an answer since the last one that was answered.
    failures: u32,
    /// When the first of them failed.
    since: Option<Instant>,
}

/// What is to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// The API server does not answer anymore.
    Lost,
    /// It answers again.
    Back {
        /// When it began not to answer.
        since: Instant,
    },
}

impl Seen {
    const fn new() -> Self {
        Self { ever: false, failures: 0, since: None }
    }

    fn answered(&mut self) -> Option<News> {
        self.ever = true;
        let (failures, since) = (std::mem::take(&mut self.failures), self.since.take());
        since.filter(|_| failures >= FAILURES).map(|since| News::Back { since })
    }

    /// At the start nodegate waits for its cluster, and reports that by itself.
    fn failed(&mut self, now: Instant) -> Option<News> {
        if !self.ever {
            return None;
        }
        self.since.get_or_insert(now);
        self.failures = self.failures.saturating_add(1);
        (self.failures == FAILURES).then_some(News::Lost)
    }
}

fn seen() -> MutexGuard<'static, Seen> {
    // Every update is complete, so a panic elsewhere leaves it consistent.
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that a request was answered, whatever the answer is.
pub fn answered() {
    let news = seen().answered();
    if let Some(News::Back { since }) = news {
        tracing::info!(seconds = since.elapsed().as_secs(), "the API server answers again");
    }
}

/// Notes that a request got no answer.
pub fn failed(error: &dyn fmt::Display) {
    let news = seen().failed(Instant::now());
    if news == Some(News::Lost) {
        tracing::warn!(%error, "cannot reach the API server; retrying");
    }
}

/// Whether the last request got no answer.
pub fn is_failing() -> bool {
    seen().failures > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_at_its_beginning_and_its_end() {
        let (mut seen, now) = (Seen::new(), Instant::now());
        assert_eq!((seen.failed(now), seen.failed(now), seen.answered()), (None, None, None), "it was never there");
        assert_eq!((seen.failed(now), seen.answered()), (None, None), "one connection broke");
        let told: Vec<_> = (0..100).filter_map(|_| seen.failed(now)).collect();
        assert_eq!(told, [News::Lost]);
        assert_eq!((seen.answered(), seen.answered()), (Some(News::Back { since: now }), None));
    }
}
