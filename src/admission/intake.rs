//! Bodies of reviews on their way in: what they may hold together, and whose turn it is.
//!
//! Whoever reaches the port may send bodies, so bounds are on what arrives and not on what a head announces. Ordinary bodies
//! share a pool of bytes; when it is full, the body that has been coming in for longest is cut. What is larger takes
//! one of a few places, in turn by peer, so that it is in nobody's way.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use http_body_util::BodyExt as _;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout};

use super::Bounds;

/// How long a body may make no progress; a large one, while another peer waits for its place.
const STALL: Duration = Duration::from_secs(2);
/// How long a large body may make no progress while nobody else waits: its own peer may be busy with others of its bodies.
const LARGE_STALL: Duration = Duration::from_secs(10);
/// How long an ordinary body may take altogether. The API server sends one within milliseconds.
const ORDINARY_TIME: Duration = Duration::from_secs(5);
/// How long a large body may take altogether: as long as the API server waits at most.
const LARGE_TIME: Duration = Duration::from_secs(30);
/// After this time a large body has to come in at [`PACE`] while another peer waits for its place.
const HEAD_START: Duration = Duration::from_millis(500);
/// Bytes per second. Whoever is slower would miss the API server's own time limit of two seconds.
const PACE: u64 = 4 * 1024 * 1024;
/// How often the pace of a large body is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// What is allocated first for a body of unknown length.
const FIRST_ALLOCATION: usize = 64 * 1024;
/// How many peers that had a turn are remembered.
const REMEMBERED: usize = 256;

/// Why a body was not read to its end.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// It has more bytes than the bound, which is given.
    #[error(
        "the review is larger than {0} bytes; raise --max-review-bytes of nodegate if the API server's --max-request-bytes was raised"
    )]
    TooLarge(usize),
    /// Nothing came for too long.
    #[error("the body stalled: no byte came for too long")]
    Stalled,
    /// It came in too slowly.
    #[error("the body came in too slowly")]
    Slow,
    /// It had been coming in for longest when the bytes of unfinished bodies reached their bound.
    #[error("the body was cut: unfinished bodies held too many bytes, and this one had been coming in for longest")]
    Reclaimed,
    /// The connection broke, or the body is malformed.
    #[error("the body cannot be read: {0}")]
    Unreadable(String),
}

impl Refused {
    /// As it is written in metrics.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::TooLarge(_) => "too_large",
            Self::Stalled => "stalled",
            Self::Slow => "slow",
            Self::Reclaimed => "reclaimed",
            Self::Unreadable(_) => "unreadable",
        }
    }
}

/// A whole body, and the room it takes until this is dropped.
pub(super) struct Received {
    pub(super) bytes: Bytes,
    pub(super) room: Room,
}

/// The room that a whole body takes.
pub(super) enum Room {
    /// Some bytes of the pool.
    Ordinary {
        /// Held, never read.
        _bytes: Option<OwnedSemaphorePermit>,
    },
    /// A place of its own.
    Large {
        /// Held, never read.
        _place: LargePlace,
    },
}

/// What all bodies share.
pub(super) struct Intake {
    bounds: Bounds,
    pool: Arc<Semaphore>,
    arrivals: Arc<Arrivals>,
    large: Arc<LargePlaces>,
}

impl Intake {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            pool: Arc::new(Semaphore::new(bounds.ordinary_bytes)),
            arrivals: Arc::default(),
            large: LargePlaces::new(bounds.large),
        }
    }

    /// Reads a body to its end. A large one waits for its turn before it is read.
    ///
    /// # Errors
    /// If it is too large or too slow, or its room is needed for others.
    pub(super) async fn receive(&self, mut body: Body, peer: Option<IpAddr>) -> Result<Received, Refused> {
        let announced = body.size_hint().exact().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        let is_beyond = |bound: usize| announced.is_some_and(|announced| announced > bound);
        if is_beyond(self.bounds.review_bytes) {
            return Err(Refused::TooLarge(self.bounds.review_bytes));
        }
        if is_beyond(self.bounds.ordinary) {
            let place = self.large.turn(peer).await;
            // Memory is taken from the system as it is filled, so an announcement alone takes none.
            let buffer = Vec::with_capacity(announced.unwrap_or_default());
            return self.receive_large(body, buffer, place).await;
        }
        let first = next(&mut body).await?.unwrap_or_default();
        // Nearly every review is here at once: then nothing is copied and nothing is registered.
        if body.is_end_stream() {
            let held = self.charge(first.len(), None).await?;
            return Ok(Received { bytes: first, room: Room::Ordinary { _bytes: Some(held) } });
        }
        self.receive_ordinary(body, first, announced.unwrap_or(FIRST_ALLOCATION), peer).await
    }

    async fn receive_ordinary(
        &self,
        mut body: Body,
        first: Bytes,
        announced: usize,
        peer: Option<IpAddr>,
    ) -> Result<Received, Refused> {
        let arrival = Arrivals::begin(&self.arrivals);
        let deadline = Instant::now() + ORDINARY_TIME;
        let mut buffer = Vec::with_capacity(announced);
        let mut held: Option<OwnedSemaphorePermit> = None;
        let mut piece = first;
        loop {
            if buffer.len() + piece.len() > self.bounds.ordinary {
                // Only a body of unknown length gets here.
                let place = tokio::select! {
                    () = arrival.cut() => return Err(Refused::Reclaimed),
                    place = self.large.turn(peer) => place,
                };
                buffer.extend_from_slice(&piece);
                drop((held, arrival));
                return self.receive_large(body, buffer, place).await;
            }
            let more = self.charge(piece.len(), Some(&arrival)).await?;
            match &mut held {
                Some(held) => held.merge(more),
                None => held = Some(more),
            }
            buffer.extend_from_slice(&piece);
            let next = tokio::select! {
                biased;
                () = arrival.cut() => return Err(Refused::Reclaimed),
                next = next(&mut body) => next?,
            };
            match next {
                None => break,
                Some(_) if Instant::now() >= deadline => return Err(Refused::Slow),
                Some(next) => piece = next,
            }
        }
        Ok(Received { bytes: Bytes::from(buffer), room: Room::Ordinary { _bytes: held } })
    }

    async fn receive_large(&self, mut body: Body, mut buffer: Vec<u8>, place: LargePlace) -> Result<Received, Refused> {
        let begun = Instant::now();
        let mut moved = begun;
        loop {
            let frame = timeout(LOOK, body.frame()).await;
            let now = Instant::now();
            match frame {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    let data = data(frame)?;
                    if buffer.len() + data.len() > self.bounds.review_bytes {
                        return Err(Refused::TooLarge(self.bounds.review_bytes));
                    }
                    buffer.extend_from_slice(&data);
                    moved = now;
                }
                Err(_) if now - moved >= LARGE_STALL => return Err(Refused::Stalled),
                Err(_) if now - moved >= STALL && place.is_wanted_by_others() => return Err(Refused::Stalled),
                Err(_) => {}
            }
            let took = now - begun;
            if took >= LARGE_TIME || is_slow(buffer.len(), took) && place.is_wanted_by_others() {
                return Err(Refused::Slow);
            }
        }
        Ok(Received { bytes: Bytes::from(buffer), room: Room::Large { _place: place } })
    }

    /// Takes bytes of the pool. Where there are none left, bodies that began to come in before `arrival` are cut until
    /// there are, the oldest first.
    async fn charge(&self, bytes: usize, arrival: Option<&Arrival>) -> Result<OwnedSemaphorePermit, Refused> {
        let bytes = u32::try_from(bytes).map_err(|_| Refused::TooLarge(self.bounds.review_bytes))?;
        loop {
            if let Ok(held) = self.pool.clone().try_acquire_many_owned(bytes) {
                if let Some(arrival) = arrival {
                    arrival.entry.bytes.fetch_add(bytes as usize, Ordering::Relaxed);
                }
                return Ok(held);
            }
            self.arrivals.cut_oldest(bytes as usize, arrival.map(|arrival| arrival.number));
            // What is whole leaves room when it is answered.
            let room = timeout(LOOK, self.pool.clone().acquire_many_owned(bytes));
            let room = match arrival {
                None => room.await,
                Some(arrival) => tokio::select! {
                    () = arrival.cut() => return Err(Refused::Reclaimed),
                    room = room => room,
                },
            };
            if let Ok(Ok(held)) = room {
                if let Some(arrival) = arrival {
                    arrival.entry.bytes.fetch_add(bytes as usize, Ordering::Relaxed);
                }
                return Ok(held);
            }
        }
    }
}

/// The next piece of a body; `None` at its end.
async fn next(body: &mut Body) -> Result<Option<Bytes>, Refused> {
    loop {
        let Ok(frame) = timeout(STALL, body.frame()).await else { return Err(Refused::Stalled) };
        let Some(frame) = frame else { return Ok(None) };
        let data = data(frame)?;
        if !data.is_empty() {
            return Ok(Some(data));
        }
    }
}

/// The bytes of a frame; trailers have none.
fn data(frame: Result<hyper::body::Frame<Bytes>, axum::Error>) -> Result<Bytes, Refused> {
    let frame = frame.map_err(|error| Refused::Unreadable(error.to_string()))?;
    Ok(frame.into_data().unwrap_or_default())
}

/// Whether so many bytes are too few for the time they took.
fn is_slow(bytes: usize, took: Duration) -> bool {
    let counted = took.saturating_sub(HEAD_START);
    (bytes as u64) < u64::try_from(counted.as_millis()).unwrap_or(u64::MAX).saturating_mul(PACE / 1000)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change below is whole before anything can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One unfinished body.
#[derive(Default)]
struct Entry {
    bytes: AtomicUsize,
    cut: Notify,
}

/// The unfinished bodies in the order in which they began.
#[derive(Default)]
struct Arrivals {
    numbers: AtomicU64,
    unfinished: Mutex<BTreeMap<u64, Arc<Entry>>>,
}

impl Arrivals {
    fn begin(this: &Arc<Self>) -> Arrival {
        let (number, entry) = (this.numbers.fetch_add(1, Ordering::Relaxed), Arc::<Entry>::default());
        lock(&this.unfinished).insert(number, entry.clone());
        Arrival { number, entry, arrivals: this.clone() }
    }

    /// Cuts bodies that began before `number` (any, when there is none) until they held so many bytes.
    fn cut_oldest(&self, bytes: usize, number: Option<u64>) {
        let mut unfinished = lock(&self.unfinished);
        let mut freed = 0;
        while freed < bytes {
            let Some(oldest) = unfinished.first_entry().filter(|oldest| number.is_none_or(|own| *oldest.key() < own))
            else {
                return;
            };
            let entry = oldest.remove();
            freed += entry.bytes.load(Ordering::Relaxed);
            entry.cut.notify_one();
        }
    }
}

/// A body that is coming in, until this is dropped.
struct Arrival {
    number: u64,
    entry: Arc<Entry>,
    arrivals: Arc<Arrivals>,
}

impl Arrival {
    /// Returns when its room is needed for others.
    async fn cut(&self) {
        self.entry.cut.notified().await;
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        lock(&self.arrivals.unfinished).remove(&self.number);
    }
}

/// Places of large bodies, given in turn by peer: who asks often does not keep those out who ask rarely.
struct LargePlaces(Mutex<Turns>);

struct Turns {
    free: usize,
    waiting: VecDeque<(Option<IpAddr>, oneshot::Sender<LargePlace>)>,
    /// Who had a turn, the last one at the end.
    served: VecDeque<Option<IpAddr>>,
}

impl Turns {
    /// Takes out whose turn it is: of the peers that wait the one that has had none for longest.
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
    fn new(free: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Turns { free, waiting: VecDeque::new(), served: VecDeque::new() })))
    }

    /// Waits for a place.
    async fn turn(self: &Arc<Self>, peer: Option<IpAddr>) -> LargePlace {
        loop {
            let (sender, turn) = oneshot::channel();
            lock(&self.0).waiting.push_back((peer, sender));
            self.give();
            if let Ok(place) = turn.await {
                return place;
            }
        }
    }

    /// Gives free places to those who wait.
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
                    // It stopped waiting. Taken back here, because giving it back would come to this very place again.
                    unwanted.places = None;
                    lock(&self.0).free += 1;
                }
            }
        }
    }
}

/// A place of a large body, until this is dropped.
pub(super) struct LargePlace {
    peer: Option<IpAddr>,
    places: Option<Arc<LargePlaces>>,
}

impl LargePlace {
    fn is_wanted_by_others(&self) -> bool {
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
