//! The accept loop: bounded connections, bounded handshakes, graceful drain.
//!
//! Every request carries its peer's address as an extension of type [`SocketAddr`]; of IPv6 it is the /64.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::callers::{Callers, Refusal};
use super::connections::{Connections, RequestBody, Seat, Seating, State};
use super::{Event, Observer};

/// Bounds of the accept loop.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections, those in a handshake included. At the bound another one ends for each that comes: one that was
    /// never answered, if there is one, and of those one of the peer that has most connections, the one that has been
    /// waiting for longest. Where every connection has a request that is being answered, the newcomer is refused.
    pub connections: usize,
    /// The same for the connections of one peer: an IPv4 address or an IPv6 /64.
    pub connections_of_peer: usize,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// How long a connection may wait, between its requests too, before a request of it was answered with success.
    pub first_request: Duration,
    /// How long it may wait from then on. The API server keeps idle connections for 90 s; closing first would fail its
    /// next call.
    pub idle: Duration,
    /// How long requests in flight may take after shutdown.
    pub drain: Duration,
}

impl Default for Limits {
    /// For the webhook. The API server opens a connection for each call that waits for its answer; half of the connections
    /// are enough for one that sends as many as are answered at the same time.
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_of_peer: 512,
            handshake: Duration::from_secs(5),
            first_request: Duration::from_secs(5),
            idle: Duration::from_secs(120),
            drain: Duration::from_secs(15),
        }
    }
}

impl Limits {
    /// For the probe address: the kubelet opens a connection for each probe, and Prometheus keeps one.
    pub fn probes() -> Self {
        Self { connections: 128, connections_of_peer: 64, first_request: Duration::from_secs(2), ..Self::default() }
    }
}

/// What is spoken on a listener.
#[derive(Clone)]
pub enum Protocol {
    /// HTTP over TLS.
    Https(Https),
    /// Plain HTTP: the probe address.
    Http,
}

/// How hands are shaken, and with whom.
#[derive(Clone)]
pub struct Https {
    config: Arc<ServerConfig>,
    callers: Option<Arc<Callers>>,
}

impl Https {
    pub(super) fn new(config: Arc<ServerConfig>, callers: Option<Arc<Callers>>) -> Self {
        Self { config, callers }
    }

    /// Returns when the caller at the other end may not call any more; never where anybody may.
    async fn until_withdrawn(&self, chain: Option<&[CertificateDer<'static>]>) {
        match (&self.callers, chain) {
            (Some(callers), Some(chain)) => callers.until_withdrawn(chain).await,
            _ => pending().await,
        }
    }

    /// Tells of a handshake that failed because of the caller's certificate. Returns whether it did.
    fn tell(&self, error: &io::Error, peer: Option<SocketAddr>, observer: &Observer) -> bool {
        let (Some(callers), Some(refusal)) = (&self.callers, Refusal::of(error)) else { return false };
        callers.log(refusal, error, peer);
        observer(Event::CallerRefused(refusal));
        true
    }
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut off because their requests took longer than [`Limits::drain`].
    pub cut_off: usize,
}

/// How long a caller that was refused may take to hang up.
const LINGER: Duration = Duration::from_secs(1);
/// How long to wait for a connection that was told to end. Its task only has to notice.
const END: Duration = Duration::from_secs(1);
/// What of a head or a body is read at a time. Every connection may hold as much.
const READ_BYTES: usize = 32 * 1024;
/// Crowding is logged no more often than this; all of it is counted.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
const BACKOFF_FIRST: Duration = Duration::from_millis(10);
const BACKOFF_LAST: Duration = Duration::from_secs(1);

/// Serves HTTP/1.1 until `shutdown`, then finishes what is in flight.
///
/// A connection that fails costs nobody but its peer; a panicking service costs its connection.
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
    let seats = Connections::new(limits.connections, limits.connections_of_peer);
    let crowding = Crowding::new(observer.clone());
    let connections = TaskTracker::new();
    let (closing, cut) = (CancellationToken::new(), CancellationToken::new());
    let mut backoff = BACKOFF_FIRST;
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener) => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                observer(Event::AcceptFailed { error: error.to_string() });
                tracing::warn!(%error, ?backoff, "accept failed");
                // Most often the process has no file descriptor left.
                seats.end_one();
                tokio::select! { () = sleep(backoff) => {}, () = shutdown.cancelled() => break }
                backoff = (backoff * 2).min(BACKOFF_LAST);
                continue;
            }
        };
        backoff = BACKOFF_FIRST;
        let Some(seat) = seat(&seats, address, &crowding).await else { continue };
        let connection =
            connection(stream, seat, protocol.clone(), service.clone(), limits, observer.clone(), closing.clone());
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

/// The next connection. Errors of a single connection are passed over.
async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        match listener.accept().await {
            Err(error) if is_of_one_connection(&error) => {}
            accepted => return accepted,
        }
    }
}

/// Finds a seat for a newcomer; `None` when it has to go.
async fn seat(seats: &Arc<Connections>, address: SocketAddr, crowding: &Crowding) -> Option<Seat> {
    let deadline = Instant::now() + END;
    loop {
        match seats.seat(address.ip()) {
            Seating::Seated(seat) => return Some(seat),
            Seating::Ended(gone) if timeout(deadline - Instant::now(), gone.cancelled()).await.is_ok() => {
                crowding.tell(Event::ConnectionEnded, address);
            }
            Seating::Ended(_) | Seating::Full => {
                crowding.tell(Event::ConnectionRefused, address);
                return None;
            }
        }
    }
}

/// Tells that there is no room left, in the log now and then.
struct Crowding {
    observer: Observer,
    logged: Mutex<Option<Instant>>,
}

impl Crowding {
    fn new(observer: Observer) -> Self {
        Self { observer, logged: Mutex::default() }
    }

    fn tell(&self, event: Event, newcomer: SocketAddr) {
        (self.observer)(event);
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|last| last.elapsed() >= LOGGED_EVERY) {
            *logged = Some(Instant::now());
            tracing::warn!(
                %newcomer,
                "too many connections: for each that comes, an idle one of the address that has most of them ends; more within a minute are only counted"
            );
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

async fn connection<S, B>(
    stream: TcpStream,
    seat: Seat,
    protocol: Protocol,
    service: S,
    limits: Limits,
    observer: Observer,
    closing: CancellationToken,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    observer(Event::Opened);
    let _closed = Closed(&observer);
    let _ = stream.set_nodelay(true);
    let served = async {
        match protocol {
            Protocol::Http => http(stream, &seat.state, service, limits, closing).await,
            Protocol::Https(https) => {
                shake_hands(stream, &seat.state, https, service, limits, &observer, closing).await;
            }
        }
    };
    tokio::select! {
        () = served => {}
        () = seat.ending().cancelled() => tracing::debug!(peer = %seat.state.peer, "ended to make room"),
    }
}

async fn shake_hands<S, B>(
    stream: TcpStream,
    state: &Arc<State>,
    https: Https,
    service: S,
    limits: Limits,
    observer: &Observer,
    closing: CancellationToken,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let peer = stream.peer_addr().ok();
    let accept = TlsAcceptor::from(https.config.clone()).accept(stream).into_fallible();
    let handshake = tokio::select! {
        handshake = timeout(limits.handshake, accept) => handshake,
        () = closing.cancelled() => return,
    };
    match handshake {
        Ok(Ok(stream)) => return admitted(stream, state, &https, service, limits, closing).await,
        Ok(Err((error, stream))) => {
            tracing::debug!(%error, "handshake failed");
            if https.tell(&error, peer, observer) {
                tokio::select! { () = linger(stream) => {}, () = closing.cancelled() => {} }
            }
        }
        Err(_) => tracing::debug!("handshake took too long"),
    }
    observer(Event::HandshakeFailed);
}

/// Waits until the caller has read why it is refused. With TLS 1.3 it may be sending its request already, and closing
/// a socket with something unread resets the connection: the reason would be lost.
async fn linger(mut stream: TcpStream) {
    let read = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    // Whatever comes of it, the connection ends now.
    drop(timeout(LINGER, read).await);
}

/// Serves one connection to its end, which also comes when its caller may not call any more.
async fn admitted<S, B>(
    stream: TlsStream<TcpStream>,
    state: &Arc<State>,
    https: &Https,
    service: S,
    limits: Limits,
    closing: CancellationToken,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
    let ending = closing.child_token();
    let withdrawn = async {
        https.until_withdrawn(chain.as_deref()).await;
        tracing::info!("a caller is not admitted any more, its connection ends");
        ending.cancel();
        pending::<()>().await;
    };
    tokio::select! {
        () = http(stream, state, service, limits, ending.clone()) => {}
        () = withdrawn => {}
    }
}

/// Serves one connection to its end.
async fn http<T, S, B>(stream: T, state: &Arc<State>, service: S, limits: Limits, closing: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let service = service_fn(|mut request: Request<Incoming>| {
        state.asked(!request.body().is_end_stream());
        // Whoever bounds what one peer may have finds it here.
        request.extensions_mut().insert(SocketAddr::new(state.peer, 0));
        let answering = service.call(request.map(|body| RequestBody::new(body, state.clone())));
        async move {
            let answer = answering.await;
            state.answered(answer.as_ref().is_ok_and(|response| response.status().is_success()));
            answer
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_headers(64)
        .max_buf_size(READ_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut unproven = pin!(sleep(limits.first_request));
    let mut draining = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended");
                }
                return;
            }
            () = unproven.as_mut(), if !state.is_proven() => {
                let left = limits.first_request.saturating_sub(state.waited());
                if left.is_zero() {
                    tracing::debug!("no request came, or none that was answered with success");
                    return;
                }
                unproven.as_mut().reset(tokio::time::Instant::now() + left);
            }
            () = closing.cancelled(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Tells that a connection ended, however it did.
struct Closed<'a>(&'a Observer);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        (self.0)(Event::Closed);
    }
}
