//! Slots for reviews that take much memory: of large bodies, and of policies, which are compiled. The next one goes to the
//! waiting peer that has used them least.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How many peers are remembered.
const REMEMBERED: usize = 256;
/// How many reviews of policies of one peer wait at most.
const POLICIES_OF_A_PEER: usize = 3;
/// After this time, the use of a peer counts half.
const HALF_LIFE: Duration = Duration::from_secs(10);

/// Slots for large bodies and policies.
///
/// # Guarantees
/// The next slot goes to the waiting peer that has used slots for the shortest time lately. A peer that is not known
/// counts as if it had used one for `contested`, the longest time that a body may take while others wait. So neither
/// slow senders, nor frequent ones, nor many new addresses delay a peer whose bodies take little time.
///
/// A peer none of whose policies waits always gets a place among those that wait, unless they are one each of others that have
/// used slots for a shorter time.
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
    /// Whether it is a review of a policy, whose body is held meanwhile.
    of_policy: bool,
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
        let used = |waiter: &Waiter| self.used_by(waiter.peer, contested, now);
        let ranked = self.waiting.iter().enumerate().map(|(at, waiter)| (used(waiter), at));
        let (_, at) = ranked.min_by(|(one, _), (other, _)| one.total_cmp(other))?;
        Some(self.waiting.remove(at))
    }

    /// For how many seconds a peer counts as having used slots.
    fn used_by(&self, peer: Option<IpAddr>, contested: Duration, now: Instant) -> f64 {
        let known = self.used.iter().find(|used| used.peer == peer);
        known.map_or(contested.as_secs_f64(), |known| known.at(now))
    }

    /// Whether one more review of a policy may wait, among `max`. The last one of the peer that has the most of them gives way, if
    /// that has more than this peer then has, or as many and has used slots for longer.
    fn admits_policy(&mut self, peer: Option<IpAddr>, max: usize, contested: Duration, now: Instant) -> bool {
        self.waiting.retain(|waiter| !waiter.place.is_closed());
        let policies = || self.waiting.iter().filter(|waiter| waiter.of_policy);
        let of = |peer: Option<IpAddr>| policies().filter(|waiter| waiter.peer == peer).count();
        let own = of(peer) + 1;
        if own > POLICIES_OF_A_PEER || policies().count() < max {
            return own <= POLICIES_OF_A_PEER;
        }
        let rank = |peer| (of(peer), self.used_by(peer, contested, now));
        let most = policies().map(|waiter| waiter.peer).max_by(|one, other| {
            let (one, other) = (rank(*one), rank(*other));
            one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
        });
        let Some(most) = most.filter(|most| rank(*most) > (own, self.used_by(peer, contested, now))) else {
            return false;
        };
        let last = self.waiting.iter().rposition(|waiter| waiter.of_policy && waiter.peer == most);
        last.map(|at| self.waiting.remove(at)).is_some()
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
            self.turns.lock().waiting.push(Waiter { peer, place, of_policy: false });
            self.give();
            if let Ok(place) = turn.await {
                return place;
            }
        }
    }

    /// Waits for a slot for a review of a policy, if at most `max` of them wait; `None` if this one has to give way to others.
    pub(super) async fn policy_turn(self: &Arc<Self>, peer: Option<IpAddr>, max: usize) -> Option<LargePlace> {
        let (place, turn) = oneshot::channel();
        {
            let mut turns = self.turns.lock();
            if !turns.admits_policy(peer, max, self.contested, Instant::now()) {
                return None;
            }
            turns.waiting.push(Waiter { peer, place, of_policy: true });
        }
        self.give();
        turn.await.ok()
    }

    /// Assigns free slots to waiters.
    fn give(self: &Arc<Self>) {
        loop {
            let mut turns = self.turns.lock();
            if turns.free == 0 {
                return;
            }
            let since = Instant::now();
            let Some(Waiter { peer, place, of_policy: _ }) = turns.next(self.contested, since) else { return };
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

    /// Waits for the slot with a policy in the background: whether it gets it.
    async fn policy_waits(places: &Arc<LargePlaces>, peer: Option<IpAddr>) -> tokio::task::JoinHandle<bool> {
        let places = places.clone();
        let waiting = tokio::spawn(async move { places.policy_turn(peer, 4).await.is_some() });
        tokio::task::yield_now().await;
        waiting
    }

    #[tokio::test(start_paused = true)]
    async fn policies_of_one_peer_do_not_keep_those_of_others_from_waiting() {
        let places = LargePlaces::new(1, CONTESTED);
        let busy = places.turn(peer(1)).await;
        let mut loud = Vec::new();
        for _ in 0..3 {
            loud.push(policy_waits(&places, peer(1)).await);
        }
        assert!(places.policy_turn(peer(1), 4).await.is_none(), "a fourth of one peer");
        let others = [policy_waits(&places, peer(2)).await, policy_waits(&places, peer(3)).await];
        assert!(!loud.pop().unwrap().await.unwrap(), "its last one gave way");
        let fourth = policy_waits(&places, peer(4)).await;
        assert!(!loud.pop().unwrap().await.unwrap(), "and one more");
        // One of each waits now, and all but the first are unknown.
        assert!(places.policy_turn(peer(2), 4).await.is_none(), "it would have two then");
        tokio::time::advance(CONTESTED * 3).await;
        drop(busy);
        for waiting in loud.into_iter().chain(others).chain([fourth]) {
            assert!(waiting.await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_peers_with_one_policy_each_the_one_that_used_slots_for_longest_gives_way() {
        let places = LargePlaces::new(1, CONTESTED);
        for (number, time) in [(1, 5), (2, 700), (3, 900), (4, 800)] {
            hold(&places, peer(number), Duration::from_millis(time)).await;
        }
        let busy = places.turn(peer(9)).await;
        let mut waiting = Vec::new();
        for number in 1..=4 {
            waiting.push(policy_waits(&places, peer(number)).await);
        }
        let unknown = policy_waits(&places, peer(5)).await;
        assert!(!waiting.remove(2).await.unwrap(), "the third used most");
        drop(busy);
        for waiting in waiting.into_iter().chain([unknown]) {
            assert!(waiting.await.unwrap());
        }
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
