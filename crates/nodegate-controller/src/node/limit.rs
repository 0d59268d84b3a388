//! Limits the rate of writes, for all nodes together and for each node.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::node::queue::Urgency;

/// How many seconds' worth of writes may be made at once for joining nodes, after a time without joins. A thousand
/// joining nodes need two writes each.
const JOINING_BURST: u32 = 20;
/// The same for all other writes.
const ROUTINE_BURST: u32 = 1;

/// The cluster's write budget. Joining nodes have a separate share, so that repairs do not delay them.
#[derive(Debug)]
pub struct WriteBudget {
    joining: Bucket,
    routine: Bucket,
}

impl WriteBudget {
    /// Limits each share to this many writes per second, at least one.
    pub fn per_second(writes: u32) -> Self {
        Self { joining: Bucket::new(writes, JOINING_BURST), routine: Bucket::new(writes, ROUTINE_BURST) }
    }

    /// Returns when the next write may be made.
    pub async fn turn(&self, urgency: Urgency) {
        let bucket = match urgency {
            Urgency::Joining => &self.joining,
            Urgency::Routine => &self.routine,
        };
        tokio::time::sleep_until(bucket.take(Instant::now())).await;
    }
}

/// A token bucket, stored as the time from which the next token is available.
#[derive(Debug)]
struct Bucket {
    interval: Duration,
    burst: Duration,
    next: Mutex<Option<Instant>>,
}

impl Bucket {
    fn new(per_second: u32, burst_seconds: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, burst: Duration::from_secs(u64::from(burst_seconds)), next: Mutex::default() }
    }

    /// Takes a token, and returns when it may be used. A new bucket is full.
    fn take(&self, now: Instant) -> Instant {
        // Only one value is stored, so a panic elsewhere leaves it consistent.
        let mut next = self.next.lock();
        let full = now.checked_sub(self.burst).unwrap_or(now);
        let at = next.map_or(full, |next| next.max(full));
        *next = Some(at + self.interval);
        at
    }
}

/// How many writes one node may use at once…
const NODE_BURST: u32 = 20;
/// …and how long it takes until it may use one more.
const NODE_INTERVAL: Duration = Duration::from_secs(3);

/// The write budget of a node, so that one that changes constantly does not exhaust the cluster's budget.
#[derive(Debug, Default)]
pub(crate) struct NodeBudget {
    /// The time from which the next write is available; nothing while the budget is full.
    next: Option<Instant>,
    /// Whether it was reported that the budget is exhausted.
    reported: bool,
}

/// A node has exhausted its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overdrawn {
    /// How long until the requested writes are available.
    pub(crate) wait: Duration,
    /// Whether this is the first time since its budget was full.
    pub(crate) first: bool,
}

impl NodeBudget {
    /// Takes this many writes, all or none.
    pub(crate) fn take(&mut self, writes: u32, now: Instant) -> Result<(), Overdrawn> {
        let full = now.checked_sub(NODE_INTERVAL * NODE_BURST).unwrap_or(now);
        let next = self.next.filter(|next| *next > full);
        if next.is_none() {
            self.reported = false;
        }
        let needed = next.unwrap_or(full) + NODE_INTERVAL * writes.min(NODE_BURST);
        if needed > now {
            let first = !std::mem::replace(&mut self.reported, true);
            return Err(Overdrawn { wait: needed - now, first });
        }
        self.next = Some(needed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn writes_are_limited_to_a_burst_and_then_to_the_rate() {
        let budget = WriteBudget::per_second(10);
        let start = Instant::now();
        for _ in 0..10 {
            budget.turn(Urgency::Routine).await;
        }
        assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
        for _ in 0..20 {
            budget.turn(Urgency::Routine).await;
        }
        assert_eq!(start.elapsed().as_millis() / 100, 19);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_joins_are_not_delayed_at_the_default_rate_even_if_repairs_are() {
        let budget = WriteBudget::per_second(100);
        let start = Instant::now();
        for _ in 0..200 {
            budget.turn(Urgency::Routine).await;
        }
        let repaired = start.elapsed();
        assert!(repaired >= Duration::from_millis(900), "{repaired:?}");
        for _ in 0..2000 {
            budget.turn(Urgency::Joining).await;
        }
        assert!(start.elapsed() - repaired < Duration::from_millis(100), "{:?}", start.elapsed());
        for _ in 0..100 {
            budget.turn(Urgency::Joining).await;
        }
        assert!(start.elapsed() - repaired > Duration::from_millis(900), "the burst is exhausted");
    }

    #[tokio::test(start_paused = true)]
    async fn one_node_may_use_twenty_writes_and_then_one_every_three_seconds() {
        let (mut budget, start) = (NodeBudget::default(), Instant::now());
        let made = (0..1000).filter(|_| budget.take(2, start).is_ok()).count();
        assert_eq!(made, 10, "pairs of writes");
        let put_off = budget.take(2, start);
        assert_eq!(put_off, Err(Overdrawn { wait: NODE_INTERVAL * 2, first: false }), "it was reported once");
        assert!(budget.take(1, start + NODE_INTERVAL).is_ok());
        assert!(budget.take(1, start + NODE_INTERVAL).is_err());
        let whole = start + NODE_INTERVAL * (NODE_BURST + 1);
        let again: Vec<_> = (0..21).map(|_| budget.take(1, whole)).collect();
        assert!(again[..20].iter().all(Result::is_ok));
        assert!(again[20].is_err_and(|overdrawn| overdrawn.first), "a new exhaustion is reported again");
    }
}
