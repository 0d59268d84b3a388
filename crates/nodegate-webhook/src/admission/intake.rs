//! Reads the bodies of reviews, with limits on their total size and in fair order.
//!
//! Anyone who can reach the port can send bodies, so limits apply to received bytes and not to announced sizes.
//! Ordinary bodies share a pool of bytes; when it is exhausted, the body that started first is aborted. Larger bodies
//! use one of a few slots, which go to whoever has used them least.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::bounds::Bounds;
use super::large_places::{LargePlace, LargePlaces};
use super::unfinished_bodies::{UnfinishedBodies, UnfinishedBody};

/// How long an ordinary body may make no progress.
const STALL: Duration = Duration::from_secs(2);
/// How long a large body may make no progress: its peer may be busy with other bodies.
const LARGE_STALL: Duration = Duration::from_secs(10);
/// Maximum time for an ordinary body. The API server sends one within milliseconds.
const ORDINARY_TIME: Duration = Duration::from_secs(5);
/// Maximum time for a large body: the longest timeout of the API server.
const LARGE_TIME: Duration = Duration::from_secs(30);
/// Maximum time for a large body while another peer waits for its slot, in all and whatever its size. The API server,
/// which sends one at the speed of its network, waits two seconds for an answer.
const CONTESTED: Duration = Duration::from_millis(500);
/// How often the time of a large body is checked.
const LOOK: Duration = Duration::from_millis(100);
/// Initial allocation for a body of unknown length.
const FIRST_ALLOCATION: usize = 64 * 1024;
/// Why a body was not read completely.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// It exceeds the given maximum size.
    #[error(
        "the review is larger than {0} bytes; if the API server's --max-request-bytes was raised, raise nodegate's --max-review-bytes as well"
    )]
    TooLarge(usize),
    /// No data arrived for too long.
    #[error("the body stalled: no data arrived for too long")]
    Stalled,
    /// It arrived too slowly.
    #[error("the body arrived too slowly")]
    Slow,
    /// It was the oldest unfinished body when the pool was exhausted.
    #[error("the body was aborted: unfinished bodies reached their total limit, and this one was the oldest")]
    Reclaimed,
    /// The connection failed, or the body is malformed.
    #[error("could not read the body: {0}")]
    Unreadable(String),
}

impl Refused {
    /// The label value in metrics.
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

/// A complete body, and the memory it holds until this is dropped.
pub(super) struct Received {
    pub(super) bytes: Bytes,
    pub(super) room: Room,
}

/// The memory that a complete body holds.
pub(super) enum Room {
    /// Bytes of the pool.
    Ordinary {
        /// Only held, never read.
        _bytes: Option<OwnedSemaphorePermit>,
    },
    /// A slot for a large body.
    Large {
        /// The slot.
        place: LargePlace,
    },
}

impl Room {
    /// Whether others have waited for its slot for too long.
    pub(super) fn is_overdue(&self) -> bool {
        match self {
            Self::Ordinary { .. } => false,
            Self::Large { place } => place.is_overdue(),
        }
    }
}

/// The limits that all bodies share.
pub(super) struct Intake {
    bounds: Bounds,
    pool: Arc<Semaphore>,
    bodies: Arc<UnfinishedBodies>,
    large: Arc<LargePlaces>,
}

impl Intake {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            pool: Arc::new(Semaphore::new(bounds.ordinary_bytes)),
            bodies: Arc::default(),
            large: LargePlaces::new(bounds.large, CONTESTED),
        }
    }

    /// Waits for a slot for a review of a policy; `None` if too many wait.
    pub(super) async fn policy_turn(&self, peer: Option<IpAddr>) -> Option<LargePlace> {
        self.large.policy_turn(peer, self.bounds.policies_waiting).await
    }

    /// Reads a body completely. A large one waits for a slot before it is read.
    ///
    /// # Errors
    /// Returns an error if the body is too large or too slow, or was aborted in favor of others.
    pub(super) async fn receive(&self, mut body: Body, peer: Option<IpAddr>) -> Result<Received, Refused> {
        let announced = body.size_hint().exact().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        let is_beyond = |bound: usize| announced.is_some_and(|announced| announced > bound);
        if is_beyond(self.bounds.review_bytes) {
            return Err(Refused::TooLarge(self.bounds.review_bytes));
        }
        if is_beyond(self.bounds.ordinary) {
            let place = self.large.turn(peer).await;
            // Memory is committed as it is filled, so an announced size alone takes none.
            let buffer = Vec::with_capacity(announced.unwrap_or_default());
            return self.receive_large(body, buffer, place).await;
        }
        let first = next(&mut body).await?.unwrap_or_default();
        // Nearly every review has arrived completely by now: then nothing is copied and nothing is registered.
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
        let arrival = UnfinishedBodies::begin(&self.bodies);
        let deadline = Instant::now() + ORDINARY_TIME;
        let mut buffer = Vec::with_capacity(announced);
        let mut held: Option<OwnedSemaphorePermit> = None;
        let mut piece = first;
        loop {
            if buffer.len() + piece.len() > self.bounds.ordinary {
                // Only a body of unknown length reaches this point.
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
        let mut moved = Instant::now();
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
                Err(_) => {}
            }
            if place.held() >= LARGE_TIME || place.is_overdue() {
                return Err(Refused::Slow);
            }
        }
        Ok(Received { bytes: Bytes::from(buffer), room: Room::Large { place } })
    }

    /// Takes bytes from the pool. If it is exhausted, aborts bodies that started before `arrival`, oldest first,
    /// until there are enough.
    async fn charge(&self, bytes: usize, arrival: Option<&UnfinishedBody>) -> Result<OwnedSemaphorePermit, Refused> {
        let bytes = u32::try_from(bytes).map_err(|_| Refused::TooLarge(self.bounds.review_bytes))?;
        loop {
            if let Ok(held) = self.pool.clone().try_acquire_many_owned(bytes) {
                if let Some(arrival) = arrival {
                    arrival.holds(bytes as usize);
                }
                return Ok(held);
            }
            self.bodies.cut_oldest(bytes as usize, arrival.map(UnfinishedBody::number));
            // Complete bodies free their bytes when they are answered.
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
                    arrival.holds(bytes as usize);
                }
                return Ok(held);
            }
        }
    }
}

/// The next chunk of a body; `None` at its end.
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
