//! Slots for large bodies. The next one goes to the waiting peer that has used them least.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How many peers are remembered.
const REMEMBERED: usize = 256;
/// After this time, the use of a peer counts half.
const HALF_LIFE: Duration = Duration::from_secs(10);

/// Slots for large bodies.
///
/// # Guarantees
/// The next slot goes to the waiting peer that has used slots for the shortest time lately. A peer that is not known
/// counts as if it had used one for `contested`, the longest time that a body may take while others wait. So neither
/// slow senders, nor frequent ones, nor many new addresses delay a peer whose bodies take little time.
pub(super) struct LargePlaces {
    contested: Duration,
    turns: Mutex<Turns>,
}

struct Turns {
    free: usize,
    waiting: Vec<Waiter>,
    used: Vec<Use>,
}

struct Waiter {
    peer: Option<IpAddr>,
    place: oneshot::Sender<LargePlace>,
}

/// How long a peer has used slots.
struct Use {
    peer: Option<IpAddr>,
    /// At `since`; it becomes less with time.
    seconds: f64,
    since: Instant,
}

impl Use {
    fn at(&self, now: Instant) -> f64 {
        self.seconds * (-(now - self.since).as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
    }
}

impl Turns {
    /// Removes the next waiter: of the peer that has used least, and of its bodies the one that has waited longest.
    fn next(&mut self, contested: Duration, now: Instant) -> Option<Waiter> {
        let used = |waiter: &Waiter| {
            let known = self.used.iter().find(|used| used.peer == waiter.peer);
            known.map_or(contested.as_secs_f64(), |known| known.at(now))
        };
        let ranked = self.waiting.iter().enumerate().map(|(at, waiter)| (used(waiter), at));
        let (_, at) = ranked.min_by(|(one, _), (other, _)| one.total_cmp(other))?;
        Some(self.waiting.remove(at))
    }

    fn note(&mut self, peer: Option<IpAddr>, held: Duration, now: Instant) {
        let before = self.used.iter().position(|used| used.peer == peer).map(|at| self.used.swap_remove(at));
        let seconds = before.map_or(0.0, |before| before.at(now)) + held.as_secs_f64();
        self.used.push(Use { peer, seconds, since: now });
        if self.used.len() > REMEMBERED {
            // The one that used most: many slow peers must not make nodegate forget quick ones.
            let most =
                (0..self.used.len()).max_by(|one, other| self.used[*one].at(now).total_cmp(&self.used[*other].at(now)));
            most.map(|at| self.used.swap_remove(at));
        }
    }
}

impl LargePlaces {
    pub(super) fn new(free: usize, contested: Duration) -> Arc<Self> {
        Arc::new(Self { contested, turns: Mutex::new(Turns { free, waiting: Vec::new(), used: Vec::new() }) })
    }

    /// Waits for a slot.
    pub(super) async fn turn(self: &Arc<Self>, peer: Option<IpAddr>) -> LargePlace {
        loop {
            let (place, turn) = oneshot::channel();
            self.turns.lock().waiting.push(Waiter { peer, place });
            self.give();
            if let Ok(place) = turn.await {
                return place;
            }
        }
    }

    /// Assigns free slots to waiters.
    fn give(self: &Arc<Self>) {
        loop {
            let mut turns = self.turns.lock();
            if turns.free == 0 {
                return;
            }
            let since = Instant::now();
            let Some(Waiter { peer, place }) = turns.next(self.contested, since) else { return };
            turns.free -= 1;
            drop(turns);
            if let Err(mut unwanted) = place.send(LargePlace { peer, since, places: Some(self.clone()) }) {
                // The waiter is gone. The slot is taken back here, because dropping it would call this function
                // again.
                unwanted.places = None;
                self.turns.lock().free += 1;
            }
        }
    }
}

/// A slot for a large body, until this is dropped.
pub(super) struct LargePlace {
    peer: Option<IpAddr>,
    since: Instant,
    places: Option<Arc<LargePlaces>>,
}

impl LargePlace {
    /// How long it has been held.
    pub(super) fn held(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether it has been held for too long, because another peer waits for a slot.
    pub(super) fn is_overdue(&self) -> bool {
        let waits = |waiter: &Waiter| waiter.peer != self.peer && !waiter.place.is_closed();
        self.places
            .as_ref()
            .is_some_and(|places| self.held() >= places.contested && places.turns.lock().waiting.iter().any(waits))
    }
}

impl Drop for LargePlace {
    fn drop(&mut self) {
        if let Some(places) = self.places.take() {
            let mut turns = places.turns.lock();
            turns.free += 1;
            turns.note(self.peer, self.held(), Instant::now());
            drop(turns);
            places.give();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const CONTESTED: Duration = Duration::from_millis(500);

    fn peer(at: u32) -> Option<IpAddr> {
        Some(IpAddr::from(at.to_be_bytes()))
    }

    /// Takes a slot and holds it for so long.
    async fn hold(places: &Arc<LargePlaces>, peer: Option<IpAddr>, time: Duration) {
        let place = places.turn(peer).await;
        tokio::time::advance(time).await;
        drop(place);
    }

    /// The peers in the order in which they get the only slot, if all of them wait for it.
    async fn order(places: &Arc<LargePlaces>, peers: impl IntoIterator<Item = Option<IpAddr>>) -> Vec<Option<IpAddr>> {
        let busy = places.turn(peer(u32::MAX)).await;
        let mut served = tokio::task::JoinSet::new();
        let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
        for peer in peers {
            let (places, report) = (places.clone(), report.clone());
            served.spawn(async move {
                let _place = places.turn(peer).await;
                report.send(peer).unwrap();
            });
            tokio::task::yield_now().await;
        }
        drop((busy, report));
        let mut order = Vec::new();
        while let Some(peer) = reports.recv().await {
            order.push(peer);
        }
        order
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_goes_to_the_peer_that_has_used_them_for_the_shortest_time() {
        let places = LargePlaces::new(1, CONTESTED);
        hold(&places, peer(1), Duration::from_secs(7)).await;
        for _ in 0..20 {
            hold(&places, peer(2), Duration::from_millis(5)).await;
        }
        let (slow, quick, new) = (peer(1), peer(2), peer(3));
        assert_eq!(order(&places, [slow, new, quick]).await, [quick, new, slow], "although it came more often");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(order(&places, [peer(4), slow]).await, [slow, peer(4)], "what was long ago counts less");
    }

    #[tokio::test(start_paused = true)]
    async fn many_slow_peers_do_not_make_a_quick_one_unknown() {
        let places = LargePlaces::new(1, CONTESTED);
        hold(&places, peer(0), Duration::from_millis(5)).await;
        for slow in 1..=2 * REMEMBERED as u32 {
            hold(&places, peer(slow), CONTESTED).await;
        }
        assert_eq!(places.turns.lock().used.len(), REMEMBERED);
        assert_eq!(order(&places, [peer(10_000), peer(0)]).await, [peer(0), peer(10_000)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_overdue_after_half_a_second_if_another_peer_waits_and_only_then() {
        let places = LargePlaces::new(1, CONTESTED);
        let place = places.turn(peer(1)).await;
        let same = tokio::spawn({
            let places = places.clone();
            async move { drop(places.turn(peer(1)).await) }
        });
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(!place.is_overdue(), "nobody else waits");
        let other = tokio::spawn({
            let places = places.clone();
            async move { drop(places.turn(peer(2)).await) }
        });
        tokio::task::yield_now().await;
        assert!(place.is_overdue());
        other.abort();
        assert!(other.await.is_err() && !place.is_overdue(), "the one that waited is gone");
        drop(place);
        same.await.unwrap();
    }
}
