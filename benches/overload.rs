//! More reviews than nodegate can answer, and more connections: `cargo bench --bench overload`.
//!
//! The server has the first core and the load the second one, so that neither takes the other's time. Compare the ratios
//! of one run.

#![allow(clippy::print_stdout, reason = "a bench prints its results")]
#![allow(clippy::expect_used, reason = "a bench that cannot run ends")]
#![allow(dead_code, reason = "support is shared with the other benches")]

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use nodegate_webhook::tls::Directory;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

#[path = "support/governance.rs"]
mod governance;
#[path = "support/load.rs"]
mod load;
#[path = "support/open_loop.rs"]
mod open_loop;
#[path = "support/process.rs"]
mod process;
#[path = "support/responder.rs"]
mod responder;
#[path = "support/review.rs"]
mod review;

use governance::governance;
use load::{Client, cpu_seconds, rss_megabytes};
use open_loop::{Callers, TIMEOUT, Tally};
use process::{Server, free_address, wait_for};
use responder::Listener;

const PINNED: &str = "--pinned";
const SERVER_CORE: &str = "0";
const LOAD_CORE: &str = "1";
/// Connections while it is measured how much the server can answer.
const CONNECTIONS: usize = 64;
const LENGTH: Duration = Duration::from_secs(6);
/// Multiples of what the server can answer.
const LOADS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
/// New connections at the same time, each with one review.
const DIALERS: usize = 16;

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if responder::is_asked_for() {
        return responder::run();
    }
    if !std::env::args().any(|argument| argument == PINNED) {
        assert!(std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1), "this needs two cores");
        let error = Command::new("taskset")
            .args(["-c", LOAD_CORE])
            .arg(std::env::current_exe().expect("this bench"))
            .arg(PINNED)
            .exec();
        panic!("taskset, which is in Debian's package util-linux, does not start: {error}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let certs = directory.path().join("certs");
    Directory::open(&certs, &["localhost".parse().expect("a name")], jiff::Timestamp::now()).expect("certificates");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let work = [rules(directory.path()), expressions(directory.path())];
    println!("three API servers with a timeout of {TIMEOUT:?}; each row {LENGTH:?}\n");
    println!(
        "| server, and what it can answer | offered | answered | p50 | p99 | longest | other answers | closed | timed out | refused by the API servers | CPU of the server | RSS | sent late, p99 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for work in &work {
        overload(&runtime, &certs, work);
    }
    handshakes(&runtime, &certs, &work[0]);
}

/// What the server is to do.
struct Work {
    name: &'static str,
    path: &'static str,
    policy: PathBuf,
    body: Bytes,
}

fn rules(directory: &Path) -> Work {
    let policy = directory.join("rules.yaml");
    std::fs::write(&policy, process::policy_of(100)).expect("written");
    let body = review::kubelet_create("bench-node").into();
    Work { name: "`/mutate`, 100 rules", path: "/mutate", policy, body }
}

fn expressions(directory: &Path) -> Work {
    let policy = directory.join("expressions.yaml");
    let document = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "bench"},
        "spec": {"governance": governance(100, 20)}});
    std::fs::write(&policy, document.to_string()).expect("written");
    let body = review::admin_update("bench-node").into();
    Work { name: "`/validate`, 100 entries, 20 of them CEL", path: "/validate", policy, body }
}

/// A command on the server's core.
fn on_its_core(command: &Command) -> Command {
    let mut pinned = Command::new("taskset");
    pinned.args(["-c", SERVER_CORE]).arg(command.get_program()).args(command.get_args());
    pinned.stdout(Stdio::null()).stderr(Stdio::null());
    pinned
}

fn start(command: &Command, address: &str) -> Server {
    let server = Server(on_its_core(command).spawn().expect("started"));
    wait_for(address);
    std::thread::sleep(Duration::from_millis(500));
    server
}

fn overload(runtime: &Runtime, certs: &Path, work: &Work) {
    let address = free_address();
    let server = start(&process::nodegate_command(certs, &work.policy, &address), &address);
    let client = || Client::new(&address, work.path, &certs.join("ca.crt"));
    for load in LOADS {
        // Measured for each row, because the machine may not be as fast all the time.
        let saturated = runtime.block_on(client().load(&server.0, CONNECTIONS, work.body.clone(), LENGTH / 2));
        let capacity = saturated.per_second();
        let callers = runtime.block_on(Callers::connect(client(), work.body.clone()));
        let (cpu, started) = (cpu_seconds(server.0.id()), Instant::now());
        let tally = runtime.block_on(callers.load(capacity * load, LENGTH));
        let cpu = (cpu_seconds(server.0.id()) - cpu) / started.elapsed().as_secs_f64();
        let name = format!("{}: {capacity:.0}/s", work.name);
        print(&name, load, &tally, cpu, rss_megabytes(server.0.id()));
        // What is left over from one load must not count for the next.
        drop(callers);
        runtime.block_on(async { tokio::time::sleep(Duration::from_secs(2)).await });
    }
}

fn print(name: &str, load: f64, tally: &Tally, cpu: f64, memory: f64) {
    let offered = tally.offered();
    let share = |count: usize| match count {
        0 => "–".to_owned(),
        count => format!("{:.1} %", count as f64 / offered as f64 * 100.0),
    };
    let quantile = |of: &[Duration], share: f64| {
        let at = (of.len().saturating_sub(1) as f64 * share) as usize;
        of.get(at).map_or_else(|| "–".to_owned(), |time| format!("{:.1} ms", time.as_secs_f64() * 1e3))
    };
    let statuses: Vec<String> =
        tally.statuses.iter().map(|(code, count)| format!("{}: {code}", share(*count))).collect();
    println!(
        "| {name} | {load} × | {:.0}/s, {} | {} | {} | {} | {} | {} | {} | {} | {:.0} % | {memory:.1} MB | {} |",
        tally.latencies.len() as f64 / LENGTH.as_secs_f64(),
        share(tally.latencies.len()),
        quantile(&tally.latencies, 0.50),
        quantile(&tally.latencies, 0.99),
        quantile(&tally.latencies, 1.00),
        if statuses.is_empty() { "–".to_owned() } else { statuses.join(", ") },
        share(tally.closed),
        share(tally.timed_out),
        share(tally.not_sent),
        cpu * 100.0,
        quantile(&tally.late, 0.99),
    );
}

fn handshakes(runtime: &Runtime, certs: &Path, work: &Work) {
    println!(
        "\n| server | session | connections/s, one review each | CPU per connection and review | CPU per review on open connections | CPU per handshake |"
    );
    println!("|---|---|---|---|---|---|");
    let bare = |tickets| move |address: &str| responder::command(Listener::Bare { tickets }, certs, address, "");
    let nodegate = |address: &str| process::nodegate_command(certs, &work.policy, address);
    handshake_row(runtime, certs, work, "hyper alone, 2 tickets", &bare(2));
    handshake_row(runtime, certs, work, "hyper alone, no tickets", &bare(0));
    handshake_row(runtime, certs, work, "nodegate", &nodegate);
}

fn handshake_row(runtime: &Runtime, certs: &Path, work: &Work, name: &str, command: &dyn Fn(&str) -> Command) {
    let address = free_address();
    let server = start(&command(&address), &address);
    let client = || Client::new(&address, work.path, &certs.join("ca.crt"));
    let open = runtime.block_on(client().load(&server.0, DIALERS, work.body.clone(), LENGTH)).cpu_micros;
    for (session, client) in [("full handshake each", client().without_resumption()), ("resumed if possible", client())]
    {
        let (cpu, started) = (cpu_seconds(server.0.id()), Instant::now());
        let (connections, resumed) = runtime.block_on(dial(Arc::new(client), &work.body));
        let each = (cpu_seconds(server.0.id()) - cpu) / connections as f64 * 1e6;
        let per_second = connections as f64 / started.elapsed().as_secs_f64();
        let resumed = resumed as f64 / connections as f64 * 100.0;
        println!(
            "| {name} | {session}: {resumed:.0} % resumed | {per_second:.0} | {each:.0} µs | {open:.0} µs | {:.0} µs |",
            each - open
        );
    }
}

/// Opens connections, each for one review: how many, and how many of them resumed a session.
async fn dial(client: Arc<Client>, body: &Bytes) -> (usize, usize) {
    let start = Instant::now();
    let dialers = (0..DIALERS).map(|_| {
        let (client, body) = (client.clone(), body.clone());
        tokio::spawn(async move {
            let (mut connections, mut resumed) = (0, 0);
            while start.elapsed() < LENGTH {
                let answer = client.once(body.clone()).await.expect("an answer");
                assert!(answer.status.is_success(), "{}", answer.status);
                connections += 1;
                resumed += usize::from(answer.is_resumed);
            }
            (connections, resumed)
        })
    });
    let (mut connections, mut resumed) = (0, 0);
    for dialer in dialers.collect::<Vec<_>>() {
        let (more, again) = dialer.await.expect("the load runs to its end");
        connections += more;
        resumed += again;
    }
    (connections, resumed)
}
