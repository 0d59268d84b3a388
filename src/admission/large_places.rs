//! Slots for large bodies, assigned in turn by peer.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// How many recent peers are remembered.
const REMEMBERED: usize = 256;

/// Slots for large bodies, assigned in turn by peer, so that frequent senders do not block others.
pub(super) struct LargePlaces(Mutex<Turns>);

struct Turns {
    free: usize,
    waiting: VecDeque<(Option<IpAddr>, oneshot::Sender<LargePlace>)>,
    /// Recent peers, the latest last.
    served: VecDeque<Option<IpAddr>>,
}

impl Turns {
    /// Removes the next waiter: of the waiting peers, one of the peer whose last turn is the longest ago.
    fn next(&mut self) -> Option<(Option<IpAddr>, oneshot::Sender<LargePlace>)> {
        let last_turn =
            |peer: &Option<IpAddr>| self.served.iter().position(|served| served == peer).map_or(0, |at| at + 1);
        let at = (0..self.waiting.len()).min_by_key(|at| last_turn(&self.waiting[*at].0))?;
        self.waiting.remove(at)
    }

    fn note(&mut self, peer: Option<IpAddr>) {
        self.served.retain(|served| *served != peer);
        self.served.push_back(peer);
        if self.served.len() > REMEMBERED {
            self.served.pop_front();
        }
    }
}

impl LargePlaces {
    pub(super) fn new(free: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Turns { free, waiting: VecDeque::new(), served: VecDeque::new() })))
    }

    /// Waits for a slot.
    pub(super) async fn turn(self: &Arc<Self>, peer: Option<IpAddr>) -> LargePlace {
        loop {
            let (sender, turn) = oneshot::channel();
            lock(&self.0).waiting.push_back((peer, sender));
            self.give();
            if let Ok(place) = turn.await {
                return place;
            }
        }
    }

    /// Assigns free slots to waiters.
    fn give(self: &Arc<Self>) {
        loop {
            let mut turns = lock(&self.0);
            if turns.free == 0 {
                return;
            }
            let Some((peer, waiter)) = turns.next() else { return };
            turns.free -= 1;
            drop(turns);
            match waiter.send(LargePlace { peer, places: Some(self.clone()) }) {
                Ok(()) => lock(&self.0).note(peer),
                Err(mut unwanted) => {
                    // The waiter is gone. The slot is taken back here, because dropping it would call this function
                    // again.
                    unwanted.places = None;
                    lock(&self.0).free += 1;
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update below is complete before anything can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A slot for a large body, until this is dropped.
pub(super) struct LargePlace {
    peer: Option<IpAddr>,
    places: Option<Arc<LargePlaces>>,
}

impl LargePlace {
    /// Whether another peer waits for a slot.
    pub(super) fn is_wanted_by_others(&self) -> bool {
        let waits =
            |(peer, waiter): &(Option<IpAddr>, oneshot::Sender<Self>)| *peer != self.peer && !waiter.is_closed();
        self.places.as_ref().is_some_and(|places| lock(&places.0).waiting.iter().any(waits))
    }
}

impl Drop for LargePlace {
    fn drop(&mut self) {
        if let Some(places) = self.places.take() {
            lock(&places.0).free += 1;
            places.give();
        }
    }
}
