//! What the log says of reviews: all denials, but for those of a requester that is denied again and again, and of a caller that
//! sends very many.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nodegate_base::log_limit::{LogLimit, Rate};
use parking_lot::Mutex;

/// Of denials of one requester.
const OF_REQUESTER: Rate = Rate { burst: 10, interval: Duration::from_secs(10) };
/// Of denials of all requesters in the reviews of one caller, which may invent their names.
const OF_CALLER: Rate = Rate { burst: 200, interval: Duration::from_millis(500) };
/// Of remarks on reviews of one caller.
const OF_REMARKS: Rate = Rate { burst: 10, interval: Duration::from_secs(10) };
/// How many callers are remembered, and how many requesters of each. All others count as one.
const CALLERS: usize = 128;
const REQUESTERS: usize = 256;

/// What was logged lately, by caller and by requester.
///
/// # Guarantees
/// - One requester cannot keep the denials of others out of the log, and one caller not those in the reviews of others.
/// - Invented names do not fill it: one caller has a limit of its own, and those that are too many to be remembered share one.
#[derive(Debug, Default)]
pub struct Denials {
    callers: Mutex<Table<Option<IpAddr>, Caller>>,
    remarks: Mutex<Table<Option<IpAddr>, LogLimit>>,
    names: RandomState,
}

#[derive(Debug, Default)]
struct Caller {
    lines: LogLimit,
    /// By a hash of the name, which the API server does not bound.
    requesters: Table<u64, LogLimit>,
}

#[derive(Debug)]
struct Table<K, T> {
    known: HashMap<K, T>,
    others: T,
}

impl<K, T: Default> Default for Table<K, T> {
    fn default() -> Self {
        Self { known: HashMap::new(), others: T::default() }
    }
}

impl<K: Eq + Hash, T: Default> Table<K, T> {
    /// What is known of `key`. If the table has `max` entries, those that are the same as a new one are forgotten.
    fn of(&mut self, key: K, max: usize, is_new: impl Fn(&T) -> bool) -> &mut T {
        if self.known.len() >= max && !self.known.contains_key(&key) {
            self.known.retain(|_, known| !is_new(known));
            if self.known.len() >= max {
                return &mut self.others;
            }
        }
        self.known.entry(key).or_default()
    }
}

impl Denials {
    /// Whether to log a denial of this requester, in a review by this caller: `None` if not, otherwise how many were left out since
    /// the requester's last line, and of the caller's others.
    pub(super) fn note(&self, requester: &str, caller: Option<IpAddr>, now: Instant) -> Option<u64> {
        // Every update is complete, so a panic elsewhere leaves it consistent.
        let mut callers = self.callers.lock();
        let caller = callers.of(caller, CALLERS, |caller| caller.lines.is_new(&OF_CALLER, now));
        if !caller.lines.is_open(&OF_CALLER, now) {
            return caller.lines.note(&OF_CALLER, now);
        }
        let name = self.names.hash_one(requester);
        let requester = caller.requesters.of(name, REQUESTERS, |lines| lines.is_new(&OF_REQUESTER, now));
        let left_out = requester.note(&OF_REQUESTER, now)?;
        Some(left_out + caller.lines.note(&OF_CALLER, now).unwrap_or_default())
    }

    /// Whether to log a remark on a review by this caller: `None` if not, otherwise how many were left out since the last one.
    pub(super) fn remark(&self, caller: Option<IpAddr>, now: Instant) -> Option<u64> {
        let mut remarks = self.remarks.lock();
        remarks.of(caller, CALLERS, |lines| lines.is_new(&OF_REMARKS, now)).note(&OF_REMARKS, now)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn start() -> Instant {
        Instant::now() + OF_REQUESTER.interval * OF_REQUESTER.burst * 2
    }

    fn caller(number: u32) -> Option<IpAddr> {
        Some(IpAddr::from(number.to_be_bytes()))
    }

    #[test]
    fn a_requester_gets_ten_lines_and_then_one_every_ten_seconds_that_counts_the_rest() {
        let (denials, start) = (Denials::default(), start());
        let logged = (0..1000).filter(|_| denials.note("loud", caller(1), start).is_some()).count();
        assert_eq!(logged, 10);
        assert_eq!(denials.note("other", caller(1), start), Some(0), "others are not affected");
        assert_eq!(denials.note("loud", caller(1), start + OF_REQUESTER.interval), Some(990));
        assert_eq!(denials.note("loud", caller(1), start + OF_REQUESTER.interval), None);
    }

    #[test]
    fn invented_names_get_a_caller_no_more_lines_and_keep_nobody_elses_out() {
        let (denials, start) = (Denials::default(), start());
        let names = |from: usize| (from..from + 5_000).map(|number| format!("invented-{number}"));
        let logged = names(0).filter(|name| denials.note(name, caller(1), start).is_some()).count();
        assert_eq!(logged, OF_CALLER.burst as usize);
        let later = names(9_000).filter(|name| denials.note(name, caller(1), start + Duration::from_secs(5)).is_some());
        assert!(later.count() <= 10, "two in a second");
        assert_eq!(denials.note("alice", caller(2), start), Some(0));
        let many = (0..5_000).filter(|number| denials.remark(caller(*number), start).is_some()).count();
        assert_eq!(many, CALLERS + OF_REMARKS.burst as usize, "callers that are too many share their lines");
    }

    #[test]
    fn many_requesters_and_callers_take_bounded_memory() {
        let (denials, start) = (Denials::default(), start());
        for number in 0..10_000 {
            denials.note(&number.to_string(), caller(number % 7), start);
            denials.note("x", caller(number), start);
        }
        let callers = denials.callers.lock();
        assert!(callers.known.len() <= CALLERS);
        assert!(callers.known.values().all(|caller| caller.requesters.known.len() <= REQUESTERS));
    }
}
