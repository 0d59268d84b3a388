//! The accept loop: bounded connections, bounded handshakes, graceful drain.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::callers::{Callers, Refusal};
use super::{Event, Observer};

/// Bounds of the accept loop.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections, those in a handshake included. At the bound nothing more is accepted until
    /// one ends; newcomers wait in the kernel's backlog.
    pub connections: usize,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// How long after the handshake the first request's head may take.
    pub first_request: Duration,
    /// How long a connection may be idle between requests (and a later head may take). The API server
    /// keeps idle connections for 90 s; closing first would fail its next call.
    pub idle: Duration,
    /// How long requests in flight may take after shutdown.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            handshake: Duration::from_secs(5),
            first_request: Duration::from_secs(10),
            idle: Duration::from_secs(120),
            drain: Duration::from_secs(15),
        }
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
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let slots = Arc::new(Semaphore::new(limits.connections));
    let connections = TaskTracker::new();
    let (closing, cut) = (CancellationToken::new(), CancellationToken::new());
    let mut backoff = BACKOFF_FIRST;
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let (stream, slot) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                observer(Event::AcceptFailed { error: error.to_string() });
                tracing::warn!(%error, ?backoff, "accept failed");
                tokio::select! { () = sleep(backoff) => {}, () = shutdown.cancelled() => break }
                backoff = (backoff * 2).min(BACKOFF_LAST);
                continue;
            }
        };
        backoff = BACKOFF_FIRST;
        let connection =
            connection(stream, protocol.clone(), service.clone(), limits, observer.clone(), closing.clone());
        let cut = cut.clone();
        connections.spawn(async move {
            let _slot = slot;
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

/// The next connection, once there is a slot for it. Errors of a single connection are passed over.
async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.map_err(io::Error::other)?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Ok((stream, slot)),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

async fn connection<S, B>(
    stream: TcpStream,
    protocol: Protocol,
    service: S,
    limits: Limits,
    observer: Observer,
    closing: CancellationToken,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    observer(Event::Opened);
    let _closed = Closed(&observer);
    let _ = stream.set_nodelay(true);
    let https = match protocol {
        Protocol::Http => return http(stream, service, limits, closing).await,
        Protocol::Https(https) => https,
    };
    let peer = stream.peer_addr().ok();
    let accept = TlsAcceptor::from(https.config.clone()).accept(stream).into_fallible();
    let handshake = tokio::select! {
        handshake = timeout(limits.handshake, accept) => handshake,
        () = closing.cancelled() => return,
    };
    match handshake {
        Ok(Ok(stream)) => return admitted(stream, &https, service, limits, closing).await,
        Ok(Err((error, stream))) => {
            tracing::debug!(%error, "handshake failed");
            if https.tell(&error, peer, &observer) {
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
    https: &Https,
    service: S,
    limits: Limits,
    closing: CancellationToken,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
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
        () = http(stream, service, limits, ending.clone()) => {}
        () = withdrawn => {}
    }
}

/// Serves one connection to its end.
async fn http<T, S, B>(stream: T, service: S, limits: Limits, closing: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let asked = AtomicBool::new(false);
    let service = service_fn(|request| {
        asked.store(true, Ordering::Relaxed);
        service.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_headers(64)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut first_request = pin!(sleep(limits.first_request));
    let (mut waiting, mut draining) = (true, false);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended");
                }
                return;
            }
            () = first_request.as_mut(), if waiting => {
                if !asked.load(Ordering::Relaxed) {
                    tracing::debug!("no request came");
                    return;
                }
                waiting = false;
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
