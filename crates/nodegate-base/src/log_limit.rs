//! Limits how often the log says something, and counts what it does not say.

use std::time::{Duration, Instant};

/// How many lines there are at once, and how long it takes until there is one more.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Lines at once.
    pub burst: u32,
    /// Time until there is one more.
    pub interval: Duration,
}

/// The lines about one thing.
#[derive(Debug, Default)]
pub struct LogLimit {
    /// The time from which the next line is available, if there was one.
    next: Option<Instant>,
    /// How many lines were left out since the last one.
    left_out: u64,
}

impl LogLimit {
    /// Whether as many lines are available as there are at once.
    pub fn is_new(&self, rate: &Rate, now: Instant) -> bool {
        self.next.is_none_or(|next| next + rate.interval * rate.burst <= now)
    }

    /// Whether a line is available.
    pub fn is_open(&self, rate: &Rate, now: Instant) -> bool {
        self.after(rate, now).is_some()
    }

    /// The time from which the line after the next one is available, if the next one is now.
    fn after(&self, rate: &Rate, now: Instant) -> Option<Instant> {
        let full = now.checked_sub(rate.interval * rate.burst).unwrap_or(now);
        let next = self.next.map_or(full, |next| next.max(full)) + rate.interval;
        (next <= now).then_some(next)
    }

    /// Whether there may be one more line: `None` if not, otherwise how many were left out since the last one.
    pub fn note(&mut self, rate: &Rate, now: Instant) -> Option<u64> {
        let Some(next) = self.after(rate, now) else {
            self.left_out += 1;
            return None;
        };
        self.next = Some(next);
        Some(std::mem::take(&mut self.left_out))
    }
}
