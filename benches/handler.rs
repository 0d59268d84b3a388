//! Time of the handler itself (parse, decide, patch, answer) by number of rules, of which five match.

#![allow(missing_docs, reason = "criterion_group makes a public item")]
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench that cannot run ends, and one that can tells what it saw"
)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use nodegate_webhook::admission::{Context, mutate, validate};
use serde_json::{Value, json};

#[path = "support/context.rs"]
mod context;
#[path = "support/governance.rs"]
mod governance;
#[path = "support/review.rs"]
mod review;
#[path = "support/rules.rs"]
mod rules;

use context::context;
use governance::governance;
use rules::rules;

/// As the product has it: after ten thousand rules were loaded, glibc's is slower for every review.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Prints percentiles of single calls, which criterion does not.
fn percentiles(what: &str, body: &[u8], context: &Context) {
    let mut times: Vec<_> = (0..20_000)
        .map(|_| {
            let started = std::time::Instant::now();
            black_box(validate(black_box(body), context).expect("an answer"));
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    let at = |part: f64| times[(part * times.len() as f64) as usize];
    println!("{what}: p50 {:?}, p99 {:?}, p99.9 {:?}", at(0.5), at(0.99), at(0.999));
}

fn handler(criterion: &mut Criterion) {
    let create = review::kubelet_create("bench-node");
    let mut group = criterion.benchmark_group("mutate, kubelet CREATE, 5 KB node");
    for count in [10, 100, 1_000, 10_000] {
        let context = context(json!({"rules": rules(count)}), Vec::new());
        let answer = mutate(&create, &context).expect("an answer");
        assert!(String::from_utf8_lossy(&answer.body).contains("\"patch\""), "the five rules give something");
        group.bench_function(BenchmarkId::from_parameter(format!("{count} rules")), |bencher| {
            bencher.iter(|| mutate(black_box(&create), &context).expect("an answer"));
        });
    }
    let nothing =
        context(json!({"rules": [{"name": "other", "match": {"names": ["other"]}, "labels": {"a": "b"}}]}), Vec::new());
    group.bench_function("no rule matches", |bencher| {
        bencher.iter(|| mutate(black_box(&create), &nothing).expect("an answer"));
    });
    group.finish();

    let update = review::admin_update("bench-node");
    let baseline = context(json!({"presets": ["baseline"]}), Vec::new());
    let mut group = criterion.benchmark_group("validate, admin UPDATE, 5 KB node");
    group.bench_function("preset baseline", |bencher| {
        bencher.iter(|| validate(black_box(&update), &baseline).expect("an answer"));
    });
    for expressions in [0, 20] {
        let context = context(json!({"governance": governance(100, expressions)}), Vec::new());
        let answer = validate(&update, &context).expect("an answer");
        let body = String::from_utf8_lossy(&answer.body);
        assert!(body.contains("\"allowed\":true") && !body.contains("unknown"), "{body}");
        group.bench_function(BenchmarkId::from_parameter(format!("100 rules, {expressions} of them CEL")), |bencher| {
            bencher.iter(|| validate(black_box(&update), &context).expect("an answer"));
        });
    }
    group.finish();
    percentiles(
        "validate, 100 rules, 20 of them CEL",
        &update,
        &context(json!({"governance": governance(100, 20)}), Vec::new()),
    );

    let mut group = criterion.benchmark_group("validate, admin UPDATE, by size");
    for characters in [0, 90_000, 750_000, 1_500_000] {
        let update = review::filled_update("bench-node", characters);
        group.bench_function(BenchmarkId::from_parameter(format!("{} KB", update.len() / 1000)), |bencher| {
            bencher.iter(|| validate(black_box(&update), &baseline).expect("an answer"));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("mutate with CEL");
    for count in [1, 5, 20] {
        let rules: Vec<Value> = (0..count)
            .map(|at| json!({"name": format!("c{at}"), "match": {"expression": format!("node.status.nodeInfo.architecture == \"amd64\" && node.metadata.name != \"n{at}\"")}, "labels": {format!("cel-{at}"): "x"}}))
            .collect();
        let context = context(json!({"rules": rules}), Vec::new());
        group.bench_function(BenchmarkId::from_parameter(format!("{count} expressions")), |bencher| {
            bencher.iter(|| mutate(black_box(&create), &context).expect("an answer"));
        });
    }
    group.finish();
}

criterion_group!(benches, handler);
criterion_main!(benches);
