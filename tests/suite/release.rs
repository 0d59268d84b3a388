//! A release: the same files give the same archives. `tests/signatures` shows what its signatures prevent.

use std::path::PathBuf;
use std::process::Command;

use crate::required::{Run, required};

/// `just reproducible` compares also what takes long to make.
#[test]
fn an_archive_and_the_chart_do_not_depend_on_who_packs_them_where_and_when() {
    let clock = std::env::var_os("NODEGATE_FAKETIME").map(PathBuf::from).filter(|library| library.is_file());
    let missing = "NODEGATE_FAKETIME names no libfaketime (.ci/run also has helm, which packs the chart)";
    if required(clock, Run::Gate, missing).is_none() {
        return;
    }
    let mut compare = Command::new("release/reproducible");
    compare.current_dir(env!("CARGO_MANIFEST_DIR")).args(["--of", "LICENSE", "archive", "chart"]);
    let output = compare.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let faults = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{faults}");
    let same: Vec<&str> = said.lines().filter(|line| line.starts_with("same ")).collect();
    let compared = [".tar.gz", ".tgz", "SHA256SUMS"].map(|end| same.iter().any(|line| line.ends_with(end)));
    assert_eq!(compared, [true; 3], "{said}\n{faults}");
}
