//! Instructions and cache lines per review, counted by valgrind's cachegrind: nearly the same on every machine, however busy it is.
//!
//! Compares them with `instructions.json` beside this file, and fails if one has risen by more than two percent. With
//! `NODEGATE_GENERATE=1` it writes that file.
//!
//! It is a bench of this package because Cargo would compile the whole program for one of the package `nodegate`.

#![allow(missing_docs, reason = "a program")]
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench that cannot run ends, and one that can tells what it saw"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::{Command, ExitCode};

use nodegate_webhook::admission::{mutate, validate};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[path = "../../../benches/support/context.rs"]
mod context;
#[path = "../../../benches/support/review.rs"]
mod review;
#[path = "../../../benches/support/rules.rs"]
mod rules;

/// As the product has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.json");
/// Reviews that are counted, and before them some that are not.
const COUNTED: u32 = 100;
const WARM_UP: u32 = 20;
/// Only the last-level cache counts lines: what the smallest others do not hold comes from it, and it is emptied before each
/// review.
const CACHES: [&str; 3] = ["--I1=128,1,64", "--D1=128,1,64", "--LL=4194304,16,64"];
/// Twice the last-level cache.
const EMPTIES: usize = 8 << 20;
/// How much more a figure may be than the committed one.
const TOLERANCE: f64 = 1.02;

/// What one review takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    instructions: u64,
    /// Lines of 64 bytes, of code and of data, that are read or written.
    cache_lines: u64,
}

/// What is counted: some reviews, or, in the same loop, none.
fn reviews(endpoint: &str, counted: bool) {
    let context = context::context(json!({"rules": rules::rules(10)}), Vec::new());
    let (create, update) = (review::kubelet_create("bench-node"), review::admin_update("bench-node"));
    let answer = || match endpoint {
        "mutate" => mutate(black_box(&create), &context).expect("an answer").body,
        _ => validate(black_box(&update), &context).expect("an answer").body,
    };
    assert_eq!(String::from_utf8_lossy(&answer()).contains("\"patch\""), endpoint == "mutate");
    for _ in 0..WARM_UP {
        black_box(answer());
    }
    let other = vec![1_u8; EMPTIES];
    for _ in 0..COUNTED {
        black_box(other.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>());
        if black_box(counted) {
            black_box(answer());
        }
    }
}

/// The total that cachegrind prints in a line such as `==1== LL misses:  1,234  ( … )`.
fn total(report: &str, name: &str) -> u64 {
    let line = report.lines().find_map(|line| line.split("== ").nth(1)?.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()).expect("cachegrind's summary");
    number.replace(',', "").parse().expect("a number")
}

fn count(endpoint: &str, what: &str) -> Figures {
    let this = std::env::current_exe().expect("the path of this program");
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=yes", "--cachegrind-out-file=/dev/null"])
        .args(CACHES)
        .arg(this)
        .args([endpoint, what])
        .output()
        .expect("valgrind is not installed; on Debian: apt-get install valgrind");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    Figures { instructions: total(&report, "I   refs:"), cache_lines: total(&report, "LL misses:") }
}

fn per_review(endpoint: &str) -> Figures {
    let (with, without) = (count(endpoint, "counted"), count(endpoint, "none"));
    let each = |with: u64, without: u64| with.saturating_sub(without) / u64::from(COUNTED);
    Figures {
        instructions: each(with.instructions, without.instructions),
        cache_lines: each(with.cache_lines, without.cache_lines),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, endpoint, what] = &arguments[..] {
        reviews(endpoint, what == "counted");
        return ExitCode::SUCCESS;
    }
    let now: BTreeMap<&str, Figures> =
        ["mutate", "validate"].into_iter().map(|endpoint| (endpoint, per_review(endpoint))).collect();
    println!("{}", serde_json::to_string_pretty(&now).unwrap());
    if std::env::var_os("NODEGATE_GENERATE").is_some() {
        std::fs::write(FIGURES, serde_json::to_string_pretty(&now).unwrap() + "\n").unwrap();
        return ExitCode::SUCCESS;
    }
    let committed: BTreeMap<String, Figures> =
        serde_json::from_str(&std::fs::read_to_string(FIGURES).expect(FIGURES)).expect(FIGURES);
    let rises = |now: u64, before: u64| now as f64 > before as f64 * TOLERANCE;
    let mut risen = false;
    for (endpoint, now) in &now {
        let before = committed[*endpoint];
        if rises(now.instructions, before.instructions) || rises(now.cache_lines, before.cache_lines) {
            println!("{endpoint} takes more than 2 % more than {before:?}");
            risen = true;
        }
    }
    if risen {
        println!("make it cheaper, or run `just bench-instructions write` and commit the new figures with the reason");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
