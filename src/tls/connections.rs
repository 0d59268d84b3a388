//! The open connections of one listener: how many there may be, and which one ends when there is no room for another.
//!
//! Anybody may connect and wait, so what waits must not keep others out. At a bound the connection ends that is least
//! worth keeping, and the newcomer is let in. Among equals it is one of the peer that has most of them: the API server has
//! a few, and whoever crowds the port only ends its own. Connections of one peer have a bound of their own: at that bound
//! it is one of its own that ends.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio_util::sync::CancellationToken;

/// Nothing is asked: a handshake, the head of a request, or silence.
const WAITING: u8 = 0;
/// The body of a request is coming in.
const RECEIVING: u8 = 1;
/// A request is here and not answered yet.
const ANSWERING: u8 = 2;

/// What came of asking for a seat.
pub(super) enum Seating {
    /// There was room.
    Seated(Seat),
    /// This one was told to end; when it has, there is room.
    Ended(CancellationToken),
    /// Every connection has a request that is being answered.
    Full,
}

/// The open connections.
pub(super) struct Connections {
    most: usize,
    most_of_peer: usize,
    begun: Instant,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    numbers: u64,
    open: HashMap<u64, Arc<State>>,
    of_peer: HashMap<IpAddr, usize>,
}

impl Connections {
    pub(super) fn new(most: usize, most_of_peer: usize) -> Arc<Self> {
        Arc::new(Self { most, most_of_peer, begun: Instant::now(), table: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Every change of the table is whole before anything can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a seat, and has another connection end where there is none.
    pub(super) fn seat(self: &Arc<Self>, address: IpAddr) -> Seating {
        let peer = peer(address);
        let mut table = self.lock();
        let crowds = table.of_peer.get(&peer).is_some_and(|open| *open >= self.most_of_peer);
        if crowds || table.open.len() >= self.most {
            return match table.least_worth(crowds.then_some(peer)) {
                Some(state) => {
                    state.ending.cancel();
                    Seating::Ended(state.gone.clone())
                }
                None => Seating::Full,
            };
        }
        table.numbers += 1;
        let number = table.numbers;
        let state = Arc::new(State {
            peer,
            begun: self.begun,
            stage: AtomicU8::new(WAITING),
            proven: AtomicBool::new(false),
            since: AtomicU64::new(self.now()),
            ending: CancellationToken::new(),
            gone: CancellationToken::new(),
        });
        table.open.insert(number, state.clone());
        *table.of_peer.entry(peer).or_default() += 1;
        Seating::Seated(Seat { number, state, connections: self.clone() })
    }

    /// Has one connection end, for the operating system has no room for more.
    pub(super) fn end_one(&self) {
        if let Some(state) = self.lock().least_worth(None) {
            state.ending.cancel();
        }
    }

    fn now(&self) -> u64 {
        millis(self.begun)
    }
}

impl Table {
    /// The connection, of this peer if one is given, that is least worth keeping: of those with the least [`State::worth`]
    /// one of the peer with most connections, and of those the one that has been as it is for longest.
    fn least_worth(&self, peer: Option<IpAddr>) -> Option<&Arc<State>> {
        let candidates = self.open.values().filter(|state| peer.is_none_or(|peer| peer == state.peer));
        let ranked = candidates.filter_map(|state| {
            let of_peer = self.of_peer.get(&state.peer).copied().unwrap_or_default();
            Some(((state.worth()?, Reverse(of_peer), state.since.load(Ordering::Relaxed)), state))
        });
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, state)| state)
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Who sends from an address. Of IPv6 a whole /64 is one peer: a machine has as many addresses of it as it likes.
pub(super) fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

/// One open connection, as it is now. Requests change it without a lock.
pub(super) struct State {
    pub(super) peer: IpAddr,
    begun: Instant,
    stage: AtomicU8,
    proven: AtomicBool,
    /// Since when it is at its stage, in milliseconds.
    since: AtomicU64,
    ending: CancellationToken,
    gone: CancellationToken,
}

impl State {
    fn enter(&self, stage: u8) {
        self.since.store(millis(self.begun), Ordering::Relaxed);
        self.stage.store(stage, Ordering::Relaxed);
    }

    /// A request's head is here.
    pub(super) fn asked(&self, has_body: bool) {
        self.enter(if has_body { RECEIVING } else { ANSWERING });
    }

    /// A request was answered; with success only what belongs here is.
    pub(super) fn answered(&self, success: bool) {
        self.enter(WAITING);
        if success {
            self.proven.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a request was answered with success.
    pub(super) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// For how long nothing has been asked; zero while a request is here.
    pub(super) fn waited(&self) -> Duration {
        if self.stage.load(Ordering::Relaxed) != WAITING {
            return Duration::ZERO;
        }
        Duration::from_millis(millis(self.begun).saturating_sub(self.since.load(Ordering::Relaxed)))
    }

    /// How much it is worth to keep this connection; `None` where it may not end. One on which a request was answered
    /// with success is the API server's more likely than not, and to close it may fail its next call. A handshake and an
    /// unfinished body are worth the same: were one worth less, many of the other kind would end every newcomer at once.
    fn worth(&self) -> Option<u8> {
        match (self.stage.load(Ordering::Relaxed), self.is_proven()) {
            (WAITING | RECEIVING, false) => Some(0),
            (WAITING, true) => Some(1),
            (RECEIVING, true) => Some(2),
            _ => None,
        }
    }
}

/// A place among the open connections, until this is dropped.
pub(super) struct Seat {
    number: u64,
    pub(super) state: Arc<State>,
    connections: Arc<Connections>,
}

impl Seat {
    /// Cancelled when the connection has to end.
    pub(super) fn ending(&self) -> &CancellationToken {
        &self.state.ending
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = self.connections.lock();
        table.open.remove(&self.number);
        if let Some(open) = table.of_peer.get_mut(&self.state.peer) {
            *open -= 1;
            if *open == 0 {
                table.of_peer.remove(&self.state.peer);
            }
        }
        drop(table);
        self.state.gone.cancel();
    }
}

/// The body of a request, of which the listener knows when it is whole.
pub struct RequestBody {
    body: Incoming,
    state: Arc<State>,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, state: Arc<State>) -> Self {
        Self { body, state }
    }
}

impl std::fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.body.fmt(f)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) || frame.is_ready() && self.body.is_end_stream() {
            self.state.enter(ANSWERING);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn seated(connections: &Arc<Connections>, peer: &str) -> Seat {
        match connections.seat(peer.parse().unwrap()) {
            Seating::Seated(seat) => seat,
            Seating::Ended(_) | Seating::Full => panic!("there is room for {peer}"),
        }
    }

    fn is_ending(seat: &Seat) -> bool {
        seat.ending().is_cancelled()
    }

    #[test]
    fn at_the_bound_what_was_never_answered_ends_first_and_what_is_being_answered_never() {
        let connections = Connections::new(5, 5);
        let seats: Vec<Seat> = (1..=5).map(|at| seated(&connections, &format!("192.0.2.{at}"))).collect();
        let [answering, receiving_proven, waiting_proven, receiving, waiting] = &seats[..] else { panic!() };
        receiving_proven.state.answered(true);
        receiving_proven.state.asked(true);
        waiting_proven.state.answered(true);
        receiving.state.asked(true);
        receiving.state.since.store(1, Ordering::Relaxed);
        waiting.state.since.store(2, Ordering::Relaxed);
        answering.state.asked(false);
        for (at, worst) in [receiving, waiting, waiting_proven, receiving_proven].into_iter().enumerate() {
            assert!(matches!(connections.seat("192.0.2.9".parse().unwrap()), Seating::Ended(_)));
            assert!(is_ending(worst), "{at}");
            // As if its task took no notice: the next one is looked for among the others.
            worst.state.asked(false);
        }
        assert!(matches!(connections.seat("192.0.2.9".parse().unwrap()), Seating::Full));
        assert!(!is_ending(answering));
    }

    #[test]
    fn of_two_alike_the_one_that_waits_longer_ends() {
        let connections = Connections::new(2, 2);
        let (first, second) = (seated(&connections, "192.0.2.1"), seated(&connections, "192.0.2.2"));
        first.state.since.store(2, Ordering::Relaxed);
        second.state.since.store(1, Ordering::Relaxed);
        let Seating::Ended(gone) = connections.seat("192.0.2.3".parse().unwrap()) else { panic!("no room") };
        assert!(is_ending(&second) && !is_ending(&first) && !gone.is_cancelled());
        drop(second);
        assert!(gone.is_cancelled());
        seated(&connections, "192.0.2.3");
    }

    #[test]
    fn a_peer_with_many_connections_ends_its_own_and_not_the_only_one_of_another() {
        let connections = Connections::new(4, 4);
        let alone = seated(&connections, "192.0.2.1");
        let crowd: Vec<Seat> = (0..3).map(|_| seated(&connections, "192.0.2.2")).collect();
        for (at, seat) in crowd.iter().enumerate() {
            seat.state.asked(true);
            seat.state.since.store(10 + at as u64, Ordering::Relaxed);
        }
        let Seating::Ended(_) = connections.seat("192.0.2.3".parse().unwrap()) else { panic!("no room") };
        assert!(is_ending(&crowd[0]) && !is_ending(&alone), "although that one has been waiting for longer");
    }

    #[test]
    fn a_peer_at_its_own_bound_loses_a_connection_of_its_own() {
        let connections = Connections::new(100, 2);
        let other = seated(&connections, "192.0.2.1");
        let (first, second) = (seated(&connections, "2001:db8::1"), seated(&connections, "2001:db8::2"));
        first.state.answered(true);
        assert!(matches!(connections.seat("2001:db8::ffff".parse().unwrap()), Seating::Ended(_)));
        assert!(is_ending(&second), "one /64 is one peer");
        assert!(!is_ending(&first) && !is_ending(&other));
        seated(&connections, "2001:db8:0:1::1");
        let mapped = seated(&connections, "::ffff:192.0.2.1");
        mapped.state.since.store(u64::MAX, Ordering::Relaxed);
        assert!(matches!(connections.seat("192.0.2.1".parse().unwrap()), Seating::Ended(_)), "IPv4 in IPv6 is IPv4");
        assert!(is_ending(&other));
    }
}
