//! `docs/migrating/`: a user of each older tool follows its tutorial, command by command, at the real API server. The tool itself does
//! not run: what it leaves in a cluster is created as it leaves it.

mod fako;
mod fleet;
mod job;
mod k8s_auto_labeller;
mod kopf;
mod label_files;
mod llm_d_lab;
pub(crate) mod pod;
mod script;
mod tables;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::control_plane::run;
use crate::required::{Run, required};

/// The directories with programs for tests.
fn directories() -> Vec<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/build");
    let built = run(Command::new(script).arg("--print-dir"), None).unwrap();
    let mut directories = vec![PathBuf::from(built.trim())];
    directories.extend(env::var_os("PATH").iter().flat_map(env::split_paths));
    directories
}

/// A program that is [`there`].
pub(crate) fn tool(name: &str) -> PathBuf {
    let mut candidates = directories().into_iter().map(|directory| directory.join(name));
    candidates
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("there is no {name}; build it: tests/tools/build {name}"))
}

/// Whether these programs can be run. Without them a test says so and passes; in the full run it fails.
pub(crate) fn there(programs: &[&str]) -> bool {
    let directories = directories();
    let missing: Vec<&&str> =
        programs.iter().filter(|name| !directories.iter().any(|directory| directory.join(name).is_file())).collect();
    let found = missing.is_empty().then_some(());
    required(found, Run::Full, &format!("there is no {missing:?}; build it: just tools")).is_some()
}

/// The metrics of nodegate that a file names.
fn metrics_named_in(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    words.filter(|word| word.starts_with("nodegate_")).map(str::to_owned).collect()
}
