//! A load that does not wait for answers: reviews are sent at their times, however many are still unanswered, and the
//! latency of each counts from the time at which it was due.
//!
//! An API server limits the requests that it works on, so each caller has a limited number of reviews in flight; what
//! comes while all are, it refuses itself. Connections are open before the load begins, and are kept.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::sync::Semaphore;

use super::load::Client;

/// The API server waits for so long, as in the configuration that nodegate renders.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);
/// Reviews in flight from one API server. Of the 600 requests that one works on by default (`--max-requests-inflight`
/// plus `--max-mutating-requests-inflight`), half are writes of nodes here.
const IN_FLIGHT: usize = 300;
/// API servers, each with an address of its own.
const CALLERS: usize = 3;

/// What became of one review.
enum Outcome {
    Answered,
    /// Answered with another status.
    Status(u16),
    /// The connection was refused or closed.
    Closed,
    /// The caller had too many in flight.
    NotSent,
    TimedOut,
}

/// One review: since when it was due, how late it was sent, and what became of it.
struct Sent {
    late: Duration,
    took: Duration,
    outcome: Outcome,
}

/// What a load came to.
#[derive(Default)]
pub(crate) struct Tally {
    /// Of answered reviews, sorted.
    pub(crate) latencies: Vec<Duration>,
    /// How late reviews were sent, sorted: more than a little means that the load, not the server, was the limit.
    pub(crate) late: Vec<Duration>,
    /// Other statuses, with their number.
    pub(crate) statuses: std::collections::BTreeMap<u16, usize>,
    pub(crate) closed: usize,
    pub(crate) timed_out: usize,
    /// Refused by the callers, which had too many in flight.
    pub(crate) not_sent: usize,
}

impl Tally {
    /// How many came.
    pub(crate) fn offered(&self) -> usize {
        self.late.len()
    }
}

/// One API server.
struct Caller {
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    in_flight: Semaphore,
}

/// The API servers that call one webhook.
pub(crate) struct Callers {
    client: Client,
    body: Bytes,
    callers: Vec<Caller>,
}

impl Callers {
    /// Callers with all their connections.
    pub(crate) async fn connect(client: Client, body: Bytes) -> Arc<Self> {
        let callers = (0..CALLERS).map(|_| Caller { idle: Mutex::default(), in_flight: Semaphore::new(IN_FLIGHT) });
        let new = Arc::new(Self { client: client.without_resumption(), body, callers: callers.collect() });
        for (at, caller) in new.callers.iter().enumerate() {
            let mut open = Vec::new();
            for _ in 0..IN_FLIGHT {
                let sender = new.open(at).await.expect("connected");
                // nodegate soon closes a connection on which nothing was answered.
                assert_eq!(new.answer_on(at, sender).await, Some(200), "the server answers");
                open.extend(new.take(at));
            }
            caller.idle.lock().expect("no panic holds it").extend(open);
        }
        new
    }

    /// Sends `rate` reviews a second for `length`.
    pub(crate) async fn load(self: &Arc<Self>, rate: f64, length: Duration) -> Tally {
        let start = Instant::now();
        let mut reviews = Vec::new();
        while start.elapsed() < length {
            while reviews.len() as f64 <= start.elapsed().as_secs_f64() * rate {
                let due = start + Duration::from_secs_f64(reviews.len() as f64 / rate);
                let (callers, at) = (self.clone(), reviews.len() % CALLERS);
                reviews.push(tokio::spawn(async move { callers.review(at, due).await }));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut tally = Tally::default();
        for review in reviews {
            let Sent { late, took, outcome } = review.await.expect("the load runs to its end");
            tally.late.push(late);
            match outcome {
                Outcome::Answered => tally.latencies.push(took),
                Outcome::Status(code) => *tally.statuses.entry(code).or_default() += 1,
                Outcome::Closed => tally.closed += 1,
                Outcome::TimedOut => tally.timed_out += 1,
                Outcome::NotSent => tally.not_sent += 1,
            }
        }
        tally.latencies.sort_unstable();
        tally.late.sort_unstable();
        tally
    }

    async fn review(&self, caller: usize, due: Instant) -> Sent {
        let late = due.elapsed();
        let Ok(_in_flight) = self.callers[caller].in_flight.try_acquire() else {
            return Sent { late, took: due.elapsed(), outcome: Outcome::NotSent };
        };
        let answer = tokio::time::timeout_at((due + TIMEOUT).into(), self.answer(caller)).await;
        let outcome = match answer {
            Err(_) => Outcome::TimedOut,
            Ok(None) => Outcome::Closed,
            Ok(Some(200)) => Outcome::Answered,
            Ok(Some(code)) => Outcome::Status(code),
        };
        Sent { late, took: due.elapsed(), outcome }
    }

    /// The status of the answer; `None` if the connection ended before.
    async fn answer(&self, caller: usize) -> Option<u16> {
        let sender = match self.take(caller) {
            Some(sender) => sender,
            None => self.open(caller).await?,
        };
        self.answer_on(caller, sender).await
    }

    async fn answer_on(&self, caller: usize, mut sender: SendRequest<Full<Bytes>>) -> Option<u16> {
        sender.ready().await.ok()?;
        let response = sender.send_request(self.client.request(self.body.clone())).await.ok()?;
        let status = response.status().as_u16();
        response.into_body().collect().await.ok()?;
        self.callers[caller].idle.lock().expect("no panic holds it").push(sender);
        Some(status)
    }

    fn take(&self, caller: usize) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.callers[caller].idle.lock().expect("no panic holds it");
        while let Some(sender) = idle.pop() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    async fn open(&self, caller: usize) -> Option<SendRequest<Full<Bytes>>> {
        let from = IpAddr::V4(Ipv4Addr::new(127, 0, 0, u8::try_from(caller + 1).ok()?));
        let (sender, connection) = handshake(TokioIo::new(self.client.dial(Some(from)).await.ok()?)).await.ok()?;
        tokio::spawn(connection);
        Some(sender)
    }
}
