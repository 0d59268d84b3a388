//! Real handshakes: certificates that change under open connections, hostile and slow peers, drain.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use nodegate_webhook::tls::{
    self, Certificate, Directory, Drained, Event, Limits, Observer, Protocol, RequestBody, SubjectName,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::eventually::{PATIENCE, eventually, for_a_while, holds};

/// A path with a large answer…
const LARGE: &str = "/large";
/// …of more bytes than the system buffers for a connection.
const LARGE_BYTES: usize = 7 * 1024 * 1024;

struct Server {
    directory: TempDir,
    address: SocketAddr,
    events: Arc<Mutex<Vec<Event>>>,
    shutdown: CancellationToken,
    served: JoinHandle<Drained>,
    /// How many requests have come.
    requests: watch::Receiver<usize>,
}

fn names() -> Vec<SubjectName> {
    ["localhost", "127.0.0.1", "::1", "nodegate.nodegate.svc"].iter().map(|name| name.parse().unwrap()).collect()
}

impl Server {
    async fn start(limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::start_in(directory, "", limits).await
    }

    /// Serves the certificates of a folder in `directory`; each request is answered after 50 ms.
    async fn start_in(directory: TempDir, folder: &str, limits: Limits) -> Self {
        let (certs, pair) = Directory::open(&directory.path().join(folder), &names(), Timestamp::now()).unwrap();
        let certificate = Certificate::new(pair);
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let told = events.clone();
        let observer: Observer = Arc::new(move |event| told.lock().unwrap().push(event));
        let shutdown = CancellationToken::new();
        let poll = Duration::from_millis(200);
        tokio::spawn(tls::watch(certs, certificate.clone(), poll, Timestamp::now, observer.clone(), shutdown.clone()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (counted, requests) = watch::channel(0);
        let service = service_fn(move |request: Request<RequestBody>| {
            counted.send_modify(|count| *count += 1);
            async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let answer = if request.uri() == LARGE { vec![b'x'; LARGE_BYTES].into() } else { Bytes::from("ok") };
                Ok::<_, Infallible>(Response::new(Full::new(answer)))
            }
        });
        let protocol = Protocol::Https(tls::https(certificate, None).unwrap());
        let served = tokio::spawn(tls::serve(listener, protocol, service, limits, observer, shutdown.clone()));
        Self { directory, address, events, shutdown, served, requests }
    }

    async fn client(
        &self,
        ca: &Path,
        name: &str,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Result<Client, String> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let tcp = TcpStream::connect(self.address).await.map_err(|error| error.to_string())?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let tls = timeout(PATIENCE, TlsConnector::from(Arc::new(config)).connect(name, tcp))
            .await
            .unwrap()
            .map_err(|error| error.to_string())?;
        let leaf = tls.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        let (sender, connection) = handshake(TokioIo::new(tls)).await.unwrap();
        tokio::spawn(connection);
        Ok(Client { sender, leaf })
    }

    async fn connect(&self) -> Client {
        self.client(&self.directory.path().join("ca.crt"), "localhost", rustls::ALL_VERSIONS).await.unwrap()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&[Event]) -> bool) {
        eventually(what, async || {
            let events = self.events.lock().unwrap();
            holds(is_so(&events), || format!("{events:?}"))
        })
        .await;
    }
}

struct Client {
    sender: SendRequest<Empty<Bytes>>,
    leaf: Vec<u8>,
}

impl Client {
    async fn ask(&mut self) -> Result<String, hyper::Error> {
        let request = Request::get("/").header("host", "localhost").body(Empty::new()).unwrap();
        let response = timeout(PATIENCE, self.sender.send_request(request)).await.unwrap()?;
        let body = response.into_body().collect().await?.to_bytes();
        Ok(String::from_utf8(body.to_vec()).unwrap())
    }
}

#[tokio::test]
async fn both_tls_versions_and_every_name_are_served() {
    let server = Server::start(Limits::default()).await;
    let ca = server.directory.path().join("ca.crt");
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for name in ["localhost", "127.0.0.1", "::1", "nodegate.nodegate.svc"] {
            let mut client = server.client(&ca, name, &[version]).await.unwrap();
            assert_eq!(client.ask().await.unwrap(), "ok", "{name}");
        }
    }
    let refused = server.client(&ca, "other.example", rustls::ALL_VERSIONS).await;
    assert!(refused.is_err_and(|error| error.contains("not valid for name")), "a name that is not in the certificate");
}

#[tokio::test]
async fn a_new_certificate_is_served_while_an_open_connection_goes_on() {
    let server = Server::start(Limits::default()).await;
    let mut old = server.connect().await;
    assert_eq!(old.ask().await.unwrap(), "ok");
    let ca = std::fs::read(server.directory.path().join("ca.crt")).unwrap();
    let (directory, _) = Directory::open(server.directory.path(), &names(), Timestamp::now()).unwrap();
    directory.renew(Timestamp::now()).unwrap();
    server
        .until("the renewed certificate is served", |events| {
            events.iter().any(|event| matches!(event, Event::Reloaded { .. }))
        })
        .await;
    let new = server.connect().await;
    assert_ne!(new.leaf, old.leaf);
    assert_eq!(old.ask().await.unwrap(), "ok", "the connection from before");
    assert_eq!(std::fs::read(server.directory.path().join("ca.crt")).unwrap(), ca, "the CA is kept");
}

#[tokio::test]
async fn the_replacement_of_a_mounted_secrets_data_link_is_noticed() {
    let made = tempfile::tempdir().unwrap();
    let mount = tempfile::tempdir().unwrap();
    for version in ["one", "two"] {
        Directory::open(&made.path().join(version), &names(), Timestamp::now()).unwrap();
        let data = mount.path().join(format!("..{version}"));
        std::fs::create_dir(&data).unwrap();
        for file in ["tls.crt", "tls.key"] {
            std::fs::copy(made.path().join(version).join(file), data.join(file)).unwrap();
        }
    }
    // As the kubelet does it: files are links through `..data`, and one rename swaps them all.
    std::os::unix::fs::symlink("..one", mount.path().join("..data")).unwrap();
    for file in ["tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(format!("..data/{file}"), mount.path().join(file)).unwrap();
    }
    let server = Server::start_in(mount, "", Limits::default()).await;
    let before = server.client(&made.path().join("one/ca.crt"), "localhost", rustls::ALL_VERSIONS).await.unwrap();
    for round in 0..2 {
        let (target, ca) = if round == 0 { ("..two", "two/ca.crt") } else { ("..one", "one/ca.crt") };
        std::os::unix::fs::symlink(target, server.directory.path().join("..data_tmp")).unwrap();
        std::fs::rename(server.directory.path().join("..data_tmp"), server.directory.path().join("..data")).unwrap();
        let reloads =
            |events: &[Event]| events.iter().filter(|event| matches!(event, Event::Reloaded { .. })).count() > round;
        server.until("the swap is seen", reloads).await;
        let after = server.client(&made.path().join(ca), "localhost", rustls::ALL_VERSIONS).await.unwrap();
        assert_eq!(after.leaf == before.leaf, round == 1);
    }
}

#[tokio::test]
async fn a_half_written_or_mismatched_pair_keeps_the_last_good_one_and_is_reported_once() {
    let mount = tempfile::tempdir().unwrap();
    let made = tempfile::tempdir().unwrap();
    for folder in ["a", "b"] {
        Directory::open(&made.path().join(folder), &names(), Timestamp::now()).unwrap();
    }
    let copy =
        |folder: &str, file: &str| std::fs::copy(made.path().join(folder).join(file), mount.path().join(file)).unwrap();
    copy("a", "tls.crt");
    copy("a", "tls.key");
    let path = mount.path().to_owned();
    let server = Server::start_in(mount, "", Limits::default()).await;
    let failures = |events: &[Event]| events.iter().filter(|event| matches!(event, Event::ReloadFailed { .. })).count();
    std::fs::copy(made.path().join("b/tls.key"), path.join("tls.key")).unwrap();
    server.until("the mismatch is reported", |events| failures(events) == 1).await;
    std::fs::write(path.join("tls.crt"), "-----BEGIN CERTIFICATE-----\nMIIB").unwrap();
    server.until("the half-written file is reported", |events| failures(events) == 2).await;
    // Several polls later, of which nothing tells, it is still one report a fault, and the first certificate.
    for_a_while(Duration::from_millis(700)).await;
    assert_eq!(failures(&server.events.lock().unwrap()), 2);
    server.client(&made.path().join("a/ca.crt"), "localhost", rustls::ALL_VERSIONS).await.unwrap();
    std::fs::copy(made.path().join("b/tls.crt"), path.join("tls.crt")).unwrap();
    server
        .until("the whole pair is served", |events| events.iter().any(|event| matches!(event, Event::Reloaded { .. })))
        .await;
    server.client(&made.path().join("b/ca.crt"), "localhost", rustls::ALL_VERSIONS).await.unwrap();
}

#[tokio::test]
async fn clients_that_send_garbage_or_stall_do_not_affect_others() {
    let short = Duration::from_millis(300);
    let server = Server::start(Limits { handshake: short, first_request: short, ..Limits::default() }).await;
    let mut garbage = TcpStream::connect(server.address).await.unwrap();
    garbage.write_all(&[0xff; 4096]).await.unwrap();
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    server
        .until("garbage and silence end their handshakes", |events| {
            events.iter().filter(|event| matches!(event, Event::HandshakeFailed)).count() == 2
        })
        .await;
    let mut rest = Vec::new();
    timeout(PATIENCE, silent.read_to_end(&mut rest)).await.expect("the silent peer is cut off").unwrap();
    // A peer that shakes hands and then sends nothing.
    let idle = server.connect().await;
    server
        .until("the idle peer is cut off", |events| {
            let closed = events.iter().filter(|event| matches!(event, Event::Closed)).count();
            closed == events.iter().filter(|event| matches!(event, Event::Opened)).count()
        })
        .await;
    drop(idle);
    assert_eq!(server.connect().await.ask().await.unwrap(), "ok");
}

/// Asks for the large answer and does not read it.
async fn unread(server: &Server) -> Incoming {
    let mut client = server.connect().await;
    let request = Request::builder().uri(LARGE).header("host", "x").body(Empty::<Bytes>::new()).unwrap();
    // The client reads a little of the body and waits for somebody who wants it.
    timeout(PATIENCE, client.sender.send_request(request)).await.unwrap().unwrap().into_body()
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_given_up() {
    let open = |events: &[Event]| {
        let count = |which: fn(&Event) -> bool| events.iter().filter(|event| which(event)).count();
        count(|event| matches!(event, Event::Opened)) - count(|event| matches!(event, Event::Closed))
    };
    // After some time…
    let server = Server::start(Limits { unread: Duration::from_millis(500), ..Limits::default() }).await;
    let first = unread(&server).await;
    server.until("its connection is closed", |events| open(events) == 0).await;
    drop(first);
    assert_eq!(server.connect().await.ask().await.unwrap(), "ok");
    // …or when there are too many, the oldest first.
    let server = Server::start(Limits { unread: PATIENCE * 10, ..Limits::default() }).await;
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(unread(&server).await);
    }
    server.until("all but the last one are closed", |events| open(events) == 1).await;
    let last = answers.pop().unwrap();
    let read = timeout(PATIENCE, last.collect()).await.unwrap().unwrap().to_bytes();
    assert_eq!(read.len(), LARGE_BYTES, "the last one may still be read");
    for given_up in answers {
        assert!(timeout(PATIENCE, given_up.collect()).await.unwrap().is_err(), "it is incomplete");
    }
}

#[tokio::test]
async fn hundreds_of_idle_connections_do_not_block_a_request() {
    let server = Server::start(Limits {
        connections: 200,
        first_request: Duration::from_secs(2),
        handshake: Duration::from_secs(2),
        ..Limits::default()
    })
    .await;
    let mut idle = Vec::new();
    for _ in 0..400 {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    // The bound is reached; the idle ones are cut off and the request gets its turn.
    assert_eq!(server.connect().await.ask().await.unwrap(), "ok");
    let opened = server
        .events
        .lock()
        .unwrap()
        .iter()
        .scan(0_i32, |open, event| {
            *open += match event {
                Event::Opened => 1,
                Event::Closed => -1,
                _ => 0,
            };
            Some(*open)
        })
        .max();
    assert!(opened <= Some(200), "{opened:?} connections at once");
}

#[tokio::test]
async fn a_drain_finishes_requests_in_progress_and_accepts_no_new_connection() {
    let mut server = Server::start(Limits::default()).await;
    let (mut busy, mut idle) = (server.connect().await, server.connect().await);
    assert_eq!(idle.ask().await.unwrap(), "ok");
    server.requests.mark_unchanged();
    let in_flight = tokio::spawn(async move { busy.ask().await });
    timeout(PATIENCE, server.requests.changed()).await.unwrap().unwrap();
    server.shutdown.cancel();
    assert_eq!(in_flight.await.unwrap().unwrap(), "ok");
    let drained = timeout(PATIENCE, server.served).await.unwrap().unwrap();
    assert_eq!(drained, Drained { cut_off: 0 });
    assert!(idle.ask().await.is_err(), "the idle connection is closed");
    assert!(TcpStream::connect(server.address).await.is_err(), "nothing listens");
}
