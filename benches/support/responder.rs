//! A static responder on nodegate's own stack: what HTTPS and the API server cost without a decision.

use std::convert::Infallible;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use nodegate::tls::{Certificate, Directory, Limits, Protocol, RequestBody, https, serve};
use tokio_util::sync::CancellationToken;

const ARGUMENT: &str = "--static-responder";

/// Starts this very program as a responder with the certificates in `certs`.
pub(crate) fn start(certs: &Path, address: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this bench"));
    command.arg(ARGUMENT).arg(certs).arg(address).stdout(Stdio::null()).spawn().expect("started")
}

/// Whether this process was started by [`start`].
pub(crate) fn is_asked_for() -> bool {
    std::env::args().any(|argument| argument == ARGUMENT)
}

/// Answers every request with the same patch, until killed.
pub(crate) fn run() {
    let arguments: Vec<String> = std::env::args().skip_while(|argument| argument != ARGUMENT).skip(1).collect();
    let [certs, address] = &arguments[..] else { panic!("{ARGUMENT} CERTS ADDRESS") };
    static_responder(Path::new(certs), address);
}

/// Answers every request with the same patch: what the stack costs without nodegate.
fn static_responder(certs: &Path, address: &str) {
    const PATCH: &str = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2xhYmVscy90ZWFtIiwidmFsdWUiOiJwbGF0Zm9ybSJ9XQ==";
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (_, pair) = Directory::open(certs, &[], jiff::Timestamp::now()).expect("certificates");
        let protocol = Protocol::Https(https(Certificate::new(pair), None).expect("TLS"));
        let listener = tokio::net::TcpListener::bind(address).await.expect("bound");
        let service = service_fn(|request: Request<RequestBody>| async {
            let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            // The uid stands early in the review; finding it is all that is read of it.
            let text = String::from_utf8_lossy(&body);
            let uid = text.split("\"uid\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
            let answer = format!(
                r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{{"uid":"{uid}","allowed":true,"patchType":"JSONPatch","patch":"{PATCH}"}}}}"#
            );
            Ok::<_, Infallible>(Response::builder().header(header::CONTENT_TYPE, "application/json").body(Full::new(Bytes::from(answer))).expect("a response"))
        });
        serve(listener, protocol, service, Limits::default(), Arc::new(|_| {}), CancellationToken::new()).await;
    });
}
