//! Bounds on the rate of writes: for all nodes together, and for each.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::queue::Urgency;

/// So many seconds' worth of writes may be made at once for nodes that join, after a time without joins. A thousand
/// nodes that join need two writes each.
const JOINING_BURST: u32 = 20;
/// The same for everything else.
const ROUTINE_BURST: u32 = 1;

/// The cluster's write budget: nodes that join have a share of their own, so that repairs are not in their way.
#[derive(Debug)]
pub(super) struct WriteBudget {
    joining: Bucket,
    routine: Bucket,
}

impl WriteBudget {
    /// At most so many writes per second for either, at least one.
    pub(super) fn per_second(writes: u32) -> Self {
        Self { joining: Bucket::new(writes, JOINING_BURST), routine: Bucket::new(writes, ROUTINE_BURST) }
    }

    /// Returns when the next write may be made.
    pub(super) async fn turn(&self, urgency: Urgency) {
        let bucket = match urgency {
            Urgency::Joining => &self.joining,
            Urgency::Routine => &self.routine,
        };
        tokio::time::sleep_until(bucket.take(Instant::now())).await;
    }
}

/// A token bucket, as the time from which the next token is free.
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

    /// Takes a token, and answers when it may be used. A bucket that nothing was taken from yet is full.
    fn take(&self, now: Instant) -> Instant {
        // One value is stored; a panic elsewhere leaves it whole.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let full = now.checked_sub(self.burst).unwrap_or(now);
        let at = next.map_or(full, |next| next.max(full));
        *next = Some(at + self.interval);
        at
    }
}

/// How many writes one node may cost at once…
const NODE_BURST: u32 = 20;
/// …and how long it takes until it may cost one more.
const NODE_INTERVAL: Duration = Duration::from_secs(3);
/// So many nodes are remembered before those whose budget is whole again are forgotten.
const REMEMBERED: usize = 1024;

/// The write budget of each node, so that one that changes all the time does not use up the cluster's.
#[derive(Debug, Default)]
pub(super) struct NodeBudgets {
    /// By uid; a node that is not here has its whole budget.
    spent: HashMap<String, Spent>,
    sweep_at: usize,
}

#[derive(Debug)]
struct Spent {
    /// The time from which the next write is free.
    next: Instant,
    /// Whether it was told that the budget is used up.
    told: bool,
}

/// A node has used up its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overdrawn {
    /// How long until what was asked for can be afforded.
    pub(super) wait: Duration,
    /// Whether this is the first time since its budget was whole.
    pub(super) first: bool,
}

impl NodeBudgets {
    /// Takes so many writes from a node's budget, all or none.
    pub(super) fn take(&mut self, uid: &str, writes: u32, now: Instant) -> Result<(), Overdrawn> {
        let full = now.checked_sub(NODE_INTERVAL * NODE_BURST).unwrap_or(now);
        if self.spent.len() > self.sweep_at.max(REMEMBERED) {
            self.spent.retain(|_, spent| spent.next > full);
            self.sweep_at = self.spent.len() * 2;
        }
        let spent = self.spent.entry(uid.to_owned()).or_insert(Spent { next: full, told: false });
        if spent.next <= full {
            *spent = Spent { next: full, told: false };
        }
        let needed = spent.next + NODE_INTERVAL * writes.min(NODE_BURST);
        if needed > now {
            let first = !std::mem::replace(&mut spent.told, true);
            return Err(Overdrawn { wait: needed - now, first });
        }
        spent.next = needed;
        Ok(())
    }

    /// A node is gone.
    pub(super) fn forget(&mut self, uid: &str) {
        self.spent.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_the_rate() {
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
    async fn a_thousand_joins_are_not_held_back_at_the_default_rate_even_where_repairs_are() {
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
        assert!(start.elapsed() - repaired > Duration::from_millis(900), "the burst is used up");
    }

    #[tokio::test(start_paused = true)]
    async fn one_node_may_cost_twenty_writes_and_then_one_in_three_seconds() {
        let mut budgets = NodeBudgets::default();
        let start = Instant::now();
        let made = (0..1000).filter(|_| budgets.take("flapping", 2, start).is_ok()).count();
        assert_eq!(made, 10, "pairs of writes");
        assert!(budgets.take("other", 2, start).is_ok(), "no other node is affected");
        let put_off = budgets.take("flapping", 2, start);
        assert_eq!(put_off, Err(Overdrawn { wait: NODE_INTERVAL * 2, first: false }), "it was told once");
        assert!(budgets.take("flapping", 1, start + NODE_INTERVAL).is_ok());
        assert!(budgets.take("flapping", 1, start + NODE_INTERVAL).is_err());
        let whole = start + NODE_INTERVAL * (NODE_BURST + 1);
        let again: Vec<_> = (0..21).map(|_| budgets.take("flapping", 1, whole)).collect();
        assert!(again[..20].iter().all(Result::is_ok));
        assert!(again[20].is_err_and(|overdrawn| overdrawn.first), "a new time of need is told again");
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_whose_budget_is_whole_are_forgotten() {
        let mut budgets = NodeBudgets::default();
        let start = Instant::now();
        for at in 0..20_000 {
            let _ = budgets.take(&format!("u{at}"), 1, start + Duration::from_secs(at));
        }
        assert!(budgets.spent.len() <= 2 * REMEMBERED, "{}", budgets.spent.len());
        budgets.forget("u19999");
        assert!(!budgets.spent.contains_key("u19999"));
    }
}
