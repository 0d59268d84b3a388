//! The whole HTTPS path: reviews per second and CPU per review, beside a static responder on the same
//! stack; the same at the pace of an API server; memory and start time. `cargo bench --bench https`.
//!
//! Server and load run in two processes on the same machine. Compare the ratios of one run.

#![allow(clippy::print_stdout, reason = "a bench prints its results")]
#![allow(clippy::expect_used, reason = "a bench that cannot run ends")]

use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use nodegate_webhook::tls::Directory;

#[path = "support/governance.rs"]
mod governance;
#[path = "support/load.rs"]
mod load;
#[path = "support/process.rs"]
mod process;
#[path = "support/responder.rs"]
mod responder;
#[path = "support/review.rs"]
mod review;

use governance::governance;
use load::{Client, Measured, Used, rss_megabytes};
use process::{Server, free_address, wait_for};

const CONNECTIONS: usize = 16;
const LENGTH: Duration = Duration::from_secs(8);
/// About 290 reviews a second.
const PACED_CONNECTIONS: usize = 3;
const PACE: Duration = Duration::from_millis(10);
const PACED_LENGTH: Duration = Duration::from_secs(15);

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if responder::is_asked_for() {
        return responder::run();
    }
    let directory = tempfile::tempdir().expect("a directory");
    let certs = directory.path().join("certs");
    let names = [("localhost".parse()).expect("a name")];
    Directory::open(&certs, &names, jiff::Timestamp::now()).expect("certificates");
    let policy = directory.path().join("policy.yaml");
    std::fs::write(&policy, process::policy_of(100)).expect("written");

    let body = Bytes::from(review::kubelet_create("bench-node"));
    println!("review {} bytes, {CONNECTIONS} connections, {LENGTH:?} each\n", body.len());
    println!("| server | reviews/s | CPU per review | p50 | p99 | RSS idle → loaded |");
    println!("|---|---|---|---|---|---|");
    let mutate = Load { path: "/mutate", body, shows: "\"patch\"", certs: &certs };
    let floor = measure("static responder, constant patch", |address| responder::start(&certs, address), &mutate);
    let ours = measure("nodegate, 100 rules, 5 match", |address| process::nodegate(&certs, &policy, address), &mutate);
    let validate = Load {
        path: "/validate",
        body: Bytes::from(review::admin_update("bench-node")),
        shows: "\"allowed\":true",
        certs: &certs,
    };
    let mut governed = Vec::new();
    for expressions in [0, 20] {
        let file = directory.path().join(format!("governance-{expressions}.yaml"));
        let spec = serde_json::json!({"governance": governance(100, expressions)});
        let policy = serde_json::json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "bench"}, "spec": spec});
        std::fs::write(&file, policy.to_string()).expect("written");
        let name = format!("nodegate, /validate, 100 governance rules, {expressions} of them CEL");
        governed.push(measure(&name, |address| process::nodegate(&certs, &file, address), &validate));
    }
    println!("\nCPU per review: {:.2} × the static responder", ours.cpu_micros / floor.cpu_micros);
    for (what, governed) in ["without CEL", "with 20 expressions"].iter().zip(&governed) {
        println!("of /validate, {what}: {:.2} ×", governed.cpu_micros / floor.cpu_micros);
    }
    println!("start to ready: {:.0} ms", start_time(&certs, &policy));
    at_pace(&certs, &policy, &mutate);
}

/// The cost of a review at the pace of an API server, between whose calls other programs run.
fn at_pace(certs: &Path, policy: &Path, load: &Load<'_>) {
    println!(
        "\n| server, {PACED_CONNECTIONS} connections, a review on each every {PACE:?} | reviews/s | CPU per review | context switches | p50 |"
    );
    println!("|---|---|---|---|---|");
    let bare = |address: &str| {
        let bare = responder::Listener::Bare { tickets: 2 };
        responder::command(bare, certs, address, responder::ONE_LABEL).spawn().expect("started")
    };
    let floor = pace("hyper alone, constant patch", bare, load);
    let listener = pace("static responder, constant patch", |address| responder::start(certs, address), load);
    let ours = pace("nodegate, 100 rules, 5 match", |address| process::nodegate(certs, policy, address), load);
    println!(
        "\nCPU per review at this pace: {:.2} × hyper alone, {:.2} × the static responder",
        ours / floor,
        ours / listener
    );
}

/// CPU per review, in microseconds.
fn pace(name: &str, start: impl Fn(&str) -> Child, load: &Load<'_>) -> f64 {
    let address = free_address();
    let server = Server(start(&address));
    wait_for(&address);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = Arc::new(Client::new(&address, load.path, &load.certs.join("ca.crt")));
    let run = |length| runtime.block_on(client.clone().paced(PACED_CONNECTIONS, load.body.clone(), PACE, length));
    run(Duration::from_secs(1));
    let before = Used::by(server.0.id());
    let (latencies, refused) = run(PACED_LENGTH);
    let after = Used::by(server.0.id());
    assert_eq!(refused, 0, "{name} answers");
    let reviews = latencies.len() as f64;
    let micros = (after.cpu - before.cpu).as_secs_f64() * 1e6 / reviews;
    println!(
        "| {name} | {:.0} | {micros:.1} µs | {:.2} | {:.0} µs |",
        reviews / PACED_LENGTH.as_secs_f64(),
        (after.context_switches - before.context_switches) as f64 / reviews,
        latencies[latencies.len() / 2].as_secs_f64() * 1e6,
    );
    micros
}

/// What is sent, and what the answer to it contains.
struct Load<'a> {
    path: &'static str,
    body: Bytes,
    shows: &'static str,
    certs: &'a Path,
}

fn measure(name: &str, start: impl Fn(&str) -> Child, load: &Load<'_>) -> Measured {
    let address = free_address();
    let server = Server(start(&address));
    wait_for(&address);
    std::thread::sleep(Duration::from_millis(300));
    let idle = rss_megabytes(server.0.id());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = Client::new(&address, load.path, &load.certs.join("ca.crt"));
    let measured = runtime.block_on(client.load(&server.0, CONNECTIONS, load.body.clone(), LENGTH));
    assert!(String::from_utf8_lossy(&measured.answer).contains(load.shows), "{name} answers");
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
            let server = Server(process::nodegate(certs, policy, &address));
            wait_for(&address);
            let time = start.elapsed().as_secs_f64() * 1e3;
            drop(server);
            time
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
