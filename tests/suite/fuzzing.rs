//! The inputs that the fuzz targets keep, run as tests: what was once found stays fixed, without a fuzzer.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

#[path = "../../fuzz/checks/mod.rs"]
mod checks;

/// The files of `fuzz/KIND/TARGET`, sorted.
fn inputs(kind: &str, target: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(kind).join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// Runs every kept input of a target and names those for which something does not hold.
fn holds_for_every_kept_input(target: &str) {
    let files: Vec<PathBuf> = inputs("corpus", target).into_iter().chain(inputs("regressions", target)).collect();
    let size: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(files.len() > 10 && size < 500_000, "{target} has {} inputs of {size} bytes together", files.len());
    let fails = |file: &&PathBuf| {
        let bytes = fs::read(file).unwrap();
        catch_unwind(|| checks::check(target, &bytes)).is_err()
    };
    let failing: Vec<&PathBuf> = files.iter().filter(fails).collect();
    assert!(failing.is_empty(), "see what is printed above for {failing:#?}");
}

#[test]
fn kept_fuzzing_inputs_of_reviews_have_all_properties() {
    holds_for_every_kept_input("review");
}

#[test]
fn kept_fuzzing_inputs_of_policies_have_all_properties() {
    holds_for_every_kept_input("policy");
}

#[test]
fn kept_fuzzing_inputs_of_expressions_have_all_properties() {
    holds_for_every_kept_input("expression");
}

#[test]
fn kept_fuzzing_inputs_of_units_have_all_properties() {
    holds_for_every_kept_input("unit");
}
