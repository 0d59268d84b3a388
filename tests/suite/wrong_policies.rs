//! What users read for each wrong policy in `tests/wrong-policies`: `NAME.yaml` is the policy, `NAME.txt` the complete message.
//!
//! `NODEGATE_GENERATE=1` writes the messages anew. Read each one that changes as a user would.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong-policies")
}

fn nodegate(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodegate")).args(arguments).current_dir(directory).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The names of the files with this extension.
fn names(extension: &str) -> BTreeSet<String> {
    let files = std::fs::read_dir(directory()).unwrap().map(|file| file.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|found| found == extension));
    files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn every_wrong_policy_gets_the_message_that_was_agreed() {
    let policies = names("yaml");
    assert!(policies.len() >= 30, "only {} policies were found", policies.len());
    let mut different = Vec::new();
    for name in &policies {
        let output = nodegate(&directory(), &["check", &format!("{name}.yaml")]);
        let (message, file) = (text(&output.stderr), directory().join(format!("{name}.txt")));
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""), "{name}: {message}");
        if std::env::var_os("NODEGATE_GENERATE").is_some() {
            std::fs::write(&file, &message).unwrap();
        }
        let agreed = std::fs::read_to_string(&file).unwrap_or_default();
        if agreed != message {
            different.push(format!("{name}.txt says\n{agreed}\nbut it is\n{message}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert_eq!(names("txt"), policies, "each policy has a message, and each message a policy");
}

/// How often each fault of a message is counted in its last line.
#[test]
fn the_last_line_counts_the_faults_above_it() {
    for name in names("txt") {
        let message = std::fs::read_to_string(directory().join(format!("{name}.txt"))).unwrap();
        let faults = message.lines().filter(|line| line.starts_with("error: ")).count() - 1;
        let counted = if faults == 1 { "1 error".to_owned() } else { format!("{faults} errors") };
        let last = message.lines().last().unwrap();
        assert_eq!(last, format!("error: found {counted} in the policies; no policy was loaded"), "{name}");
    }
}
