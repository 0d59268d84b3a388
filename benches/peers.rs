//! nodegate beside others that do the same work: four labels and a taint for a node that its kubelet creates.
//! `cargo bench --bench peers`, with a control plane (tests/README.md); `just bench-peers gatekeeper kyverno` builds the others first.
//!
//! All of them run and are registered at the same time, and are chosen by a label of the node. Rounds alternate, so that
//! whatever else the machine does hits all alike. Compare the ratios of one run.

#![allow(clippy::print_stdout, reason = "a bench prints its results")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a bench that cannot run ends")]
#![allow(dead_code, reason = "support is shared with the tests and the other benches")]

use std::path::Path;
use std::time::Duration;

use hyper::body::Bytes;
use nodegate_webhook::tls::Directory;
use tokio::runtime::Runtime;

#[path = "../tests/cluster/control_plane/mod.rs"]
mod control_plane;
#[path = "support/creates.rs"]
mod creates;
#[path = "support/engines.rs"]
mod engines;
#[path = "support/load.rs"]
mod load;
#[path = "support/peer.rs"]
mod peer;
#[path = "support/process.rs"]
mod process;
#[path = "support/responder.rs"]
mod responder;
#[path = "support/review.rs"]
mod review;

use control_plane::exclusive;
use load::{Client, Measured, rss_megabytes};
use peer::{Gives, Peer};
use process::Server;

const CONNECTIONS: usize = 16;
const LENGTH: Duration = Duration::from_secs(5);
/// Starts of each peer; the median counts.
const STARTS: usize = 5;

/// What was measured of a peer without a cluster.
struct Alone {
    peer: Peer,
    server: Server,
    address: String,
    start: Duration,
    idle: f64,
    loaded: f64,
    measured: Measured,
}

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if responder::is_asked_for() {
        return responder::run();
    }
    let directory = tempfile::tempdir().expect("a directory");
    let certs = directory.path().join("certs");
    let names = ["localhost", "127.0.0.1"].map(|name| name.parse().expect("a name"));
    Directory::open(&certs, &names, jiff::Timestamp::now()).expect("certificates");
    let runtime = Runtime::new().expect("a runtime");
    let patch = runtime.block_on(constant_patch(&certs, directory.path()));
    let has_control_plane = control_plane::assets().join("kube-apiserver").is_file();
    let cluster = has_control_plane.then(exclusive);
    let plane = cluster.as_ref().map(|cluster| cluster.plane);
    let (peers, absent) = peer::peers(&certs, directory.path(), &patch, plane);
    let alone: Vec<Alone> = peers.into_iter().map(|peer| measure(&runtime, peer, &certs)).collect();
    let columns = match plane {
        Some(plane) => creates::measure(&runtime, plane, &alone, &certs, directory.path()),
        None => {
            println!("no control plane, so CREATEs are not measured; `just control-plane` builds one");
            Vec::new()
        }
    };
    print(&alone, &columns);
    absent.iter().for_each(|line| println!("{line}"));
}

/// What nodegate answers to the recorded CREATE; the responders answer the same to everything.
async fn constant_patch(certs: &Path, directory: &Path) -> String {
    let command = peer::nodegate(certs, directory, 5);
    let nodegate = Peer { key: "", name: "nodegate", path: "/mutate", gives: Gives::Everything, command };
    let (_server, address, _) = nodegate.start_until_right(&certs.join("ca.crt")).await;
    let client = Client::new(&address, nodegate.path, &certs.join("ca.crt"));
    client.patch(review::kubelet_create("bench-node").into()).await
}

fn measure(runtime: &Runtime, peer: Peer, certs: &Path) -> Alone {
    let ca = certs.join("ca.crt");
    let mut starts: Vec<Duration> = (1..STARTS).map(|_| runtime.block_on(peer.start_until_right(&ca)).2).collect();
    let (server, address, start) = runtime.block_on(peer.start_until_right(&ca));
    starts.push(start);
    starts.sort_unstable();
    std::thread::sleep(Duration::from_millis(500));
    let idle = rss_megabytes(server.0.id());
    let body = Bytes::from(review::kubelet_create("bench-node"));
    let client = Client::new(&address, peer.path, &ca);
    let measured = runtime.block_on(client.load(&server.0, CONNECTIONS, body, LENGTH));
    assert!(peer::gives(&measured.answer) == Some(peer.gives), "{}: {:?}", peer.name, measured.answer);
    let loaded = rss_megabytes(server.0.id());
    Alone { peer, server, address, start: starts[STARTS / 2], idle, loaded, measured }
}

fn print(alone: &[Alone], columns: &[creates::Column]) {
    let clients: Vec<String> = columns.iter().map(|column| format!(" {} |", column.title)).collect();
    println!(
        "\nreview {} bytes; CPU, reviews/s and memory with {CONNECTIONS} connections for {LENGTH:?}\n",
        review::kubelet_create("bench-node").len()
    );
    println!("| |{} CPU per review | reviews/s | RSS idle → loaded | start to right answer |", clients.concat());
    println!("|---|{}---|---|---|---|", "---|".repeat(columns.len()));
    for key in [creates::NONE, creates::NATIVE] {
        if !columns.is_empty() {
            println!("| {} |{} | | | |", creates::name(key), cells(columns, key));
        }
    }
    for Alone { peer, start, idle, loaded, measured, .. } in alone {
        println!(
            "| {} |{} {:.1} µs | {:.0} | {idle:.1} → {loaded:.1} MB | {:.0} ms |",
            peer.name,
            cells(columns, peer.key),
            measured.cpu_micros,
            measured.per_second(),
            start.as_secs_f64() * 1e3,
        );
    }
    let of = |key: &str| alone.iter().find(|alone| alone.peer.key == key).map(|alone| alone.measured.cpu_micros);
    if let (Some(floor), Some(ours)) = (of("hyper"), of("nodegate")) {
        println!("\nCPU per review: nodegate {:.2} × hyper alone", ours / floor);
    }
}

fn cells(columns: &[creates::Column], key: &str) -> String {
    columns.iter().map(|column| format!(" {} |", column.cell(key))).collect()
}
