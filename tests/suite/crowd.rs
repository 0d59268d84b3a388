//! Callers that nobody knows, in numbers, at the real `nodegate serve`: connections that wait, probes that do not come to
//! an end, bodies that are never finished. The API server and the kubelet are answered all the same.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use nodegate_webhook::admission::REVIEW_BYTES;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::admission::{CREATE, PATIENT, large_update};
use super::authority::client_config;
use super::serve::Serve;

/// The longest time that an API server waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer than the kubelet waits for a probe (2 s in the chart), and not as long as any server keeps what waits.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);
/// How long those in a crowd wait to be let in.
const CROWD_PATIENCE: Duration = Duration::from_secs(5);
/// What the system keeps of what a caller sends.
const SEND_BYTES: u32 = 16 * 1024;
/// So many handshakes are on their way at once.
const AT_ONCE: usize = 64;

/// Somebody who calls from an address of their own.
#[derive(Clone)]
pub(crate) struct Caller {
    from: IpAddr,
    to: SocketAddr,
    connector: TlsConnector,
}

impl Caller {
    pub(crate) fn new(serve: &Serve, from: [u8; 4]) -> Self {
        let ca = std::fs::read(serve.path("certs/ca.crt")).unwrap();
        let connector = TlsConnector::from(client_config(&ca, None, rustls::ALL_VERSIONS));
        Self { from: from.into(), to: serve.address.parse().unwrap(), connector }
    }

    async fn tcp(&self) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        // What the system keeps for the callers is no memory of the server's, and there are thousands of them.
        socket.set_send_buffer_size(SEND_BYTES)?;
        socket.bind(SocketAddr::new(self.from, 0))?;
        socket.connect(self.to).await
    }

    async fn tls(&self) -> std::io::Result<TlsStream<TcpStream>> {
        self.connector.connect(ServerName::try_from("localhost").unwrap(), self.tcp().await?).await
    }

    /// Sends an ordinary review: the head of its answer.
    pub(crate) async fn review(&self) -> String {
        let asked = self.send("/mutate", CREATE);
        timeout(PATIENCE, asked).await.expect("an ordinary review is answered")
    }

    /// Sends a body: the head of its answer. The server may answer before it has read all of it.
    pub(crate) async fn send(&self, path: &str, body: &str) -> String {
        answer(&mut self.ask(path, body).await).await
    }

    /// Sends a body: the whole answer, whose end is that of its body.
    pub(crate) async fn whole(&self, path: &str, body: &str) -> String {
        let mut stream = self.ask(path, body).await;
        let mut read = Vec::new();
        let mut piece = vec![0; 64 * 1024];
        loop {
            let length = stream.read(&mut piece).await.unwrap_or_default();
            read.extend_from_slice(&piece[..length]);
            let text = String::from_utf8_lossy(&read);
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
            let announced = head.to_ascii_lowercase();
            let announced =
                announced.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if length == 0 || announced.is_some_and(|announced| body.len() >= announced) {
                return text.into_owned();
            }
        }
    }

    /// Sends a body and leaves its answer unread.
    pub(crate) async fn ask(&self, path: &str, body: &str) -> TlsStream<TcpStream> {
        let mut stream = self.tls().await.unwrap();
        stream.write_all(head(&format!("{path}{PATIENT}"), body.len()).as_bytes()).await.unwrap();
        let _ = stream.write_all(body.as_bytes()).await;
        let _ = stream.flush().await;
        stream
    }
}

fn head(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n")
}

/// The beginning of an answer.
async fn answer(stream: &mut TlsStream<TcpStream>) -> String {
    // A write returns when TLS has the bytes; the socket may not have had room for the last of them.
    let _ = stream.flush().await;
    let mut begin = vec![0; 1024];
    let read = stream.read(&mut begin).await.unwrap_or_default();
    String::from_utf8_lossy(&begin[..read]).into_owned()
}

/// Does something for each of `count`, some at a time, and keeps what comes of it.
async fn all<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    count: usize,
    make: impl Fn(usize) -> F,
) -> Vec<T> {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for at in 0..count {
        let (turns, work) = (turns.clone(), make(at));
        tasks.spawn(async move {
            let _turn = turns.acquire_owned().await.unwrap();
            work.await
        });
    }
    tasks.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_connections_beyond_the_limit_block_no_review() {
    let serve = Serve::start(&[], &[], |_| {});
    let callers: Vec<Caller> = (1..=4).map(|at| Caller::new(&serve, [127, 0, 1, at])).collect();
    // Each has asked for something, so that it passes for somebody who may ask again; then it is silent.
    let held = all(1_300, |at| {
        let caller = callers[at % callers.len()].clone();
        async move {
            // Where nobody more is let in, this one stays outside; those inside go on waiting.
            let mut stream = timeout(CROWD_PATIENCE, caller.tls()).await.ok()?.ok()?;
            stream.write_all(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n").await.ok()?;
            answer(&mut stream).await;
            if at % 2 == 0 {
                stream.write_all(b"POST /mutate HTTP/1.1\r\nHost: x\r\n").await.ok()?;
            }
            Some(stream)
        }
    })
    .await;
    let api_server = Caller::new(&serve, [127, 0, 0, 1]);
    assert!(api_server.review().await.starts_with("HTTP/1.1 200"));
    let crowded = join_all((0..20).map(|_| api_server.review())).await;
    assert!(crowded.iter().all(|answer| answer.starts_with("HTTP/1.1 200")), "{crowded:?}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_peer_cannot_use_more_than_its_own_share_of_connections() {
    let serve = Serve::start(&["--max-connections", "64", "--max-connections-per-peer", "16"], &[], |_| {});
    let api_server = Caller::new(&serve, [127, 0, 0, 1]);
    let mut kept = api_server.tls().await.unwrap();
    let mut ask = async || {
        kept.write_all(head("/mutate", CREATE.len()).as_bytes()).await.unwrap();
        kept.write_all(CREATE.as_bytes()).await.unwrap();
        answer(&mut kept).await
    };
    assert!(ask().await.starts_with("HTTP/1.1 200"));
    let crowd = Caller::new(&serve, [127, 0, 1, 1]);
    let held = all(200, |_| {
        let crowd = crowd.clone();
        async move { crowd.tls().await.ok() }
    })
    .await;
    assert!(ask().await.starts_with("HTTP/1.1 200"), "its connection is the one from before");
    let metrics = serve.get("/metrics");
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    assert!(value("nodegate_connections ") <= 17, "{metrics}");
    assert!(value("nodegate_connections_ended_total ") >= 100, "{metrics}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_beyond_the_limit_fail_no_probe() {
    let serve = Serve::start(&[], &[], |_| {});
    let mut held = Vec::new();
    for at in 0..1_100 {
        let mut stream = TcpStream::connect(&serve.probe).await.unwrap();
        if at % 2 == 0 {
            // One that asked keeps its connection for longer.
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        }
        held.push(stream);
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        let mut stream = timeout(PROBE_PATIENCE, TcpStream::connect(&serve.probe)).await.unwrap().unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut begin = [0; 12];
        timeout(PROBE_PATIENCE, stream.read_exact(&mut begin)).await.expect("a probe is answered").unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200", "{path}");
    }
    drop(held);
}

/// Reviews of nodes that their kubelets made as large as etcd takes them, as the API server sends them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_concurrent_reviews_of_maximum_size_are_answered_within_the_memory_of_a_pod() {
    let serve = Serve::start(&["--policy", "DIR/policy.yaml"], &[], |directory| {
        let policy = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: p}\nspec: {protect: {keys: [hardware.tier]}}\n";
        std::fs::write(directory.join("policy.yaml"), policy).unwrap();
    });
    let review =
        large_update(include_str!("../data/admission-reviews/kubelet-status-update.json"), 1_250_000, |review| {
            review["request"]["object"]["metadata"]["labels"]["hardware.tier"] = "gold".into();
        });
    assert!(review.len() > 15_000_000);
    let (review, api_server) = (Arc::new(review), Caller::new(&serve, [127, 0, 0, 1]));
    let large = (0..16).map(|_| {
        let (review, api_server) = (review.clone(), api_server.clone());
        tokio::spawn(async move {
            let mut stream = api_server.tls().await.unwrap();
            stream.write_all(head("/validate?timeout=60s", review.len()).as_bytes()).await.unwrap();
            stream.write_all(review.as_bytes()).await.unwrap();
            answer(&mut stream).await
        })
    });
    let large: Vec<_> = large.collect();
    for _ in 0..20 {
        assert!(api_server.review().await.starts_with("HTTP/1.1 200"), "an ordinary one meanwhile");
    }
    for answer in large {
        let answer = answer.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"allowed\":false"), "{answer}");
    }
    let peak = serve.peak_memory();
    println!("peak memory with sixteen large reviews: {} MiB", peak / 1024 / 1024);
    assert!(peak < 256 * 1024 * 1024, "{peak} bytes");
}

/// Sends as much as a review may have, faster than nothing and slower than any network, again and again.
async fn send_slowly(caller: Caller, begun: tokio::sync::mpsc::Sender<()>) {
    // 4.6 MiB in a second.
    let piece = vec![b' '; 4_823_449 / 20];
    loop {
        let Ok(mut stream) = caller.tls().await else { continue };
        let _ = stream.write_all(head("/mutate?timeout=30s", REVIEW_BYTES).as_bytes()).await;
        for at in 0..REVIEW_BYTES / piece.len() {
            if stream.write_all(&piece).await.is_err() {
                break;
            }
            // More than waits unread, so it has its place.
            if at == 5 {
                let _ = begun.try_send(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_senders_of_large_bodies_do_not_hold_both_places() {
    let serve = Serve::start(&[], &[], |_| {});
    let pod = Caller::new(&serve, [127, 0, 1, 1]);
    let (begun, mut begins) = tokio::sync::mpsc::channel(2);
    let slow: Vec<_> = (0..2).map(|_| tokio::spawn(send_slowly(pod.clone(), begun.clone()))).collect();
    for _ in 0..2 {
        begins.recv().await.unwrap();
    }
    let review = large_update(include_str!("../data/admission-reviews/admin-label-update.json"), 50_000, |_| {});
    assert!(review.len() > 256 * 1024);
    let api_server = Caller::new(&serve, [127, 0, 0, 1]);
    for _ in 0..10 {
        let mut stream = api_server.tls().await.unwrap();
        // The time that the registration gives.
        stream.write_all(head("/validate?timeout=2s", review.len()).as_bytes()).await.unwrap();
        stream.write_all(review.as_bytes()).await.unwrap();
        let answer = answer(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}\n{}", serve.get("/metrics"));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(slow.iter().all(|sender| !sender.is_finished()), "they never gave up");
    let metrics = serve.get("/metrics");
    let cut = metrics.lines().find_map(|line| line.strip_prefix("nodegate_bodies_refused_total{reason=\"slow\"} "));
    assert!(cut.is_some_and(|cut| cut.trim() != "0"), "they are counted: {metrics}");
    slow.iter().for_each(tokio::task::JoinHandle::abort);
}

/// What waits unread in the system counts towards the memory of the pod, and by itself the system lets it grow to megabytes
/// for every connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_its_turn_stays_with_its_sender() {
    let serve = Serve::start(&[], &[], |_| {});
    let caller = Caller::new(&serve, [127, 0, 1, 1]);
    let mut held = Vec::new();
    // One of them gets the slot for large reviews.
    for _ in 0..2 {
        let mut stream = caller.tls().await.unwrap();
        stream.write_all(head("/mutate?timeout=30s", 7_000_000).as_bytes()).await.unwrap();
        // More than waits unread, so it has its place once this is sent.
        stream.write_all(&vec![b' '; 1024 * 1024]).await.unwrap();
        stream.flush().await.unwrap();
        held.push(stream);
    }
    let mut waiting = caller.tls().await.unwrap();
    waiting.write_all(head("/mutate?timeout=30s", 7_000_000).as_bytes()).await.unwrap();
    let (piece, mut sent) = (vec![b' '; 16 * 1024], 0);
    while let Ok(written) = timeout(Duration::from_secs(1), waiting.write(&piece)).await {
        match written {
            Ok(written) => sent += written,
            Err(error) => panic!("{error} instead of a turn: {}", answer(&mut waiting).await),
        }
    }
    assert!((1..512 * 1024).contains(&sent), "{sent} bytes are on their way");
    drop(held);
}

/// The server of before read each of these bodies as far as it came: more than a gigabyte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_unfinished_bodies_stay_within_their_limit_and_block_no_review() {
    let serve = Serve::start(&[], &[], |_| {});
    let callers: Vec<Caller> = (1..=8).map(|at| Caller::new(&serve, [127, 0, 1, at])).collect();
    // This is about bodies: all handshakes at once take a busy machine longer than an API server waits.
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let tasks: Vec<_> = (0..2_400)
        .map(|at| {
            let (caller, turns) = (callers[at % callers.len()].clone(), turns.clone());
            // Every other one is large, and most of it is there; what is not read is not taken either.
            let length = if at % 2 == 0 { 250_000 } else { 7_000_000 };
            tokio::spawn(async move {
                let turn = turns.acquire().await.ok()?;
                let mut stream = timeout(CROWD_PATIENCE, caller.tls()).await.ok()?.ok()?;
                drop(turn);
                stream.write_all(head("/mutate?timeout=60s", length).as_bytes()).await.ok()?;
                let piece = vec![b' '; 16 * 1024];
                for _ in 0..(length - 10_000) / piece.len() {
                    stream.write_all(&piece).await.ok()?;
                }
                std::future::pending::<()>().await;
                Some(())
            })
        })
        .collect();
    let api_server = Caller::new(&serve, [127, 0, 0, 1]);
    for _ in 0..40 {
        assert!(api_server.review().await.starts_with("HTTP/1.1 200"));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let peak = serve.peak_memory();
    println!("peak memory with unfinished bodies: {} MiB", peak / 1024 / 1024);
    assert!(peak < 256 * 1024 * 1024, "{peak} bytes\n{}", serve.get("/metrics"));
    assert!(serve.get("/healthz").starts_with("HTTP/1.1 200"));
    let metrics = serve.get("/metrics");
    let cut = metrics.lines().filter(|line| line.starts_with("nodegate_bodies_refused_total")).count();
    assert!(cut > 0, "they are counted: {metrics}");
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}
