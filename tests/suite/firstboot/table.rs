//! Units and environments, each with the exact command line that results.
//!
//! Each case goes through the real program: `install --print` reads the files, the test expands the drop-in as systemd does, and `exec`
//! starts a program that prints what it gets.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::machine::expand;
use super::{VARIABLE, nodegate, program, success, text};

/// One row of `units.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) name: String,
    /// The unit's file and its drop-ins. `BIN` is a directory with kubelet, k3s, rke2 and kubenswrapper.
    pub(super) files: Vec<String>,
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
    /// The labels of the variable; `x=1,y=` unless given.
    #[serde(default = "labels")]
    pub(super) labels: String,
    /// Files below the directory `ROOT`.
    #[serde(default)]
    exist: Vec<String>,
    /// The words that the program gets, joined by `|`, `BIN` and `ROOT` as in the files.
    pub(super) expect: String,
    /// The words that the unit itself gives the program, without nodegate. [`super::live`] compares them with a real systemd.
    pub(super) plain: String,
    /// A part of the warning on standard error; absent if there is none.
    #[serde(default)]
    said: Option<String>,
}

fn labels() -> String {
    "x=1,y=".to_owned()
}

/// The table.
pub(super) fn cases() -> Vec<Case> {
    serde_saphyr::from_str(include_str!("units.yaml")).unwrap()
}

/// A directory with the programs and files of a case.
pub(super) fn prepare(case: &Case) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for name in ["kubelet", "k3s", "rke2", "kubenswrapper", "a b/kubelet", "o$pt/kubelet", "other"] {
        program(&root.path().join("bin").join(name));
    }
    for file in &case.exist {
        let (name, contents) = file.split_once(':').unwrap_or((file, ""));
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }
    root
}

/// Runs a case, with the labels or without, and returns what the program got and what was said.
fn run(case: &Case, root: &Path, labels: Option<&str>) -> (String, String) {
    let root_text = root.to_str().unwrap();
    let placed = |text: &str| text.replace("ROOT", root_text).replace("BIN", &format!("{root_text}/bin"));
    let mut command = nodegate(&["firstboot", "install", "--print", "--helper", env!("CARGO_BIN_EXE_nodegate")]);
    for (number, file) in case.files.iter().enumerate() {
        let path = root.join(format!("{number}.conf"));
        std::fs::write(&path, placed(file)).unwrap();
        command.arg("--unit-file").arg(path);
    }
    let drop_in = success(&command.output().unwrap());
    let value = drop_in.lines().last().unwrap().strip_prefix("ExecStart=").unwrap();
    let environment: BTreeMap<&str, String> =
        case.environment.iter().map(|(name, value)| (name.as_str(), placed(value))).collect();
    let variables = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let (helper, words) = expand(value, &variables);
    let mut command = std::process::Command::new(helper);
    command.args(&words[1..]).env_clear().envs(&environment).env("PATH", root.join("bin"));
    command.envs(labels.map(|labels| (VARIABLE, labels)));
    let output = command.output().unwrap();
    let got = success(&output).lines().collect::<Vec<_>>().join("|").replace(root_text, "ROOT");
    (got, text(&output.stderr))
}

const ADDS: &str = "nodegate firstboot: adds ";

#[test]
fn every_unit_of_the_table_results_in_exactly_this_command_line() {
    let cases = cases();
    assert!(cases.len() >= 60, "only {} cases", cases.len());
    for case in &cases {
        let root = prepare(case);
        let (got, said) = run(case, root.path(), Some(&case.labels));
        assert_eq!(got, case.expect, "{}: {said}", case.name);
        match &case.said {
            Some(part) => assert!(!part.is_empty() && said.contains(part), "{}: {said}", case.name),
            // What was done is said; a warning has to be expected.
            None => {
                assert!(
                    said.is_empty() || said.starts_with(ADDS) && said.lines().count() == 1,
                    "{}: {said}",
                    case.name
                );
            }
        }

        let (plain, said) = run(case, root.path(), None);
        assert_eq!(said, "", "{}", case.name);
        assert_eq!(plain, case.plain, "{}: without the variable nothing changes", case.name);
    }
}
