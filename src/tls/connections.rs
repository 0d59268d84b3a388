//! The open connections of one listener: their limits, and which one is closed if a limit is reached.
//!
//! Anyone can connect and wait, so waiting connections must not block others. At the limit, the least valuable
//! connection is closed, and the new one is accepted. Among equal ones, it is one of the peer with the most
//! connections: the API server has a few, and a peer that floods the port only loses its own. Connections of one peer
//! have a separate limit, at which one of its own is closed.

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

/// There is no request: a handshake, the head of a request, or silence.
const WAITING: u8 = 0;
/// The body of a request is being received.
const RECEIVING: u8 = 1;
/// A request is complete and not answered yet.
const ANSWERING: u8 = 2;

/// The result of requesting a slot.
pub(super) enum SlotRequest {
    /// There was a free one.
    Granted(Slot),
    /// This connection was told to close; afterwards there is a free one.
    Evicted(CancellationToken),
    /// Every connection has a request in progress.
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
        // Every update of the table is complete before anything can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a slot, and closes another connection if there is none.
    pub(super) fn slot(self: &Arc<Self>, address: IpAddr) -> SlotRequest {
        let peer = peer(address);
        let mut table = self.lock();
        let crowds = table.of_peer.get(&peer).is_some_and(|open| *open >= self.most_of_peer);
        if crowds || table.open.len() >= self.most {
            return match table.least_worth(crowds.then_some(peer)) {
                Some(state) => {
                    state.ending.cancel();
                    SlotRequest::Evicted(state.gone.clone())
                }
                None => SlotRequest::Full,
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
        SlotRequest::Granted(Slot { number, state, connections: self.clone() })
    }

    /// Closes one connection, because the operating system cannot accept more.
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
    /// The least valuable connection, of this peer if one is given: of those with the lowest [`State::worth`], one of
    /// the peer with the most connections, and of those the one that has been in its stage for longest.
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

/// Identifies the sender by address. For IPv6, a whole /64 is one peer, because a machine can use any address in it.
pub(super) fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

/// The state of one open connection. Requests change it without a lock.
pub(super) struct State {
    pub(super) peer: IpAddr,
    begun: Instant,
    stage: AtomicU8,
    proven: AtomicBool,
    /// Since when it has been in its stage, in milliseconds.
    since: AtomicU64,
    ending: CancellationToken,
    gone: CancellationToken,
}

impl State {
    fn enter(&self, stage: u8) {
        self.since.store(millis(self.begun), Ordering::Relaxed);
        self.stage.store(stage, Ordering::Relaxed);
    }

    /// The head of a request has arrived.
    pub(super) fn request_received(&self, has_body: bool) {
        self.enter(if has_body { RECEIVING } else { ANSWERING });
    }

    /// A request was answered; only valid requests are answered with success.
    pub(super) fn request_answered(&self, success: bool) {
        self.enter(WAITING);
        if success {
            self.proven.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a request was answered with success.
    pub(super) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// How long there has been no request; zero while there is one.
    pub(super) fn waited(&self) -> Duration {
        if self.stage.load(Ordering::Relaxed) != WAITING {
            return Duration::ZERO;
        }
        Duration::from_millis(millis(self.begun).saturating_sub(self.since.load(Ordering::Relaxed)))
    }

    /// How valuable this connection is; `None` if it must not be closed. A connection on which a request succeeded
    /// probably belongs to the API server, and closing it may fail its next call. A handshake and an unfinished body
    /// are equally valuable: otherwise many of one kind could close every new connection of the other kind.
    fn worth(&self) -> Option<u8> {
        match (self.stage.load(Ordering::Relaxed), self.is_proven()) {
            (WAITING | RECEIVING, false) => Some(0),
            (WAITING, true) => Some(1),
            (RECEIVING, true) => Some(2),
            _ => None,
        }
    }
}

/// A slot among the open connections, until this is dropped.
pub(super) struct Slot {
    number: u64,
    pub(super) state: Arc<State>,
    connections: Arc<Connections>,
}

impl Slot {
    /// Cancelled when the connection must be closed.
    pub(super) fn ending(&self) -> &CancellationToken {
        &self.state.ending
    }
}

impl Drop for Slot {
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

/// The body of a request, which tells the listener when it is complete.
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

    fn granted(connections: &Arc<Connections>, peer: &str) -> Slot {
        match connections.slot(peer.parse().unwrap()) {
            SlotRequest::Granted(slot) => slot,
            SlotRequest::Evicted(_) | SlotRequest::Full => panic!("there is room for {peer}"),
        }
    }

    fn is_ending(slot: &Slot) -> bool {
        slot.ending().is_cancelled()
    }

    #[test]
    fn at_the_limit_connections_without_an_answer_are_closed_first_and_those_with_a_request_in_progress_never() {
        let connections = Connections::new(5, 5);
        let slots: Vec<Slot> = (1..=5).map(|at| granted(&connections, &format!("192.0.2.{at}"))).collect();
        let [answering, receiving_proven, waiting_proven, receiving, waiting] = &slots[..] else { panic!() };
        receiving_proven.state.request_answered(true);
        receiving_proven.state.request_received(true);
        waiting_proven.state.request_answered(true);
        receiving.state.request_received(true);
        receiving.state.since.store(1, Ordering::Relaxed);
        waiting.state.since.store(2, Ordering::Relaxed);
        answering.state.request_received(false);
        for (at, worst) in [receiving, waiting, waiting_proven, receiving_proven].into_iter().enumerate() {
            assert!(matches!(connections.slot("192.0.2.9".parse().unwrap()), SlotRequest::Evicted(_)));
            assert!(is_ending(worst), "{at}");
            // As if its task did not react: the next one is found among the others.
            worst.state.request_received(false);
        }
        assert!(matches!(connections.slot("192.0.2.9".parse().unwrap()), SlotRequest::Full));
        assert!(!is_ending(answering));
    }

    #[test]
    fn of_two_equal_connections_the_one_that_waits_longer_is_closed() {
        let connections = Connections::new(2, 2);
        let (first, second) = (granted(&connections, "192.0.2.1"), granted(&connections, "192.0.2.2"));
        first.state.since.store(2, Ordering::Relaxed);
        second.state.since.store(1, Ordering::Relaxed);
        let SlotRequest::Evicted(gone) = connections.slot("192.0.2.3".parse().unwrap()) else { panic!("no room") };
        assert!(is_ending(&second) && !is_ending(&first) && !gone.is_cancelled());
        drop(second);
        assert!(gone.is_cancelled());
        granted(&connections, "192.0.2.3");
    }

    #[test]
    fn a_peer_with_many_connections_loses_its_own_and_not_the_only_one_of_another() {
        let connections = Connections::new(4, 4);
        let alone = granted(&connections, "192.0.2.1");
        let crowd: Vec<Slot> = (0..3).map(|_| granted(&connections, "192.0.2.2")).collect();
        for (at, slot) in crowd.iter().enumerate() {
            slot.state.request_received(true);
            slot.state.since.store(10 + at as u64, Ordering::Relaxed);
        }
        let SlotRequest::Evicted(_) = connections.slot("192.0.2.3".parse().unwrap()) else { panic!("no room") };
        assert!(is_ending(&crowd[0]) && !is_ending(&alone), "although that one has been waiting for longer");
    }

    #[test]
    fn a_peer_at_its_own_limit_loses_one_of_its_own_connections() {
        let connections = Connections::new(100, 2);
        let other = granted(&connections, "192.0.2.1");
        let (first, second) = (granted(&connections, "2001:db8::1"), granted(&connections, "2001:db8::2"));
        first.state.request_answered(true);
        assert!(matches!(connections.slot("2001:db8::ffff".parse().unwrap()), SlotRequest::Evicted(_)));
        assert!(is_ending(&second), "one /64 is one peer");
        assert!(!is_ending(&first) && !is_ending(&other));
        granted(&connections, "2001:db8:0:1::1");
        let mapped = granted(&connections, "::ffff:192.0.2.1");
        mapped.state.since.store(u64::MAX, Ordering::Relaxed);
        assert!(
            matches!(connections.slot("192.0.2.1".parse().unwrap()), SlotRequest::Evicted(_)),
            "IPv4 in IPv6 is IPv4"
        );
        assert!(is_ending(&other));
    }
}
