//! A barrier before the API server: it lets some writes of nodes through and holds all others, so that a command is stopped at a
//! known point, however fast it is.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::control_plane::ControlPlane;

pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How many writes were answered, and how many are held.
#[derive(Clone, Copy, Default)]
struct Seen {
    answered: usize,
    held: usize,
}

/// The running barrier. With it, all connections through it end.
pub(crate) struct Barrier {
    /// Where the API server seems to be.
    pub(crate) server: String,
    lets: usize,
    seen: watch::Receiver<Seen>,
    accepting: JoinHandle<()>,
}

impl Drop for Barrier {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Barrier {
    /// A barrier that lets so many writes of nodes through.
    pub(crate) async fn start(plane: &ControlPlane, lets: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let (client, left) = (plane.client(None).await, Arc::new(Semaphore::new(lets)));
        let (telling, seen) = watch::channel(Seen::default());
        let telling = Arc::new(telling);
        let accepting = tokio::spawn(async move {
            // They end with this task.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (client, left, telling) = (client.clone(), left.clone(), telling.clone());
                let service = service_fn(move |request| pass(request, client.clone(), left.clone(), telling.clone()));
                connections.spawn(async move {
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { server, lets, seen, accepting }
    }

    /// Waits until all writes that it lets through were answered, and it holds another one.
    pub(crate) async fn holds(&mut self) {
        let lets = self.lets;
        let held = self.seen.wait_for(|seen| seen.answered == lets && seen.held > 0);
        tokio::time::timeout(Duration::from_secs(60), held).await.expect("a write comes to the barrier").unwrap();
    }
}

async fn pass(
    request: Request<Incoming>,
    client: Client,
    left: Arc<Semaphore>,
    seen: Arc<watch::Sender<Seen>>,
) -> Result<Response<Body>, Failure> {
    if request.method() != Method::PATCH || !request.uri().path().starts_with("/api/v1/nodes/") {
        return passed_on(request, &client).await;
    }
    let Ok(one) = left.try_acquire() else {
        seen.send_modify(|seen| seen.held += 1);
        return std::future::pending().await;
    };
    one.forget();
    let answer = passed_on(request, &client).await;
    seen.send_modify(|seen| seen.answered += 1);
    answer
}

/// The API server's answer to a request.
pub(super) async fn passed_on(request: Request<Incoming>, client: &Client) -> Result<Response<Body>, Failure> {
    let (mut parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    // The client adds its own.
    for own in [HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        parts.headers.remove(own);
    }
    let mut answer = client.send(Request::from_parts(parts, Body::from(body.to_vec()))).await?;
    for own in [CONNECTION, TRANSFER_ENCODING] {
        answer.headers_mut().remove(own);
    }
    Ok(answer)
}
