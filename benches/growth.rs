//! How cost, memory and start grow with rules, nodes, saved state, reviews and expressions: `cargo bench --bench growth`
//! prints tables and draws docs/images/bench/*.svg.
//!
//! The cost of a review is measured in process, on one thread, without HTTPS: the fastest tenth of many short batches, so
//! that other programs on the machine matter little. Memory and start are those of the real server.

#![allow(clippy::print_stdout, reason = "a bench prints its results")]
#![allow(clippy::expect_used, reason = "a bench that cannot run ends")]
#![allow(dead_code, reason = "support is shared with the other benches")]

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nodegate_policy::api::state::SavedState;
use nodegate_webhook::admission::{Context, mutate, validate};
use nodegate_webhook::tls::Directory;
use serde_json::{Value, json};

#[path = "support/context.rs"]
mod context;
#[path = "support/plot.rs"]
mod plot;
#[path = "support/probe.rs"]
mod probe;
#[path = "support/process.rs"]
mod process;
#[path = "support/review.rs"]
mod review;
#[path = "support/rules.rs"]
mod rules;

use context::context;
use plot::{Chart, Line};
use process::{Server, free_address};
use rules::rules;

/// As the product has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RULES: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
/// A file of many more is refused: YAML documents are limited to 250,000 nodes.
const RULES_OF_FILE: usize = 10_000;
const NODES: [usize; 5] = [100, 500, 1_500, 5_000, 15_000];
/// Saved labels of one node; nodegate saves no more than the last number.
const SAVED: [usize; 6] = [1, 4, 16, 64, 256, 512];
/// Characters of six bytes each in the node's status: reviews of 7 KB to 9 MB.
const CHARACTERS: [usize; 7] = [0, 4_000, 15_000, 50_000, 170_000, 500_000, 1_500_000];
const EXPRESSIONS: [usize; 7] = [1, 2, 5, 10, 20, 50, 100];
/// The allocator returns memory to the kernel some seconds after it was freed, when the threads that read the policies have ended.
const SETTLED: Duration = Duration::from_secs(15);
/// Labels that the node of the review has had saved.
const SAVED_USUALLY: usize = 20;
/// The name in every recorded review.
const NODE: &str = "bench-node";

fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let directory = tempfile::tempdir().expect("a directory");
    let certs = directory.path().join("certs");
    Directory::open(&certs, &["localhost".parse().expect("a name")], jiff::Timestamp::now()).expect("certificates");
    let places = Places { directory: directory.path(), certs: &certs };
    by_rules(&places);
    by_nodes(&places);
    by_review();
}

/// Where the server's files are.
struct Places<'a> {
    directory: &'a Path,
    certs: &'a Path,
}

/// Memory of a server that does nothing, in MB, and its time from start to ready, in ms.
struct Idle {
    memory: f64,
    peak: f64,
    ready: f64,
}

impl Places<'_> {
    /// Starts the server five times; the median start and the last one's memory count.
    fn idle(&self, policy: &Path, state: &Path) -> Idle {
        let mut times = Vec::new();
        loop {
            let (listen, probe) = (free_address(), free_address());
            let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
            command.arg("serve").arg("--policy").arg(policy).arg("--cert-dir").arg(self.certs);
            command.args(["--listen", &listen, "--probe-listen", &probe, "--state-dir"]).arg(state);
            let started = Instant::now();
            let server = Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started"));
            while !probe::get(&probe, "/readyz").starts_with("HTTP/1.1 200") {
                assert!(started.elapsed() < Duration::from_secs(120), "{} is not loaded", policy.display());
                std::thread::sleep(Duration::from_millis(1));
            }
            times.push(started.elapsed().as_secs_f64() * 1e3);
            if times.len() == 5 {
                times.sort_by(f64::total_cmp);
                std::thread::sleep(SETTLED);
                let of = |line| probe::memory_mb(server.0.id(), line);
                return Idle { memory: of("VmRSS:"), peak: of("VmHWM:"), ready: times[2] };
            }
        }
    }
}

/// Microseconds of one call.
fn cost(mut call: impl FnMut()) -> f64 {
    let started = Instant::now();
    call();
    call();
    let once = started.elapsed() / 2;
    // Short enough that most batches run without an interruption.
    let batch = (Duration::from_millis(1).as_nanos() / once.as_nanos().max(1)).clamp(1, 1_000);
    let begun = Instant::now();
    let mut times = Vec::new();
    while times.len() < 30 || begun.elapsed() < Duration::from_millis(1_500) {
        let started = Instant::now();
        for _ in 0..batch {
            call();
        }
        times.push(started.elapsed().as_secs_f64() / batch as f64 * 1e6);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

/// The cost of `/mutate`, which answers with a patch that contains `shows`.
fn cost_of_mutate(body: &[u8], context: &Context, shows: &str) -> f64 {
    let answer = mutate(body, context).expect("an answer");
    assert!(String::from_utf8_lossy(&answer.body).contains(shows), "{:?}", String::from_utf8_lossy(&answer.body));
    cost(|| drop(black_box(mutate(black_box(body), context))))
}

fn cost_of_validate(body: &[u8], context: &Context) -> f64 {
    let answer = validate(body, context).expect("an answer");
    assert!(String::from_utf8_lossy(&answer.body).contains("\"allowed\":true"), "{:?}", answer.body);
    cost(|| drop(black_box(validate(black_box(body), context))))
}

/// What is drawn of a server by the number of something that it has loaded.
#[derive(Default)]
struct Points {
    costs: Vec<(f64, f64)>,
    memories: Vec<(f64, f64)>,
    starts: Vec<(f64, f64)>,
}

impl Points {
    fn push(&mut self, count: usize, cost: f64, idle: &Idle) {
        let x = count as f64;
        self.costs.push((x, cost));
        self.memories.push((x, idle.memory));
        self.starts.push((x, idle.ready));
    }

    fn charts(self, x: &'static str) -> [Chart; 3] {
        [
            Chart { y: "time of a review, µs", x, lines: vec![line("", self.costs)] },
            Chart { y: "resident memory, MB", x, lines: vec![line("", self.memories)] },
            Chart { y: "start to ready, ms", x, lines: vec![line("", self.starts)] },
        ]
    }
}

fn by_rules(places: &Places<'_>) {
    println!(
        "| rules, of which 5 match | review | memory | at most, while loading | start to ready |\n|---|---|---|---|---|"
    );
    let mut points = Points::default();
    let create = review::kubelet_create(NODE);
    for count in RULES {
        let rules = rules(count);
        let cost = cost_of_mutate(&create, &context(json!({"rules": &rules}), Vec::new()), "\"patch\"");
        let policies = places.directory.join(format!("rules-{count}"));
        std::fs::create_dir(&policies).expect("made");
        for (at, rules) in rules.chunks(RULES_OF_FILE).enumerate() {
            std::fs::write(policies.join(format!("{at}.yaml")), policy_file(at, rules)).expect("written");
        }
        let idle = places.idle(&policies, &places.directory.join("none"));
        println!("| {count} | {cost:.1} µs | {:.1} MB | {:.1} MB | {:.0} ms |", idle.memory, idle.peak, idle.ready);
        points.push(count, cost, &idle);
    }
    write(
        "rules.svg",
        "Time of a review, memory and start by number of rules",
        &points.charts("rules, of which 5 match"),
    );
}

/// A policy file as people write it, one rule a line.
fn policy_file(number: usize, rules: &[Value]) -> String {
    let lines: String = rules.iter().map(|rule| format!("    - {rule}\n")).collect();
    format!(
        "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: bench-{number}}}\nspec:\n  rules:\n{lines}"
    )
}

fn saved(node: &str, labels: usize) -> SavedState {
    SavedState {
        node_name: node.to_owned(),
        labels: (0..labels).map(|at| (format!("persist.demo/label-{at}"), format!("value-{at}"))).collect(),
        captured_at: Some("2026-11-23T06:00:00Z".to_owned()),
        node_uid: Some("9f0c1c5e-8d0b-4a5e-9f1a-1d2e3f405162".to_owned()),
        ..SavedState::default()
    }
}

fn persisting() -> Value {
    json!({"rules": rules(100), "persist": {"labels": ["persist.demo/*"]}})
}

fn by_nodes(places: &Places<'_>) {
    println!("\n| nodes with {SAVED_USUALLY} saved labels | review | memory | start to ready |\n|---|---|---|---|");
    let mut points = Points::default();
    let create = review::kubelet_create(NODE);
    let file = places.directory.join("persisting.yaml");
    let policy = json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "bench"}, "spec": persisting()});
    std::fs::write(&file, policy.to_string()).expect("written");
    for count in NODES {
        let name = |at: usize| if at == 0 { NODE.to_owned() } else { format!("{NODE}-{at}") };
        let states: Vec<SavedState> = (0..count).map(|at| saved(&name(at), SAVED_USUALLY)).collect();
        let directory = places.directory.join(format!("state-{count}"));
        std::fs::create_dir(&directory).expect("made");
        for state in &states {
            let text = serde_json::to_vec(state).expect("JSON");
            std::fs::write(directory.join(format!("{}.json", state.node_name)), text).expect("written");
        }
        let cost = cost_of_mutate(&create, &context(persisting(), states), "\"patch\"");
        let idle = places.idle(&file, &directory);
        println!("| {count} | {cost:.1} µs | {:.1} MB | {:.0} ms |", idle.memory, idle.ready);
        points.push(count, cost, &idle);
    }
    write(
        "nodes.svg",
        "Time of a review, memory and start by number of nodes with saved state",
        &points.charts("nodes with 20 saved labels each"),
    );
}

fn by_review() {
    let charts = [by_saved_labels(), by_size(), by_expressions()];
    write("reviews.svg", "Time of a review by saved labels, by size and by expressions", &charts);
}

fn by_saved_labels() -> Chart {
    println!("\n| saved labels of the node | saved state | review that restores them |\n|---|---|---|");
    let create = review::kubelet_create(NODE);
    let mut costs = Vec::new();
    for count in SAVED {
        let state = saved(NODE, count);
        let bytes = serde_json::to_vec(&state).expect("JSON").len();
        let cost = cost_of_mutate(&create, &context(persisting(), vec![state]), "\"patch\"");
        println!("| {count} | {bytes} bytes | {cost:.1} µs |");
        costs.push((count as f64, cost));
    }
    Chart { y: "time of a review, µs", x: "saved labels of the node", lines: vec![line("", costs)] }
}

fn by_size() -> Chart {
    println!(
        "\n| size of the review | `/mutate`, CREATE | `/validate`, UPDATE (of half the text in each of two objects) |\n|---|---|---|"
    );
    let rules = context(json!({"rules": rules(100)}), Vec::new());
    let baseline = context(json!({"presets": ["baseline"]}), Vec::new());
    let (mut mutated, mut validated) = (Vec::new(), Vec::new());
    for characters in CHARACTERS {
        let create = review::filled_create(NODE, characters);
        let update = review::filled_update(NODE, characters / 2);
        let costs = (cost_of_mutate(&create, &rules, "\"patch\""), cost_of_validate(&update, &baseline));
        println!("| {} and {} KB | {:.1} µs | {:.1} µs |", create.len() / 1000, update.len() / 1000, costs.0, costs.1);
        mutated.push((create.len() as f64 / 1e3, costs.0));
        validated.push((update.len() as f64 / 1e3, costs.1));
    }
    let lines = vec![line("/mutate", mutated), line("/validate", validated)];
    Chart { y: "time of a review, µs", x: "size of the review, KB", lines }
}

fn by_expressions() -> Chart {
    println!("\n| CEL expressions | `/mutate` | `/validate` |\n|---|---|---|");
    let (create, update) = (review::kubelet_create(NODE), review::admin_update(NODE));
    let (mut mutated, mut validated) = (Vec::new(), Vec::new());
    for count in EXPRESSIONS {
        let rule = |at: usize| json!({"name": format!("c{at}"), "match": {"expression": format!("node.status.nodeInfo.architecture == \"amd64\" && node.metadata.name != \"n{at}\"")}, "labels": {format!("cel-{at}"): "x"}});
        let rules: Vec<Value> = (0..count).map(rule).collect();
        let entry = |at: usize| json!({"expression": format!("object.metadata.labels[?\"key-{at}\"].orValue(\"\") != \"bad\"")});
        let entries: Vec<Value> = (0..count).map(entry).collect();
        let rules = cost_of_mutate(&create, &context(json!({"rules": rules}), Vec::new()), "\"patch\"");
        let entries = cost_of_validate(&update, &context(json!({"governance": {"expressions": entries}}), Vec::new()));
        println!("| {count} | {rules:.1} µs | {entries:.1} µs |");
        mutated.push((count as f64, rules));
        validated.push((count as f64, entries));
    }
    let lines = vec![line("/mutate", mutated), line("/validate", validated)];
    Chart { y: "time of a review, µs", x: "CEL expressions", lines }
}

fn line(name: &'static str, points: Vec<(f64, f64)>) -> Line {
    Line { name, points }
}

fn write(file: &str, description: &str, charts: &[Chart]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images/bench").join(file);
    plot::write(&path, description, charts);
    println!("\n{} is drawn", path.display());
}
