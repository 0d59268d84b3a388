//! Which denials are logged: all of them, but for those of a requester that is denied again and again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nodegate_base::text;
use parking_lot::Mutex;

/// How many denials of one requester are logged at once…
const BURST: u32 = 10;
/// …and how long it takes until one more is.
const INTERVAL: Duration = Duration::from_secs(10);
/// How much of the name of a requester is remembered, in bytes.
const NAME_MAX: usize = 256;
/// When more requesters than this are remembered, those that were not denied for long are forgotten.
const REMEMBERED: usize = 1024;

/// The denials that were logged lately, by requester. So one requester cannot keep the denials of others out of the log.
#[derive(Debug, Default)]
pub struct Denials {
    requesters: Mutex<HashMap<Box<str>, Spent>>,
}

#[derive(Debug)]
struct Spent {
    /// The time from which the next line is available.
    next: Instant,
    /// How many denials were left out since the last line.
    left_out: u64,
}

impl Denials {
    /// Whether to log a denial of this requester: `None` if not, otherwise how many were left out since its last line.
    pub fn note(&self, requester: &str, now: Instant) -> Option<u64> {
        // Every update is complete, so a panic elsewhere leaves it consistent.
        let mut requesters = self.requesters.lock();
        let full = now.checked_sub(INTERVAL * BURST).unwrap_or(now);
        if requesters.len() > REMEMBERED {
            requesters.retain(|_, spent| spent.next > full);
        }
        if requesters.len() > REMEMBERED {
            requesters.clear();
        }
        // The API server bounds no user name.
        let mut requester = requester.to_owned();
        text::cut(&mut requester, NAME_MAX);
        let spent = requesters.entry(requester.into()).or_insert(Spent { next: full, left_out: 0 });
        let next = spent.next.max(full) + INTERVAL;
        if next > now {
            spent.left_out += 1;
            return None;
        }
        spent.next = next;
        Some(std::mem::take(&mut spent.left_out))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_requester_gets_ten_lines_and_then_one_every_ten_seconds_that_counts_the_rest() {
        let (denials, start) = (Denials::default(), Instant::now() + INTERVAL * BURST * 2);
        let logged = (0..1000).filter(|_| denials.note("loud", start).is_some()).count();
        assert_eq!(logged, 10);
        assert_eq!(denials.note("other", start), Some(0), "others are not affected");
        assert_eq!(denials.note("loud", start + INTERVAL), Some(990));
        assert_eq!(denials.note("loud", start + INTERVAL), None);
    }

    #[test]
    fn many_requesters_take_bounded_memory() {
        let (denials, start) = (Denials::default(), Instant::now());
        for number in 0..10_000 {
            denials.note(&number.to_string(), start);
        }
        denials.note(&"x".repeat(15_000_000), start);
        let requesters = denials.requesters.lock();
        assert!(requesters.len() <= REMEMBERED + 1);
        assert!(requesters.keys().all(|requester| requester.len() <= NAME_MAX + 4));
    }
}
