//! Real handshakes with callers that have to show a client certificate.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response};
use jiff::Timestamp;
use nodegate_webhook::tls::{
    self, Callers, Certificate, Directory, Event, Limits, Observer, Protocol, Refusal, RequestBody,
};
use rcgen::{ExtendedKeyUsagePurpose, SanType};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::authority::{Authority, Identity, client_config};
use super::eventually::{PATIENCE, eventually, for_a_while, holds};

struct Server {
    directory: TempDir,
    address: SocketAddr,
    events: Arc<Mutex<Vec<Event>>>,
    requests: Arc<AtomicUsize>,
    _shutdown: DropGuard,
}

impl Server {
    /// Admits certificates of the CAs in `bundle` with one of `names`.
    async fn start(bundle: &str, names: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("callers.pem");
        std::fs::write(&file, bundle).unwrap();
        let own = ["localhost".parse().unwrap()];
        let (_, pair) = Directory::open(&directory.path().join("certs"), &own, Timestamp::now()).unwrap();
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let callers = Callers::open(&file, names, Timestamp::now()).unwrap();
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let told = events.clone();
        let observer: Observer = Arc::new(move |event| told.lock().unwrap().push(event));
        let shutdown = CancellationToken::new();
        let poll = Duration::from_millis(200);
        tokio::spawn(tls::watch_callers(callers.clone(), poll, Timestamp::now, observer.clone(), shutdown.clone()));
        let requests: Arc<AtomicUsize> = Arc::default();
        let counted = requests.clone();
        let service = service_fn(move |_: Request<RequestBody>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("ok")))) }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let protocol = Protocol::Https(tls::https(Certificate::new(pair), Some(callers)).unwrap());
        tokio::spawn(tls::serve(listener, protocol, service, Limits::default(), observer, shutdown.clone()));
        Self { directory, address, events, requests, _shutdown: shutdown.drop_guard() }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("callers.pem")
    }

    fn client(
        &self,
        identity: Option<&Identity>,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> Arc<ClientConfig> {
        client_config(&std::fs::read(self.directory.path().join("certs/ca.crt")).unwrap(), identity, &[version])
    }

    /// Connects, and asks once.
    async fn call(&self, client: &Arc<ClientConfig>) -> Result<Connection, String> {
        let tcp = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connected = timeout(PATIENCE, TlsConnector::from(client.clone()).connect(name, tcp)).await.unwrap();
        let mut connection = Connection(connected.map_err(|error| error.to_string())?);
        connection.ask().await?;
        Ok(connection)
    }

    fn seen(&self, holds: impl Fn(&Event) -> bool) -> usize {
        self.events.lock().unwrap().iter().filter(|event| holds(event)).count()
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        eventually(what, async || holds(is_so(), || format!("{:?}", self.events.lock().unwrap()))).await;
    }

    /// Replaces the file as a whole and waits until it is taken up.
    async fn trust(&self, bundle: &str) {
        let before = self.seen(|event| matches!(event, Event::CallersReloaded));
        let new = self.directory.path().join("new.pem");
        std::fs::write(&new, bundle).unwrap();
        std::fs::rename(&new, self.file()).unwrap();
        self.until("the file is taken up", || self.seen(|event| matches!(event, Event::CallersReloaded)) > before)
            .await;
    }

    /// Calls, and has to be refused for this reason, told so by this alert, with nothing read of the request.
    async fn refuses(&self, client: &Arc<ClientConfig>, reason: Refusal, alert: &str) {
        let refused = |event: &Event| matches!(event, Event::CallerRefused(refusal) if *refusal == reason);
        let failed = |event: &Event| matches!(event, Event::HandshakeFailed);
        let before = (self.seen(refused), self.seen(failed), self.requests.load(Ordering::SeqCst));
        let error = self.call(client).await.err().unwrap_or_else(|| panic!("not refused: {reason:?}"));
        assert!(error.contains(alert), "{reason:?}: {error}");
        self.until("the refusal is told", || self.seen(refused) > before.0 && self.seen(failed) > before.1).await;
        assert_eq!(self.requests.load(Ordering::SeqCst), before.2, "{reason:?}: the request was read");
    }
}

struct Connection(TlsStream<TcpStream>);

impl Connection {
    async fn ask(&mut self) -> Result<(), String> {
        let asked = async {
            self.0.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\nok") {
                let mut part = [0; 512];
                let read = self.0.read(&mut part).await?;
                if read == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                answer.extend(&part[..read]);
            }
            Ok(())
        };
        timeout(PATIENCE, asked).await.unwrap().map_err(|error: std::io::Error| error.to_string())
    }
}

#[tokio::test]
async fn only_clients_with_a_certificate_of_the_ca_and_an_allowed_name_are_answered() {
    let (ca, other, namesake) = (Authority::new("callers"), Authority::new("others"), Authority::new("callers"));
    let server = Server::start(&ca.pem, &["api-server", "api-server.example"]).await;
    let dns = |name: &str| vec![SanType::DnsName(name.try_into().unwrap())];
    for version in [&TLS12, &TLS13] {
        for allowed in [
            ca.client("api-server"),
            ca.sign("somebody", |params| params.subject_alt_names = dns("api-server.example")),
        ] {
            server.call(&server.client(Some(&allowed), version)).await.unwrap();
        }
        server.refuses(&server.client(None, version), Refusal::NoCertificate, "CertificateRequired").await;
        for (identity, reason, alert) in [
            (other.client("api-server"), Refusal::UnknownCa, "UnknownCA"),
            (namesake.client("api-server"), Refusal::UnknownCa, "UnknownCA"),
            (ca.client("api-server2"), Refusal::NameNotAllowed, "AccessDenied"),
            (ca.client("API-server"), Refusal::NameNotAllowed, "AccessDenied"),
            (
                ca.sign("x", |params| params.subject_alt_names = dns("*.example")),
                Refusal::NameNotAllowed,
                "AccessDenied",
            ),
            (
                ca.sign("api-server", |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
                Refusal::WrongUsage,
                "UnsupportedCertificate",
            ),
            (
                ca.sign("api-server", |params| params.extended_key_usages.clear()),
                Refusal::WrongUsage,
                "UnsupportedCertificate",
            ),
            (
                ca.sign("api-server", |params| params.not_after = rcgen::date_time_ymd(2021, 1, 1)),
                Refusal::NotValidNow,
                "CertificateExpired",
            ),
        ] {
            server.refuses(&server.client(Some(&identity), version), reason, alert).await;
        }
    }
}

#[tokio::test]
async fn a_client_without_the_key_of_its_certificate_is_refused() {
    let ca = Authority::new("callers");
    let server = Server::start(&ca.pem, &[]).await;
    // rustls itself would notice that they do not belong together.
    #[derive(Debug)]
    struct Stolen(Arc<rustls::sign::CertifiedKey>);
    impl rustls::client::ResolvesClientCert for Stolen {
        fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
            Some(self.0.clone())
        }
        fn has_certs(&self) -> bool {
            true
        }
    }
    use rustls::pki_types::pem::PemObject as _;
    let certificate = rustls::pki_types::CertificateDer::from_pem_slice(ca.client("a").certificate.as_bytes()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(ca.client("b").key.as_bytes()).unwrap();
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
    let stolen = Stolen(Arc::new(rustls::sign::CertifiedKey::new(vec![certificate], key)));
    for version in [&TLS12, &TLS13] {
        let mut client = Arc::unwrap_or_clone(server.client(None, version));
        client.client_auth_cert_resolver = Arc::new(Stolen(stolen.0.clone()));
        server.refuses(&Arc::new(client), Refusal::BadCertificate, "DecryptError").await;
    }
}

#[tokio::test]
async fn a_refused_caller_that_is_sending_already_is_told_why() {
    let server = Server::start(&Authority::new("callers").pem, &[]).await;
    let tcp = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    // With TLS 1.3 the client's side of the handshake is done before the server has looked at its certificate.
    let mut client = TlsConnector::from(server.client(None, &TLS13)).connect(name, tcp).await.unwrap();
    let refused = || server.seen(|event| matches!(event, Event::CallerRefused(Refusal::NoCertificate))) == 1;
    server.until("it is refused", refused).await;
    let told = async {
        // To a socket that is closed already the first write is answered by a reset, and the second one fails.
        for _ in 0..2 {
            client.write_all(b"GET / HTTP/1.1\r\n").await?;
            sleep(Duration::from_millis(20)).await;
        }
        client.read(&mut [0; 64]).await
    };
    let error = timeout(PATIENCE, told).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
}

#[tokio::test]
async fn without_names_every_certificate_of_the_ca_is_admitted() {
    let ca = Authority::new("callers");
    let server = Server::start(&ca.pem, &[]).await;
    server.call(&server.client(Some(&ca.client("anybody")), &TLS13)).await.unwrap();
    server.refuses(&server.client(None, &TLS13), Refusal::NoCertificate, "CertificateRequired").await;
}

#[tokio::test]
async fn a_change_of_the_ca_needs_no_restart_and_ends_connections_of_the_old_one() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let server = Server::start(&old.pem, &["api-server"]).await;
    for version in [&TLS12, &TLS13] {
        let (of_old, of_new) = (old.client("api-server"), new.client("api-server"));
        // Each keeps its configuration, and with it the sessions that it may take up again.
        let (of_old, of_new) = (server.client(Some(&of_old), version), server.client(Some(&of_new), version));
        let mut before = server.call(&of_old).await.unwrap();
        server.refuses(&of_new, Refusal::UnknownCa, "UnknownCA").await;

        server.trust(&format!("{}{}", old.pem, new.pem)).await;
        let mut during = server.call(&of_new).await.unwrap();
        server.call(&of_old).await.unwrap();
        before.ask().await.unwrap();

        server.trust(&new.pem).await;
        server.refuses(&of_old, Refusal::UnknownCa, "UnknownCA").await;
        during.ask().await.unwrap();
        server.call(&of_new).await.unwrap();
        let mut rest = Vec::new();
        timeout(PATIENCE, before.0.read_to_end(&mut rest)).await.expect("the old one's connection ends").unwrap();
        assert!(rest.is_empty());
        server.trust(&old.pem).await;
    }
}

#[tokio::test]
async fn a_broken_file_keeps_the_last_good_cas_and_is_reported_once() {
    let (ca, new) = (Authority::new("callers"), Authority::new("new"));
    let server = Server::start(&ca.pem, &[]).await;
    let failures = || server.seen(|event| matches!(event, Event::CallersReloadFailed { .. }));
    let half = &new.pem[..new.pem.len() / 2];
    let leaf = ca.client("leaf").certificate;
    let expired = Authority::valid("expired", (2020, 2021)).pem;
    for (place, broken) in [format!("{}{half}", ca.pem), leaf, expired, String::new()].into_iter().enumerate() {
        std::fs::write(server.file(), &broken).unwrap();
        server.until("the fault is reported", || failures() == place + 1).await;
        server.call(&server.client(Some(&ca.client("x")), &TLS13)).await.unwrap();
    }
    std::fs::remove_file(server.file()).unwrap();
    server.until("the missing file is reported", || failures() == 5).await;
    // Several polls later, of which nothing tells, it is still one report.
    for_a_while(Duration::from_millis(700)).await;
    assert_eq!(failures(), 5);
    server.call(&server.client(Some(&ca.client("x")), &TLS13)).await.unwrap();
    server.trust(&new.pem).await;
    server.call(&server.client(Some(&new.client("x")), &TLS13)).await.unwrap();
}

#[tokio::test]
async fn an_expired_ca_beside_a_good_one_admits_nobody() {
    let (ca, expired) = (Authority::new("callers"), Authority::valid("expired", (2020, 2021)));
    let server = Server::start(&format!("{}{}", expired.pem, ca.pem), &[]).await;
    server.call(&server.client(Some(&ca.client("x")), &TLS13)).await.unwrap();
    server.refuses(&server.client(Some(&expired.client("x")), &TLS13), Refusal::UnknownCa, "UnknownCA").await;
}

#[test]
fn every_reason_of_a_refusal_is_documented() {
    let documented = include_str!("../../docs/guides/mutual-tls.md");
    for reason in Refusal::ALL.map(Refusal::as_str) {
        assert!(documented.contains(&format!("\n| `{reason}` |")), "docs/guides/mutual-tls.md lacks {reason}");
    }
}
