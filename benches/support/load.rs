//! A load over HTTPS from this process on another, and what it cost the other.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustls::HandshakeKind;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What one load measured.
pub(crate) struct Measured {
    pub(crate) reviews: usize,
    pub(crate) seconds: f64,
    /// CPU time of the server, user and system, per review.
    pub(crate) cpu_micros: f64,
    pub(crate) p50_micros: f64,
    pub(crate) p99_micros: f64,
    /// The last answer, to show that the right thing was measured.
    pub(crate) answer: Bytes,
}

impl Measured {
    pub(crate) fn per_second(&self) -> f64 {
        self.reviews as f64 / self.seconds
    }
}

/// CPU time a process has used, from `/proc/PID/stat` (fields 14 and 15, in 1/100 s).
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// What the threads of a process have used.
#[allow(dead_code, reason = "not every bench counts it")]
#[derive(Clone, Copy, Default)]
pub(crate) struct Used {
    pub(crate) cpu: Duration,
    pub(crate) context_switches: u64,
}

impl Used {
    /// By all threads of a process that have not ended, from `/proc/PID/task`.
    #[allow(dead_code, reason = "not every bench counts it")]
    pub(crate) fn by(pid: u32) -> Self {
        let mut used = Self::default();
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten() {
            let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let nanoseconds = read("schedstat").split(' ').next().and_then(|number| number.parse().ok());
            used.cpu += Duration::from_nanos(nanoseconds.unwrap_or_default());
            let status = read("status");
            let switches = status.lines().filter(|line| line.contains("ctxt_switches:"));
            used.context_switches +=
                switches.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>();
        }
        used
    }
}

/// Resident memory of a process in MB, from `/proc/PID/status`.
pub(crate) fn rss_megabytes(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kilobytes| kilobytes.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// The answer of [`Client::once`].
#[allow(dead_code, reason = "not every bench asks only once")]
pub(crate) struct Once {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    pub(crate) is_resumed: bool,
}

/// Keep-alive connections to one server.
pub(crate) struct Client {
    connector: TlsConnector,
    address: String,
    path: String,
}

impl Client {
    /// A client that trusts the CA in `ca_file`.
    pub(crate) fn new(address: &str, path: &str, ca_file: &Path) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(ca_file).expect("the CA is there") {
            roots.add(certificate.expect("a certificate")).expect("a CA");
        }
        let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Self { connector: TlsConnector::from(Arc::new(config)), address: address.to_owned(), path: path.to_owned() }
    }

    /// The same client, which does a full handshake for each connection, as the API server does.
    #[allow(dead_code, reason = "not every bench opens more connections")]
    pub(crate) fn without_resumption(mut self) -> Self {
        let mut config = rustls::ClientConfig::clone(self.connector.config());
        config.resumption = rustls::client::Resumption::disabled();
        self.connector = TlsConnector::from(Arc::new(config));
        self
    }

    /// A new connection, from this address if one is given.
    pub(crate) async fn dial(&self, from: Option<IpAddr>) -> io::Result<TlsStream<TcpStream>> {
        let tcp = match from {
            None => TcpStream::connect(&self.address).await?,
            Some(from) => {
                let socket = TcpSocket::new_v4()?;
                socket.bind((from, 0).into())?;
                socket.connect(self.address.parse().map_err(io::Error::other)?).await?
            }
        };
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        self.connector.connect(name, tcp).await
    }

    /// The answer on a connection of its own, and whether that resumed a session; `None` if there is none.
    #[allow(dead_code, reason = "not every bench asks only once")]
    pub(crate) async fn once(&self, body: Bytes) -> Option<Once> {
        let tls = self.dial(None).await.ok()?;
        let is_resumed = tls.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.ok()?;
        let connection = tokio::spawn(connection);
        let response = sender.send_request(self.request(body)).await.ok()?;
        let status = response.status();
        let body = response.into_body().collect().await.ok()?.to_bytes();
        connection.abort();
        Some(Once { status, body, is_resumed })
    }

    /// The patch that answers this review, in base64.
    #[allow(dead_code, reason = "not every bench compares patches")]
    pub(crate) async fn patch(&self, review: Bytes) -> String {
        let answer = self.once(review).await.expect("an answer").body;
        let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
        let patch = answer["response"]["patch"].as_str().unwrap_or_else(|| panic!("no patch: {answer}"));
        assert!(BASE64_STANDARD.decode(patch).is_ok(), "{answer}");
        patch.to_owned()
    }

    async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let tls = self.dial(None).await.expect("connected");
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.expect("HTTP");
        tokio::spawn(connection);
        sender
    }

    async fn ask(&self, sender: &mut SendRequest<Full<Bytes>>, body: Bytes) -> Bytes {
        let (status, body) = self.answer(sender, body).await;
        assert!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
        body
    }

    async fn answer(&self, sender: &mut SendRequest<Full<Bytes>>, body: Bytes) -> (StatusCode, Bytes) {
        let request = self.request(body);
        sender.ready().await.expect("the connection is open");
        let response = sender.send_request(request).await.expect("an answer");
        let status = response.status();
        (status, response.into_body().collect().await.expect("a body").to_bytes())
    }

    /// A request as the API server sends it.
    pub(crate) fn request(&self, body: Bytes) -> Request<Full<Bytes>> {
        let path = &self.path;
        let query = if path.contains('?') { '&' } else { '?' };
        Request::post(format!("{path}{query}timeout=2s"))
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT_ENCODING, "gzip")
            .header(header::USER_AGENT, "kube-apiserver-admission")
            .body(Full::new(body))
            .expect("a request")
    }

    /// Sends `body` over `connections` for `length`, on each one request after the other with `pause` between them.
    /// How long each answer took, sorted, and how many were no answer.
    #[allow(dead_code, reason = "not every bench leaves the server time")]
    pub(crate) async fn paced(
        self: Arc<Self>,
        connections: usize,
        body: Bytes,
        pause: Duration,
        length: Duration,
    ) -> (Vec<Duration>, usize) {
        let start = Instant::now();
        let tasks: Vec<_> = (0..connections)
            .map(|_| {
                let (client, body) = (self.clone(), body.clone());
                tokio::spawn(async move {
                    let (mut sender, mut latencies, mut refused) = (client.connect().await, Vec::new(), 0);
                    while start.elapsed() < length {
                        let sent = Instant::now();
                        let (status, _) = client.answer(&mut sender, body.clone()).await;
                        latencies.push(sent.elapsed());
                        refused += usize::from(!status.is_success());
                        tokio::time::sleep(pause).await;
                    }
                    (latencies, refused)
                })
            })
            .collect();
        let (mut latencies, mut refused) = (Vec::new(), 0);
        for task in tasks {
            let (more, without) = task.await.expect("the load runs to its end");
            latencies.extend(more);
            refused += without;
        }
        latencies.sort_unstable();
        (latencies, refused)
    }

    /// Sends `body` over `connections` for `length`, one request after the other on each.
    pub(crate) async fn load(self, server: &Child, connections: usize, body: Bytes, length: Duration) -> Measured {
        let client = Arc::new(self);
        let mut senders = Vec::new();
        for _ in 0..connections {
            let mut sender = client.connect().await;
            // Warm both ends up before the clock starts.
            for _ in 0..200 {
                client.ask(&mut sender, body.clone()).await;
            }
            senders.push(sender);
        }
        let (cpu, start) = (cpu_seconds(server.id()), Instant::now());
        let tasks: Vec<_> = senders
            .into_iter()
            .map(|mut sender| {
                let (client, body) = (client.clone(), body.clone());
                tokio::spawn(async move {
                    let (mut latencies, mut answer) = (Vec::new(), Bytes::new());
                    while start.elapsed() < length {
                        let sent = Instant::now();
                        answer = client.ask(&mut sender, body.clone()).await;
                        latencies.push(sent.elapsed());
                    }
                    (latencies, answer)
                })
            })
            .collect();
        let (mut latencies, mut answer) = (Vec::new(), Bytes::new());
        for task in tasks {
            let (more, last) = task.await.expect("the load runs to its end");
            latencies.extend(more);
            answer = last;
        }
        let seconds = start.elapsed().as_secs_f64();
        let cpu = cpu_seconds(server.id()) - cpu;
        latencies.sort_unstable();
        let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e6;
        Measured {
            reviews: latencies.len(),
            seconds,
            cpu_micros: cpu / latencies.len() as f64 * 1e6,
            p50_micros: quantile(0.50),
            p99_micros: quantile(0.99),
            answer,
        }
    }
}
