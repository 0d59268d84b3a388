//! A pod without a kubelet: the chart's volumes as files, the container's arguments, the real server.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tempfile::TempDir;

use super::{NAMESPACE, Objects, items, nodegate, value_sets};

/// A running server; gone when this is dropped.
struct Pod {
    child: Child,
    /// Where the server is, with its real port.
    address: String,
    _root: TempDir,
}

impl Pod {
    fn start(objects: &Objects) -> Self {
        let root = tempfile::tempdir().unwrap();
        objects.mount(root.path());
        let log = root.path().join("log");
        let arguments =
            items(&objects.container()["args"]).iter().map(|argument| here(argument.as_str().unwrap(), root.path()));
        let mut command = nodegate();
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let mut pod = Self { child: command.spawn().unwrap(), address: String::new(), _root: root };
        let deadline = Instant::now() + Duration::from_secs(30);
        while pod.address.is_empty() {
            let text = fs::read_to_string(&log).unwrap();
            let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(ready) = lines.find(|line| line["message"] == "ready") {
                pod.address = ready["address"].as_str().unwrap().to_owned();
            }
            assert!(pod.child.try_wait().unwrap().is_none() && Instant::now() < deadline, "{text}");
            thread::sleep(Duration::from_millis(20));
        }
        pod
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A container's argument for a process on this machine: paths below `root`, a free port of loopback.
fn here(argument: &str, root: &Path) -> String {
    match argument.split_once('=') {
        Some((flag @ ("--listen" | "--probe-listen"), _)) => format!("{flag}=127.0.0.1:0"),
        Some((flag, path)) if path.starts_with('/') => format!("{flag}={}{path}", root.display()),
        _ => argument.to_owned(),
    }
}

/// Posts over TLS, trusting only `ca` for `name`; the answer with its head.
fn post(address: &str, name: &str, ca: &[u8], path: &str, body: &[u8]) -> String {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = rustls::StreamOwned::new(client, TcpStream::connect(address).unwrap());
    stream.sock.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_pod_answers_by_the_charts_policies_under_the_name_and_ca_that_the_api_server_knows() {
    let Some(objects) = Objects::render(&value_sets()["policies"]) else { return };
    let pod = Pod::start(&objects);
    let called = &objects.webhooks("MutatingWebhookConfiguration")[0]["clientConfig"];
    let name = format!("{}.{NAMESPACE}.svc", called["service"]["name"].as_str().unwrap());
    let ca = BASE64.decode(called["caBundle"].as_str().unwrap()).unwrap();
    let review = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/admission-reviews/kubelet-create.json");
    let answer =
        post(&pod.address, &name, &ca, called["service"]["path"].as_str().unwrap(), &fs::read(review).unwrap());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let response = &serde_json::from_str::<Value>(body).unwrap()["response"];
    let patch = String::from_utf8(BASE64.decode(response["patch"].as_str().unwrap()).unwrap()).unwrap();
    assert!(patch.contains("tier"), "{patch}");
}
