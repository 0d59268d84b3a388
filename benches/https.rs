//! The whole HTTPS path: reviews per second and CPU per review, beside a static responder on the same
//! stack; memory and start time. `cargo bench --bench https`.
//!
//! Server and load run in two processes on the same machine. Compare the ratios of one run.

#![allow(clippy::print_stdout, reason = "a bench prints its results")]
#![allow(clippy::expect_used, reason = "a bench that cannot run ends")]

use std::convert::Infallible;
use std::net::TcpListener as StdListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use nodegate::tls::{Certificate, Directory, Limits, Protocol, serve, server_config};
use tokio_util::sync::CancellationToken;

#[path = "support/load.rs"]
mod load;
#[path = "support/review.rs"]
mod review;

use load::{Client, Measured, rss_megabytes};

const CONNECTIONS: usize = 16;
const LENGTH: Duration = Duration::from_secs(8);

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--static-responder") {
        return static_responder(Path::new(&arguments[at + 1]), &arguments[at + 2]);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let certs = directory.path().join("certs");
    let names = [("localhost".parse()).expect("a name")];
    Directory::open(&certs, &names, jiff::Timestamp::now()).expect("certificates");
    let policy = directory.path().join("policy.yaml");
    std::fs::write(&policy, policy_of(100)).expect("written");

    let body = Bytes::from(review::kubelet_create("bench-node"));
    println!("review {} bytes, {CONNECTIONS} connections, {LENGTH:?} each\n", body.len());
    println!("| server | reviews/s | CPU per review | p50 | p99 | RSS idle → loaded |");
    println!("|---|---|---|---|---|---|");
    let floor = measure("static responder, constant patch", |address| responder(&certs, address), &certs, &body);
    let ours = measure("nodegate, 100 rules, 5 match", |address| nodegate(&certs, &policy, address), &certs, &body);
    println!("\nCPU per review: {:.2} × the static responder", ours.cpu_micros / floor.cpu_micros);
    println!("start to ready: {:.0} ms", start_time(&certs, &policy));
}

fn policy_of(count: usize) -> String {
    let mut text =
        "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: bench}\nspec:\n  rules:\n".to_owned();
    for (name, condition, given) in [
        ("m0", "names: [bench-node]", "labels: {hardware.tier: gold}"),
        ("m1", "names: [\"bench-*\"]", "labels: {team: platform}"),
        ("m2", "selector: {matchLabels: {pool: gpu}}", "labels: {accelerator: nvidia-gpu}"),
        ("m3", "selector: {matchExpressions: [{key: pool, operator: Exists}]}", "labels: {pooled: \"true\"}"),
        ("m4", "names: [bench-node]", "taints: [{key: dedicated, value: gpu, effect: NoSchedule}]"),
    ] {
        text.push_str(&format!("    - name: {name}\n      match: {{{condition}}}\n      {given}\n"));
    }
    for at in 5..count {
        text.push_str(&format!(
            "    - {{name: r{at}, match: {{names: [\"rack-{at}-*\"]}}, labels: {{label-{at}: x}}}}\n"
        ));
    }
    text
}

fn free_address() -> String {
    let listener = StdListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

/// A process that ends with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn responder(certs: &Path, address: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this bench"));
    command.arg("--static-responder").arg(certs).arg(address).stdout(Stdio::null()).spawn().expect("started")
}

fn nodegate(certs: &Path, policy: &Path, address: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.arg("serve").arg("--policy").arg(policy).arg("--cert-dir").arg(certs).arg("--listen").arg(address);
    command.arg("--probe-listen").arg("127.0.0.1:0").arg("--state-dir").arg(certs.join("none"));
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started")
}

fn wait_for(address: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::net::TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "{address} does not listen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn measure(name: &str, start: impl Fn(&str) -> Child, certs: &Path, body: &Bytes) -> Measured {
    let address = free_address();
    let server = Server(start(&address));
    wait_for(&address);
    std::thread::sleep(Duration::from_millis(300));
    let idle = rss_megabytes(server.0.id());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = Client::new(&address, "/mutate", &certs.join("ca.crt"));
    let measured = runtime.block_on(client.load(&server.0, CONNECTIONS, body.clone(), LENGTH));
    assert!(String::from_utf8_lossy(&measured.answer).contains("\"patch\""), "{name} patches");
    println!(
        "| {name} | {:.0} | {:.1} µs | {:.0} µs | {:.0} µs | {idle:.1} → {:.1} MB |",
        measured.per_second(),
        measured.cpu_micros,
        measured.p50_micros,
        measured.p99_micros,
        rss_megabytes(server.0.id()),
    );
    measured
}

/// Milliseconds from exec to the first accepted connection, the median of eleven starts.
fn start_time(certs: &Path, policy: &Path) -> f64 {
    let mut times: Vec<f64> = (0..11)
        .map(|_| {
            let address = free_address();
            let start = Instant::now();
            let server = Server(nodegate(certs, policy, &address));
            wait_for(&address);
            let time = start.elapsed().as_secs_f64() * 1e3;
            drop(server);
            time
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Answers every request with the same patch: what the stack costs without nodegate.
fn static_responder(certs: &Path, address: &str) {
    const PATCH: &str = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2xhYmVscy90ZWFtIiwidmFsdWUiOiJwbGF0Zm9ybSJ9XQ==";
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (_, pair) = Directory::open(certs, &[], jiff::Timestamp::now()).expect("certificates");
        let protocol = Protocol::Https(server_config(Certificate::new(pair)).expect("TLS"));
        let listener = tokio::net::TcpListener::bind(address).await.expect("bound");
        let service = service_fn(|request: Request<Incoming>| async {
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
