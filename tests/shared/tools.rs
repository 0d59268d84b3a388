//! Programs of other projects that tests run, built by `tests/tools/build`.

use std::env;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::required::{Run, required};
use crate::programs::run;

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

/// What `promtool check metrics` complains about.
pub(crate) fn promtool_complaints(exposition: &str) -> String {
    let mut promtool = Command::new(tool("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(exposition.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}
