//! A release: the same files give the same archives. `tests/signatures` shows what its signatures prevent.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::required::{Run, required};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Of the user of the second release (`release/reproducible`).
const SECOND_USER: u32 = 47201;

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// `release/reproducible` of a program that need not be compiled.
fn compare(parts: &[&str]) -> Option<Command> {
    let clock = std::env::var_os("NODEGATE_FAKETIME").map(PathBuf::from).filter(|library| library.is_file());
    let missing = "NODEGATE_FAKETIME names no libfaketime (.ci/run also has helm, which packs the chart)";
    required(clock, Run::Gate, missing)?;
    let mut compare = Command::new("release/reproducible");
    compare.current_dir(ROOT).args(["--of", "LICENSE"]).args(parts);
    Some(compare)
}

/// How many files in a directory, and below, belong to the second user.
fn files_of_second_user(directory: &Path) -> usize {
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap());
    let count = |file: fs::DirEntry| {
        let found = file.metadata().unwrap();
        usize::from(found.uid() == SECOND_USER) + if found.is_dir() { files_of_second_user(&file.path()) } else { 0 }
    };
    files.map(count).sum()
}

/// `just reproducible` compares also what takes long to make.
#[test]
fn an_archive_and_the_chart_do_not_depend_on_who_packs_them_where_and_when() {
    let Some(mut compare) = compare(&["archive", "chart"]) else { return };
    // Where the temporary directory is on the same file system, the copies could have links to git's files.
    let git = Command::new("git").current_dir(ROOT).args(["rev-parse", "--git-path", "objects"]).output().unwrap();
    let objects = Path::new(ROOT).join(String::from_utf8(git.stdout).unwrap().trim());
    let before = files_of_second_user(&objects);
    let output = compare.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    let same: Vec<&str> = said.lines().filter(|line| line.starts_with("same ")).collect();
    let compared = [".tar.gz", ".tgz", "SHA256SUMS"].map(|end| same.iter().any(|line| line.ends_with(end)));
    assert_eq!(compared, [true; 3], "{}", text(&output));
    assert_eq!(files_of_second_user(&objects), before, "{} has other owners than before", objects.display());
}

#[test]
fn a_part_that_cannot_be_made_is_not_the_same_twice() {
    let Some(mut compare) = compare(&["archive"]) else { return };
    let programs = tempfile::tempdir().unwrap();
    let gzip = programs.path().join("gzip");
    fs::write(&gzip, "#!/bin/sh\necho there is no space >&2\nexit 1\n").unwrap();
    fs::set_permissions(&gzip, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let output = compare.env("PATH", path).output().unwrap();
    assert!(!output.status.success() && text(&output).contains("there is no space"), "{}", text(&output));
}

/// `release/run` with a directory of its own in the place of `dist/`. Its programs are GNU's.
#[cfg(target_os = "linux")]
fn release(dist: &Path, arguments: &[&str]) -> Command {
    let mut run = Command::new("release/run");
    run.current_dir(ROOT).env("NODEGATE_DIST", dist).args(arguments);
    run
}

#[cfg(target_os = "linux")]
#[test]
fn the_list_of_checksums_that_is_signed_has_the_manifest_for_krew() {
    let dist = tempfile::tempdir().unwrap();
    for target in
        ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-apple-darwin", "aarch64-apple-darwin"]
    {
        let archive = format!("nodegate-{}-{target}.tar.gz", env!("CARGO_PKG_VERSION"));
        fs::write(dist.path().join(archive), target).unwrap();
    }
    for arguments in [&["checksums"] as &[&str], &["krew", "https://example.com/nodegate"]] {
        let output = release(dist.path(), arguments).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }
    let sums = fs::read_to_string(dist.path().join("SHA256SUMS")).unwrap();
    assert_eq!((sums.lines().count(), sums.contains("  nodegate.yaml\n")), (5, true), "{sums}");
    let check = ["--check", "--strict", "--quiet", "SHA256SUMS"];
    assert!(Command::new("sha256sum").current_dir(dist.path()).args(check).status().unwrap().success());
}

/// The workflow has an empty text where the repository has no variable.
#[cfg(target_os = "linux")]
#[test]
fn a_release_without_a_registry_is_refused_before_anything_is_made() {
    let dist = tempfile::tempdir().unwrap();
    let output = release(dist.path(), &["check", "v0"]).env("REGISTRY", "").output().unwrap();
    assert!(!output.status.success() && text(&output).contains("REGISTRY is empty"), "{}", text(&output));
}
