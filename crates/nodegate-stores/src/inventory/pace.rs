//! How fast one inventory is asked. An answer about one node says nothing about the inventory; what does is that it cannot be
//! reached, and that it has not answered about any node lately. Pure: the clock and randomness are arguments.

use std::time::Duration;

use tokio::time::Instant;

/// Number of failures in a row that say nothing yet.
pub(super) const TOLERATED: u32 = 3;
/// The longest pause of an inventory that fails; never longer than its interval, or it would answer again and nobody would notice.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// For how long one usable answer shows that an inventory works; never longer than its interval.
const RECENT: Duration = Duration::from_secs(5);
/// Minimum time between two requests about nodes without an answer, while all answers are failures.
const AWAITED_SPACING: Duration = Duration::from_millis(100);
/// The next request about a node without an answer comes after this part of its age: the node may wait, and the longer it has
/// waited, the less a little more time matters.
const PART_OF_AGE: u32 = 8;
/// The shortest delay before the next request about one node.
const DELAY_MIN: Duration = Duration::from_secs(1);

/// The pace of the requests to one inventory.
pub(super) struct Pace {
    /// In which each node is asked about once.
    interval: Duration,
    /// How often in a row it could not be reached, without those that were under way meanwhile.
    unreachable: u32,
    /// Failures about nodes since the last usable answer.
    failures: u32,
    /// When the last usable answer came.
    answered_at: Option<Instant>,
    /// Requests about nodes with an answer since the last usable one, while all answers are failures.
    probes: u32,
    paused_until: Instant,
    awaited_from: Instant,
    known_from: Instant,
}

impl Pace {
    /// The pace of an inventory of which nothing is known.
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            unreachable: 0,
            failures: 0,
            answered_at: None,
            probes: 0,
            paused_until: now,
            awaited_from: now,
            known_from: now,
        }
    }

    /// It answered about a node, if only that it does not know it.
    pub(super) fn answered(&mut self, now: Instant) {
        *self = Self { answered_at: Some(now), ..Self::new(self.interval, now) };
    }

    /// It did not answer about a node, but could be reached.
    pub(super) fn failed(&mut self) {
        self.unreachable = 0;
        self.failures = self.failures.saturating_add(1);
    }

    /// It could not be reached. `random` is between 0 and 1.
    pub(super) fn unreachable(&mut self, now: Instant, random: f64) {
        // Requests that were under way together fail for one reason.
        if self.unreachable == 0 || now >= self.paused_until {
            self.unreachable = self.unreachable.saturating_add(1);
            self.paused_until = now + longer(self.unreachable, PAUSE_MAX.min(self.interval), random);
        }
    }

    /// Whether it could not be reached at last.
    pub(super) fn is_unreachable(&self) -> bool {
        self.unreachable > 0
    }

    /// Whether all recent answers are failures.
    pub(super) fn answers_fail(&self, now: Instant) -> bool {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < RECENT.min(self.interval);
        self.failures > TOLERATED && !self.answered_at.is_some_and(is_recent)
    }

    /// Whether it fails as a whole.
    pub(super) fn is_failing(&self, now: Instant) -> bool {
        self.unreachable > TOLERATED || self.answers_fail(now)
    }

    /// When a request is possible about a node without an answer, and about another one.
    pub(super) fn opens(&self, now: Instant) -> [Instant; 2] {
        match self.answers_fail(now) {
            true => [self.awaited_from, self.known_from].map(|from| from.max(self.paused_until)),
            false => [self.paused_until; 2],
        }
    }

    /// A request about a node without an answer is sent while all answers are failures.
    pub(super) fn asked_awaited(&mut self, now: Instant) {
        self.awaited_from = now + AWAITED_SPACING;
    }

    /// A request about another node is sent while all answers are failures.
    pub(super) fn asked_known(&mut self, now: Instant) {
        self.probes = self.probes.saturating_add(1);
        self.known_from = now + longer(self.probes, PAUSE_MAX.min(self.interval), 0.0);
    }
}

/// The delay after so many failures: 1 s, 2 s, 4 s and so on, each by up to a half shorter.
pub(super) fn longer(failures: u32, most: Duration, random: f64) -> Duration {
    shorter(Duration::from_secs(1_u64 << failures.saturating_sub(1).min(16)).min(most), random)
}

/// The delay before the next request about a node of this age without an answer.
pub(super) fn since_joined(age: Duration, random: f64) -> Duration {
    shorter((age / PART_OF_AGE).max(DELAY_MIN), random)
}

/// So that requests spread.
fn shorter(delay: Duration, random: f64) -> Duration {
    delay.mul_f64(1.0 - random.clamp(0.0, 1.0) / 2.0)
}
