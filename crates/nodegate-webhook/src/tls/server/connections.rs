//! The open connections of one listener: their limits, and which one is closed if a limit is reached.
//!
//! Anyone can connect and wait, so waiting connections must not block others. At the limit, the least valuable
//! connection is closed, and the new one is accepted. Among equal ones, it is one of the peer with the most
//! connections: the API server has a few, and a peer that floods the port only loses its own. Connections of one peer
//! have a separate limit, at which one of its own is closed.
//!
//! Answers that nobody reads stay in memory, so their total is limited as well: at the limit, the connection that has
//! had one for longest is closed.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// There is no request: a handshake, the head of a request, or silence.
const WAITING: u8 = 0;
/// The body of a request is being received.
const RECEIVING: u8 = 1;
/// A request is complete and not answered yet.
const ANSWERING: u8 = 2;

/// Maximum total size of answers that their callers have not read, in bytes. What the operating system has buffered for a
/// connection counts as read.
const UNREAD_MAX: usize = 8 * 1024 * 1024;

/// The result of requesting a slot.
pub(in crate::tls) enum SlotRequest {
    /// There was a free one.
    Granted(Slot),
    /// This connection was told to close; afterwards there is a free one.
    Evicted(CancellationToken),
    /// Every connection has a request in progress.
    Full,
}

/// The open connections.
pub(in crate::tls) struct Connections {
    most: usize,
    most_of_peer: usize,
    begun: Instant,
    /// The total size of unread answers, in bytes.
    unread: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    numbers: u64,
    open: HashMap<u64, Arc<State>>,
    of_peer: HashMap<IpAddr, usize>,
}

impl Connections {
    pub(in crate::tls) fn new(most: usize, most_of_peer: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_of_peer,
            begun: Instant::now(),
            unread: AtomicUsize::new(0),
            table: Mutex::default(),
        })
    }

    /// Requests a slot, and closes another connection if there is none.
    pub(in crate::tls) fn slot(self: &Arc<Self>, address: IpAddr) -> SlotRequest {
        let peer = peer(address);
        let mut table = self.table.lock();
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
            unread: AtomicUsize::new(0),
            unread_since: AtomicU64::new(0),
            ending: CancellationToken::new(),
            gone: CancellationToken::new(),
        });
        table.open.insert(number, state.clone());
        *table.of_peer.entry(peer).or_default() += 1;
        SlotRequest::Granted(Slot { number, state, connections: self.clone() })
    }

    /// Closes one connection, because the operating system cannot accept more.
    pub(in crate::tls) fn end_one(&self) {
        if let Some(state) = self.table.lock().least_worth(None) {
            state.ending.cancel();
        }
    }

    /// Counts an answer until the connection has sent it. If there are too many unread ones, closes the connections
    /// that have had theirs for longest.
    fn answered(&self, state: &State, bytes: usize) {
        if state.unread.fetch_add(bytes, Ordering::Relaxed) == 0 {
            state.unread_since.store(self.now(), Ordering::Relaxed);
        }
        self.unread.fetch_add(bytes, Ordering::Relaxed);
        while self.unread.load(Ordering::Relaxed) > UNREAD_MAX {
            let table = self.table.lock();
            let unread = table.open.values().filter(|state| state.unread.load(Ordering::Relaxed) > 0);
            let Some(oldest) = unread.min_by_key(|state| state.unread_since.load(Ordering::Relaxed)) else { return };
            oldest.ending.cancel();
            self.sent(oldest);
        }
    }

    /// Stops counting the answer of a connection.
    fn sent(&self, state: &State) {
        self.unread.fetch_sub(state.unread.swap(0, Ordering::Relaxed), Ordering::Relaxed);
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
pub(in crate::tls) fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

/// The state of one open connection. Requests change it without a lock.
pub(in crate::tls) struct State {
    pub(in crate::tls) peer: IpAddr,
    begun: Instant,
    stage: AtomicU8,
    proven: AtomicBool,
    /// Since when it has been in its stage, in milliseconds.
    since: AtomicU64,
    /// The total size of the answers that its caller has not read yet, in bytes.
    unread: AtomicUsize,
    /// Since when there have been such answers, in milliseconds.
    unread_since: AtomicU64,
    ending: CancellationToken,
    gone: CancellationToken,
}

impl State {
    fn enter(&self, stage: u8) {
        self.since.store(millis(self.begun), Ordering::Relaxed);
        self.stage.store(stage, Ordering::Relaxed);
    }

    /// The head of a request has arrived.
    pub(in crate::tls) fn request_received(&self, has_body: bool) {
        self.enter(if has_body { RECEIVING } else { ANSWERING });
    }

    /// A request was answered; only valid requests are answered with success.
    pub(in crate::tls) fn request_answered(&self, success: bool) {
        self.enter(WAITING);
        if success {
            self.proven.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a request was answered with success.
    pub(in crate::tls) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// How long there has been no request; zero while there is one.
    pub(in crate::tls) fn waited(&self) -> Duration {
        if self.stage.load(Ordering::Relaxed) != WAITING {
            return Duration::ZERO;
        }
        self.time_since(&self.since)
    }

    /// How long the caller has not read an answer.
    pub(in crate::tls) fn unread_for(&self) -> Duration {
        match self.unread.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            _ => self.time_since(&self.unread_since),
        }
    }

    fn time_since(&self, since: &AtomicU64) -> Duration {
        Duration::from_millis(millis(self.begun).saturating_sub(since.load(Ordering::Relaxed)))
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
pub(in crate::tls) struct Slot {
    number: u64,
    pub(in crate::tls) state: Arc<State>,
    connections: Arc<Connections>,
}

impl Slot {
    /// Cancelled when the connection must be closed.
    pub(in crate::tls) fn ending(&self) -> &CancellationToken {
        &self.state.ending
    }

    /// A request was answered with this many bytes, which the connection has to send.
    pub(in crate::tls) fn answered(&self, success: bool, bytes: usize) {
        self.state.request_answered(success);
        self.connections.answered(&self.state, bytes);
    }

    /// All answers are sent.
    pub(in crate::tls) fn sent(&self) {
        self.connections.sent(&self.state);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.sent();
        let mut table = self.connections.table.lock();
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
    pub(in crate::tls) fn new(body: Incoming, state: Arc<State>) -> Self {
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
mod tests;
