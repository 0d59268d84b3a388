//! One connection, from its handshake to its end.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::tls::server::connections::{RequestBody, Slot};
use crate::tls::server::event::{Event, Observer};
use crate::tls::server::limits::Limits;
use crate::tls::server::protocol::{Https, Protocol};

/// How long a refused caller may take to close its connection.
const LINGER: Duration = Duration::from_secs(1);
/// How much of a head or a body is read at a time. Every connection may use as much memory.
const READ_BYTES: usize = 32 * 1024;

/// Serves one connection to its end. It also ends in favor of others, or when `closing` requests it.
pub(in crate::tls) async fn connection<S, B>(
    stream: TcpStream,
    slot: Slot,
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
            Protocol::Http => http(stream, &slot, service, limits, closing).await,
            Protocol::Https(https) => {
                handshake_and_serve(stream, &slot, https, service, limits, &observer, closing).await;
            }
        }
    };
    tokio::select! {
        () = served => {}
        () = slot.ending().cancelled() => tracing::debug!(peer = %slot.state.peer, "closed in favor of another connection"),
    }
}

async fn handshake_and_serve<S, B>(
    stream: TcpStream,
    slot: &Slot,
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
        Ok(Ok(stream)) => return admitted(stream, slot, &https, service, limits, closing).await,
        Ok(Err((error, stream))) => {
            tracing::debug!(%error, "handshake failed");
            if https.report(&error, peer, observer) {
                tokio::select! { () = linger(stream) => {}, () = closing.cancelled() => {} }
            }
        }
        Err(_) => tracing::debug!("handshake timed out"),
    }
    observer(Event::HandshakeFailed);
}

/// Waits until the caller has read why it is refused. With TLS 1.3 it may already be sending its request, and closing
/// a socket with unread data resets the connection, so that the reason would be lost.
async fn linger(mut stream: TcpStream) {
    let read = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    // The connection is closed whatever the result is.
    drop(timeout(LINGER, read).await);
}

/// Serves one connection until it ends, or until its caller is no longer accepted.
async fn admitted<S, B>(
    stream: TlsStream<TcpStream>,
    slot: &Slot,
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
        tracing::info!("a caller is no longer accepted; closing its connection");
        ending.cancel();
        pending::<()>().await;
    };
    tokio::select! {
        () = http(stream, slot, service, limits, ending.clone()) => {}
        () = withdrawn => {}
    }
}

/// Serves one connection until it ends.
async fn http<T, S, B>(stream: T, slot: &Slot, service: S, limits: Limits, closing: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let state = &slot.state;
    let service = service_fn(|mut request: Request<Incoming>| {
        state.request_received(!request.body().is_end_stream());
        // The address is used to limit what one peer may use.
        request.extensions_mut().insert(SocketAddr::new(state.peer, 0));
        let answering = service.call(request.map(|body| RequestBody::new(body, state.clone())));
        async move {
            let Ok(response) = answering.await;
            let bytes = response.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
            slot.answered(response.status().is_success(), bytes.unwrap_or_default());
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_headers(64)
        .max_buf_size(READ_BYTES)
        .serve_connection(TokioIo::new(Sent { stream, slot }), service);
    let mut connection = pin!(connection);
    let mut unproven = pin!(sleep(limits.first_request));
    let mut unread = pin!(sleep(limits.unread));
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
                    tracing::debug!("the connection had no request in time, or none that succeeded");
                    return;
                }
                unproven.as_mut().reset(tokio::time::Instant::now() + left);
            }
            () = unread.as_mut() => {
                let left = limits.unread.saturating_sub(state.unread_for());
                if left.is_zero() {
                    tracing::debug!("the caller did not read its answer in time");
                    return;
                }
                unread.as_mut().reset(tokio::time::Instant::now() + left);
            }
            () = closing.cancelled(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// A stream that notices when all that was written to it is sent.
struct Sent<'a, T> {
    stream: T,
    slot: &'a Slot,
}

impl<T: AsyncRead + Unpin> AsyncRead for Sent<'_, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Sent<'_, T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.slot.sent();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Reports the end of a connection.
struct Closed<'a>(&'a Observer);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        (self.0)(Event::Closed);
    }
}
