//! Static responders on nodegate's own TLS and HTTP stack: what HTTPS and the API server cost without a decision.

use std::convert::Infallible;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use nodegate_webhook::tls::{Certificate, Directory, Limits, Protocol, https, serve};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const ARGUMENT: &str = "--static-responder";
/// One label, as a JSON patch in base64.
pub(crate) const ONE_LABEL: &str =
    "W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2xhYmVscy90ZWFtIiwidmFsdWUiOiJwbGF0Zm9ybSJ9XQ==";

/// How a responder accepts connections.
#[derive(Clone, Copy)]
pub(crate) enum Listener {
    /// With nodegate's listener: limits on connections and time.
    Nodegates,
    /// With hyper alone, which issues so many session tickets per handshake, or offers no resumption.
    #[allow(dead_code, reason = "not every bench starts one")]
    Bare { tickets: usize },
}

/// Starts this very program as a responder with the certificates in `certs`.
#[allow(dead_code, reason = "not every bench starts this one")]
pub(crate) fn start(certs: &Path, address: &str) -> Child {
    command(Listener::Nodegates, certs, address, ONE_LABEL).spawn().expect("started")
}

/// This very program as a responder that answers with `patch` (base64), or allows without one if that is empty.
pub(crate) fn command(listener: Listener, certs: &Path, address: &str, patch: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this bench"));
    let listener = match listener {
        Listener::Nodegates => "nodegates".to_owned(),
        Listener::Bare { tickets } => tickets.to_string(),
    };
    command.arg(ARGUMENT).arg(certs).args([address, &listener, patch]).stdout(Stdio::null());
    command
}

/// Whether this process was started by [`command`].
pub(crate) fn is_asked_for() -> bool {
    std::env::args().any(|argument| argument == ARGUMENT)
}

/// Answers every request with the same patch, until killed.
pub(crate) fn run() {
    let arguments: Vec<String> = std::env::args().skip_while(|argument| argument != ARGUMENT).skip(1).collect();
    let [certs, address, listener, patch] = &arguments[..] else { panic!("{ARGUMENT} CERTS ADDRESS LISTENER PATCH") };
    let patch = match patch.as_str() {
        "" => String::new(),
        patch => format!(r#","patchType":"JSONPatch","patch":"{patch}""#),
    };
    let patch: &'static str = patch.leak();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let socket = TcpListener::bind(address).await.expect("bound");
        match listener.parse() {
            Ok(tickets) => bare(socket, Path::new(certs), tickets, patch).await,
            Err(_) => with_nodegates(socket, Path::new(certs), patch).await,
        }
    });
}

async fn with_nodegates(socket: TcpListener, certs: &Path, patch: &'static str) {
    let (_, pair) = Directory::open(certs, &[], jiff::Timestamp::now()).expect("certificates");
    let protocol = Protocol::Https(https(Certificate::new(pair), None).expect("TLS"));
    let service = service_fn(move |request: Request<_>| respond(request, patch));
    serve(socket, protocol, service, Limits::default(), Arc::new(|_| {}), CancellationToken::new()).await;
}

async fn bare(socket: TcpListener, certs: &Path, tickets: usize, patch: &'static str) {
    let chain = CertificateDer::pem_file_iter(certs.join("tls.crt")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(certs.join("tls.key")).expect("a key");
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain.map(|certificate| certificate.expect("a certificate")).collect(), key)
        .expect("TLS");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.send_tls13_tickets = tickets;
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    loop {
        let Ok((stream, _)) = socket.accept().await else { continue };
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new());
            let service = service_fn(move |request: Request<_>| respond(request, patch));
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn respond<B: hyper::body::Body>(
    request: Request<B>,
    patch: &'static str,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    // The uid stands early in the review; finding it is all that is read of it.
    let text = String::from_utf8_lossy(&body);
    let uid = text.split("\"uid\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let answer = format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{{"uid":"{uid}","allowed":true{patch}}}}}"#
    );
    let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
    Ok(response.body(Full::new(Bytes::from(answer))).expect("a response"))
}
