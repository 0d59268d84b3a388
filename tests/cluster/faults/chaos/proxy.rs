//! A proxy before the API server that damages watches at random: it cuts, garbles, delays and duplicates their lines.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::super::super::barrier::{Failure, passed_on};
use super::super::super::control_plane::ControlPlane;
use super::super::super::random::Random;

type Chunk = Result<Frame<Bytes>, Failure>;
type Lines = mpsc::Sender<Chunk>;

/// What may come in place of an event. A line that ends too early but ends is not among them: kube's watcher takes it for the
/// end of the stream and says nothing, and no API server sends one.
const GARBLED: [&[u8]; 5] = [
    b"#!\n",
    b"{\"type\": \"MODIFIED\", \"object\": []}\n",
    b"{\"type\": \"MODIFIED\", \"object\": {\"metadata\": 7}}\n",
    b"{\"type\": \"UNHEARD\", \"object\": {}}\n",
    b"\xff\xfe{}\n",
];
/// What an API server says when it ends a watch.
const ENDED: [&[u8]; 2] = [
    b"{\"type\": \"ERROR\", \"object\": {\"kind\": \"Status\", \"apiVersion\": \"v1\", \"metadata\": {}, \"status\": \"Failure\", \"message\": \"too old resource version\", \"reason\": \"Expired\", \"code\": 410}}\n",
    b"{\"type\": \"ERROR\", \"object\": {\"kind\": \"Status\", \"apiVersion\": \"v1\", \"metadata\": {}, \"status\": \"Failure\", \"message\": \"etcdserver: no leader\", \"reason\": \"InternalError\", \"code\": 500}}\n",
];

/// What happens to one line.
enum Harm {
    None,
    /// Half of it arrives, and then the stream ends, or the connection breaks.
    Cut {
        breaks: bool,
    },
    /// Something else comes in its place.
    Garbled(&'static [u8]),
    /// Something else comes in its place, and the stream ends.
    Ended(&'static [u8]),
    Delayed(Duration),
    Duplicated,
    /// A node arrives with labels that cannot be read.
    Unreadable,
}

/// How often lines are harmed.
#[derive(Clone, Copy)]
pub(in super::super) struct Rate {
    /// Of so many lines, eight are harmed.
    pub(in super::super) lines: usize,
    /// Of so many lines, how many are of nodes that cannot be read.
    pub(in super::super) unreadable: usize,
}

/// The harm that was done so far, and what is next.
struct Doer {
    rate: Rate,
    dice: Mutex<Random>,
    done: Mutex<BTreeMap<&'static str, usize>>,
    stopped: AtomicBool,
}

impl Doer {
    fn next(&self) -> Harm {
        if self.stopped.load(Ordering::Relaxed) {
            return Harm::None;
        }
        let mut dice = self.dice.lock().unwrap();
        let (what, harm) = match dice.below(self.rate.lines) {
            0 => ("watch lines cut", Harm::Cut { breaks: dice.below(2) == 0 }),
            1 | 2 => ("watch lines garbled", Harm::Garbled(dice.pick(&GARBLED))),
            3 => ("watches ended by an error", Harm::Ended(dice.pick(&ENDED))),
            4 | 5 => ("watch lines delayed", Harm::Delayed(Duration::from_millis(dice.below(800) as u64))),
            6 | 7 => ("watch lines duplicated", Harm::Duplicated),
            n if (8..8 + self.rate.unreadable).contains(&n) => ("nodes made unreadable", Harm::Unreadable),
            _ => return Harm::None,
        };
        *self.done.lock().unwrap().entry(what).or_default() += 1;
        harm
    }
}

/// The running proxy; it ends when this is dropped.
pub(in super::super) struct Proxy {
    /// Where the API server seems to be.
    pub(in super::super) server: String,
    doer: Arc<Doer>,
    accepting: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Proxy {
    pub(in super::super) async fn start(plane: &ControlPlane, dice: Random, rate: Rate) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let (client, done) = (plane.client(None).await, Mutex::default());
        let doer = Arc::new(Doer { rate, dice: Mutex::new(dice), done, stopped: AtomicBool::new(false) });
        let harming = doer.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, client.clone(), harming.clone()));
            }
        });
        Self { server, doer, accepting }
    }

    /// From now on everything arrives as it was sent. What was done until now.
    pub(in super::super) fn stop(&self) -> BTreeMap<&'static str, usize> {
        self.doer.stopped.store(true, Ordering::Relaxed);
        self.doer.done.lock().unwrap().clone()
    }
}

/// One connection of the replica. It breaks when the API server does not answer.
async fn serve(stream: TcpStream, client: Client, doer: Arc<Doer>) {
    let service = service_fn(move |request| forward(request, client.clone(), doer.clone()));
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn forward(
    request: Request<Incoming>,
    client: Client,
    doer: Arc<Doer>,
) -> Result<Response<UnsyncBoxBody<Bytes, Failure>>, Failure> {
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let (parts, body) = passed_on(request, &client).await?.into_parts();
    if !is_watch || !parts.status.is_success() {
        return Ok(Response::from_parts(parts, body.map_err(Failure::from).boxed_unsync()));
    }
    let (lines, arriving) = mpsc::channel::<Chunk>(16);
    tokio::spawn(pass_on(body, lines, doer));
    let arriving = stream::unfold(arriving, |mut arriving| async { Some((arriving.recv().await?, arriving)) });
    Ok(Response::from_parts(parts, StreamBody::new(arriving).boxed_unsync()))
}

/// Passes a watch on, line by line, until either side ends it.
async fn pass_on(mut body: Body, lines: Lines, doer: Arc<Doer>) {
    let mut read = Vec::new();
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = lines.closed() => return,
        };
        let bytes = match frame {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(error)) => return drop(lines.send(Err(error.into())).await),
            None => return,
        };
        read.extend_from_slice(&bytes);
        while let Some(end) = read.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = read.drain(..=end).collect();
            if pass_line(line, &lines, &doer).await.is_none() {
                return;
            }
        }
    }
}

/// Passes one line on; `None` if it is the last.
async fn pass_line(line: Vec<u8>, lines: &Lines, doer: &Doer) -> Option<()> {
    let send = async |text: &[u8]| lines.send(Ok(Frame::data(Bytes::copy_from_slice(text)))).await.ok();
    match doer.next() {
        Harm::None => send(&line).await,
        Harm::Cut { breaks } => {
            send(&line[..line.len() / 2]).await?;
            if breaks {
                let _ = lines.send(Err("the connection broke".into())).await;
            }
            None
        }
        Harm::Garbled(other) => send(other).await,
        Harm::Ended(other) => {
            send(other).await?;
            None
        }
        Harm::Delayed(length) => {
            tokio::time::sleep(length).await;
            send(&line).await
        }
        Harm::Duplicated => {
            send(&line).await?;
            send(&line).await
        }
        Harm::Unreadable => {
            send(String::from_utf8_lossy(&line).replacen(r#""labels":{"#, r#""labels":7,"was":{"#, 1).as_bytes()).await
        }
    }
}
