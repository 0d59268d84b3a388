//! Ordinary reviews while others evaluate the most expensive expressions that are permitted, beside the same without:
//! `cargo bench --bench hostile`.
//!
//! Server and load run in two processes on the same machine, and the hostile reviews take all the time they can get.

#![allow(clippy::print_stdout, reason = "a bench prints its results")]
#![allow(clippy::expect_used, reason = "a bench that cannot run ends")]
#![allow(dead_code, reason = "support is shared with the other benches")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use nodegate_webhook::tls::Directory;
use serde_json::{Value, json};

#[path = "support/load.rs"]
mod load;
#[path = "support/process.rs"]
mod process;
#[path = "support/review.rs"]
mod review;

use load::Client;
use process::{Server, free_address, wait_for};

/// Connections with ordinary reviews, and the pause between two on one of them: some 400 a second.
const CONNECTIONS: usize = 8;
const PAUSE: Duration = Duration::from_millis(20);
const LENGTH: Duration = Duration::from_secs(15);
/// How many send hostile reviews, each the next as soon as the last is answered.
const CALLERS: [usize; 3] = [0, 1, 8];

/// Of all that was tried (`cargo test --lib costly -- --nocapture`) this takes longest for its steps: a pattern that no
/// automaton is small enough for, on text without order, until the steps run out.
const EXPRESSION: &str = "lists.range(9).all(x, !node.metadata.annotations.random.matches('(a|b)*a(a|b){100}c'))";
/// So many of them use up the steps of a review.
const EXPRESSIONS: usize = 8;

fn policy() -> String {
    let mut text = process::policy_of(100);
    for at in 0..EXPRESSIONS {
        let condition = format!("names: [hostile-node], expression: \"{EXPRESSION}\"");
        text.push_str(&format!("    - {{name: h{at}, match: {{{condition}}}, labels: {{hostile-{at}: x}}}}\n"));
    }
    text
}

/// A kubelet's CREATE of the node that the hostile expressions are about.
fn hostile_review() -> Bytes {
    let mut review: Value = serde_json::from_slice(&review::kubelet_create("hostile-node")).expect("JSON");
    // Text of two letters without order, from a linear congruential generator.
    let random = std::iter::successors(Some(1_u32), |x| Some(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)));
    let random: String = random.map(|x| if x >> 31 == 0 { 'a' } else { 'b' }).take(10_000).collect();
    review["request"]["object"]["metadata"]["annotations"]["random"] = json!(random);
    Bytes::from(serde_json::to_vec(&review).expect("JSON"))
}

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let directory = tempfile::tempdir().expect("a directory");
    let certs = directory.path().join("certs");
    Directory::open(&certs, &["localhost".parse().expect("a name")], jiff::Timestamp::now()).expect("certificates");
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, policy()).expect("written");
    println!("{CONNECTIONS} connections, {PAUSE:?} between two reviews on one, {LENGTH:?} each\n");
    println!("| hostile callers | hostile review, p50 | ordinary reviews | p50 | p99 | longest | not answered |");
    println!("|---|---|---|---|---|---|---|");
    for callers in CALLERS {
        measure(&certs, &file, callers);
    }
}

fn measure(certs: &Path, policy: &Path, callers: usize) {
    let address = free_address();
    let _server = Server(process::nodegate(certs, policy, &address));
    wait_for(&address);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = Arc::new(Client::new(&address, "/mutate", &certs.join("ca.crt")));
    let ordinary = Bytes::from(review::kubelet_create("bench-node"));
    let (hostile, (latencies, refused)) = runtime.block_on(async {
        // Warm both ends up before anything counts.
        client.clone().paced(CONNECTIONS, ordinary.clone(), PAUSE, Duration::from_secs(1)).await;
        tokio::join!(
            client.clone().paced(callers, hostile_review(), Duration::ZERO, LENGTH),
            client.clone().paced(CONNECTIONS, ordinary, PAUSE, LENGTH),
        )
    });
    let quantile = |of: &[Duration], q: f64| of.get((of.len().saturating_sub(1) as f64 * q) as usize).copied();
    let shown = |time: Option<Duration>| {
        time.map_or_else(|| "–".to_owned(), |time| format!("{:.2} ms", time.as_secs_f64() * 1e3))
    };
    println!(
        "| {callers} | {} | {} | {} | {} | {} | {refused} |",
        shown(quantile(&hostile.0, 0.50)),
        latencies.len(),
        shown(quantile(&latencies, 0.50)),
        shown(quantile(&latencies, 0.99)),
        shown(quantile(&latencies, 1.00)),
    );
}
