//! A bound on the rate of writes.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// Writes per second, with a second's worth of burst.
#[derive(Debug)]
pub(super) struct WriteLimit {
    interval: Duration,
    next: Mutex<Instant>,
}

impl WriteLimit {
    /// At most so many per second, at least one.
    pub(super) fn per_second(writes: u32) -> Self {
        Self { interval: Duration::from_secs(1) / writes.max(1), next: Mutex::new(Instant::now()) }
    }

    /// Returns when the next write may be made.
    pub(super) async fn turn(&self) {
        let at = {
            let mut next = self.next.lock().await;
            let now = Instant::now();
            let earliest = now.checked_sub(Duration::from_secs(1)).unwrap_or(now);
            let at = (*next).max(earliest);
            *next = at + self.interval;
            at
        };
        tokio::time::sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_of_burst_and_then_the_rate() {
        let limit = WriteLimit::per_second(10);
        tokio::time::advance(Duration::from_secs(5)).await;
        let start = Instant::now();
        for _ in 0..10 {
            limit.turn().await;
        }
        assert!(start.elapsed() < Duration::from_millis(50));
        for _ in 0..20 {
            limit.turn().await;
        }
        assert_eq!(start.elapsed().as_millis() / 100, 19);
    }
}
