//! The accept loop: limited connections and handshakes, graceful drain.
//!
//! Every request carries its peer's address as an extension of type [`SocketAddr`]; for IPv6 it is the /64.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use hyper::body::Body;
use hyper::service::Service;
use hyper::{Request, Response};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::tls::server::connection::connection;
use crate::tls::server::connections::{Connections, RequestBody, Slot, SlotRequest};
use crate::tls::server::event::{Event, Observer};
use crate::tls::server::limits::Limits;
use crate::tls::server::protocol::Protocol;

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were closed because their requests took longer than [`Limits::drain`].
    pub cut_off: usize,
}

/// How long to wait for a connection that was told to close. Its task only has to notice.
const END: Duration = Duration::from_secs(1);
/// Crowding is logged no more often than this; all of it is counted.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
/// The longest pause after a failure of `accept`.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Pauses after failures of `accept`.
const RETRY: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_millis(10)).with_max_delay(RETRY_MAX).without_max_times();

/// Serves HTTP/1.1 until `shutdown`, then finishes requests in progress.
///
/// A connection that fails affects only its peer; a panic of the service affects only its connection.
pub async fn serve<S, B>(
    listener: TcpListener,
    protocol: Protocol,
    service: S,
    limits: Limits,
    observer: Observer,
    shutdown: CancellationToken,
) -> Drained
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let slots = Connections::new(limits.connections, limits.connections_of_peer);
    let crowding = CrowdingReport::new(observer.clone());
    let connections = TaskTracker::new();
    let (closing, cut) = (CancellationToken::new(), CancellationToken::new());
    let mut pauses = RETRY.build();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener) => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                observer(Event::AcceptFailed { error: error.to_string() });
                let backoff = pauses.next().unwrap_or(RETRY_MAX);
                tracing::warn!(%error, ?backoff, "could not accept a connection; retrying");
                // Usually the process has no file descriptor left.
                slots.end_one();
                tokio::select! { () = sleep(backoff) => {}, () = shutdown.cancelled() => break }
                continue;
            }
        };
        pauses = RETRY.build();
        let Some(slot) = slot(&slots, address, &crowding).await else { continue };
        let connection =
            connection(stream, slot, protocol.clone(), service.clone(), limits, observer.clone(), closing.clone());
        let cut = cut.clone();
        connections.spawn(async move {
            cut.run_until_cancelled(connection).await;
        });
    }
    drop(listener);
    closing.cancel();
    connections.close();
    let in_time = timeout(limits.drain, connections.wait()).await.is_ok();
    let cut_off = if in_time { 0 } else { connections.len() };
    cut.cancel();
    connections.wait().await;
    Drained { cut_off }
}

/// The next connection. Errors of single connections are skipped.
async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        match listener.accept().await {
            Err(error) if is_of_one_connection(&error) => {}
            accepted => return accepted,
        }
    }
}

/// Finds a slot for a new connection; `None` if it must be refused.
async fn slot(slots: &Arc<Connections>, address: SocketAddr, crowding: &CrowdingReport) -> Option<Slot> {
    let deadline = Instant::now() + END;
    loop {
        match slots.slot(address.ip()) {
            SlotRequest::Granted(slot) => return Some(slot),
            SlotRequest::Evicted(gone) if timeout(deadline - Instant::now(), gone.cancelled()).await.is_ok() => {
                crowding.report(Event::ConnectionEnded, address);
            }
            SlotRequest::Evicted(_) | SlotRequest::Full => {
                crowding.report(Event::ConnectionRefused, address);
                return None;
            }
        }
    }
}

/// Reports that the limit is reached, in the log from time to time.
struct CrowdingReport {
    observer: Observer,
    logged: Mutex<Option<Instant>>,
}

impl CrowdingReport {
    fn new(observer: Observer) -> Self {
        Self { observer, logged: Mutex::default() }
    }

    fn report(&self, event: Event, newcomer: SocketAddr) {
        (self.observer)(event);
        let mut logged = self.logged.lock();
        if logged.is_none_or(|last| last.elapsed() >= LOGGED_EVERY) {
            *logged = Some(Instant::now());
            tracing::warn!(
                %newcomer,
                "too many connections: each new one closes an idle one of the address that has the most; further ones within a minute are only counted"
            );
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
