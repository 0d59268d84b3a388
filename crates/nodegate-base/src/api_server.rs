//! Whether the API server answers: an outage is two log lines, one at its beginning and one at its end.
//!
//! Everything that nodegate does with a cluster fails during an outage, and each part would report it. So the client notes
//! here what becomes of its requests, and the log leaves out what an outage explains (`telemetry`).

use std::fmt;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// How many requests in a row must get no answer: a single connection breaks for many reasons.
const FAILURES: u32 = 2;

static SEEN: Mutex<RecentAnswers> = Mutex::new(RecentAnswers::new());
/// Told when a request is answered after one that was not.
static ANSWERS: Notify = Notify::const_new();

/// What became of the last requests.
#[derive(Debug)]
struct RecentAnswers {
    /// Whether any request was answered yet.
    ever: bool,
    /// The number of requests without an answer since the last one that was answered.
    failures: u32,
    /// When the first of them failed.
    since: Option<Instant>,
    /// The latest time in an answer, and when it was received.
    time: Option<(Timestamp, Instant)>,
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

impl RecentAnswers {
    const fn new() -> Self {
        Self { ever: false, failures: 0, since: None, time: None }
    }

    fn answered(&mut self) -> Option<News> {
        self.ever = true;
        let (failures, since) = (std::mem::take(&mut self.failures), self.since.take());
        since.filter(|_| failures >= FAILURES).map(|since| News::Back { since })
    }

    /// The time of the API server's clock, which has gone on since its last answer.
    fn time(&self, now: Instant) -> Option<Timestamp> {
        let (time, at) = self.time?;
        let passed = SignedDuration::try_from(now.saturating_duration_since(at)).ok()?;
        time.checked_add(passed).ok()
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

/// Notes that a request was answered, whatever the answer is.
pub fn answered() {
    let (was_failing, news) = {
        let mut seen = SEEN.lock();
        (seen.failures > 0, seen.answered())
    };
    if was_failing {
        ANSWERS.notify_waiters();
    }
    if let Some(News::Back { since }) = news {
        tracing::info!(seconds = since.elapsed().as_secs(), "the API server answers again");
    }
}

/// Notes the time of an answer, as its header `Date` states it.
pub fn dated(date: &str) {
    // HTTP dates are a form of those of RFC 2822.
    if let Ok(time) = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date) {
        SEEN.lock().time = Some((time, Instant::now()));
    }
}

/// The time by which things may be deleted: the earlier one of this machine's clock, `own`, and the API server's. `None` if
/// the API server has stated no time yet.
pub fn time_at_most(own: Timestamp) -> Option<Timestamp> {
    SEEN.lock().time(Instant::now()).map(|time| own.min(time))
}

/// The time from which a retention counts: the later one of this machine's clock, `own`, and the API server's. A clock that is behind
/// must not make something seem to have ended long ago.
pub fn time_at_least(own: Timestamp) -> Timestamp {
    SEEN.lock().time(Instant::now()).map_or(own, |time| own.max(time))
}

/// Notes that a request got no answer.
pub fn failed(error: &dyn fmt::Display) {
    let news = SEEN.lock().failed(Instant::now());
    if news == Some(News::Lost) {
        tracing::warn!(%error, "cannot reach the API server; retrying");
    }
}

/// Returns when a request is answered after one that was not.
pub async fn answers_again() {
    ANSWERS.notified().await;
}

/// Whether the last request got no answer.
pub fn is_failing() -> bool {
    SEEN.lock().failures > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_api_server_goes_on_since_its_last_answer() {
        let (mut seen, now) = (RecentAnswers::new(), Instant::now());
        let at = |second: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second);
        assert_eq!(seen.time(now), None, "the API server has stated no time");
        seen.time = Some((at(100), now));
        assert_eq!(seen.time(now + std::time::Duration::from_secs(60)), Some(at(160)));
    }

    #[test]
    fn an_outage_is_told_at_its_beginning_and_its_end() {
        let (mut seen, now) = (RecentAnswers::new(), Instant::now());
        assert_eq!((seen.failed(now), seen.failed(now), seen.answered()), (None, None, None), "it was never there");
        assert_eq!((seen.failed(now), seen.answered()), (None, None), "one connection broke");
        let told: Vec<_> = (0..100).filter_map(|_| seen.failed(now)).collect();
        assert_eq!(told, [News::Lost]);
        assert_eq!((seen.answered(), seen.answered()), (Some(News::Back { since: now }), None));
    }
}
