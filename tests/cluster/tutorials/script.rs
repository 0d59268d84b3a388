//! The commands of a tutorial, in their order, as a user types them.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::control_plane::{ControlPlane, assets, run};

/// No command of a tutorial takes longer, in seconds.
const PATIENCE: &str = "120";

/// One `sh` block, and what the `text` block after it says that it prints.
#[derive(Default)]
struct Step {
    commands: String,
    expected: Option<String>,
    /// What the `console` block after it prints: commands that run in pods or on nodes, in place of which a test acts.
    elsewhere: Option<String>,
}

/// A tutorial that somebody follows, in a directory of their own, with their kubeconfig where kubectl looks for it.
pub(super) struct Tutorial {
    steps: std::vec::IntoIter<Step>,
    directory: TempDir,
    /// `export` lines so far: each step is a shell of its own.
    exports: String,
    path: String,
    /// What the last `console` block prints.
    elsewhere: Option<String>,
}

/// The `sh` blocks of a text with their output.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut fence: Option<&str> = None;
    let mut elsewhere = false;
    for line in text.lines() {
        match (fence, line.strip_prefix("```")) {
            (None, Some(kind)) => {
                fence = Some(kind);
                elsewhere = kind == "console" || (elsewhere && kind != "sh");
                match (kind, steps.last_mut()) {
                    ("sh", _) => steps.push(Step::default()),
                    ("text", Some(step)) if elsewhere => step.elsewhere = Some(String::new()),
                    ("text", Some(step)) => step.expected = Some(String::new()),
                    _ => {}
                }
            }
            (Some(_), Some("")) => fence = None,
            (Some("sh"), _) => add(&mut steps.last_mut().unwrap().commands, line),
            (Some("text"), _) => {
                let step = steps.last_mut();
                let expected =
                    step.and_then(|step| if elsewhere { &mut step.elsewhere } else { &mut step.expected }.as_mut());
                if let Some(expected) = expected {
                    add(expected, line);
                }
            }
            _ => {}
        }
    }
    steps
}

fn add(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Whether a line of output is as written; `…` stands for anything.
fn line_matches(written: &str, line: &str) -> bool {
    let mut rest = line.trim_end();
    let parts: Vec<&str> = written.trim_end().split('…').collect();
    for (at, part) in parts.iter().enumerate() {
        let found = if at == 0 { rest.starts_with(part).then_some(0) } else { rest.find(part) };
        let Some(start) = found else { return false };
        rest = &rest[start + part.len()..];
        if at + 1 == parts.len() && part.is_empty() && at > 0 {
            rest = "";
        }
    }
    rest.is_empty()
}

/// Whether the written lines stand in the output, one after the other.
fn has_lines(output: &str, written: &str) -> bool {
    let (output, written): (Vec<&str>, Vec<&str>) = (output.lines().collect(), written.lines().collect());
    output
        .windows(written.len())
        .any(|lines| lines.iter().zip(&written).all(|(line, written)| line_matches(written, line)))
}

impl Tutorial {
    /// Opens a page of `docs/migrating/` for an administrator of the cluster.
    pub(super) fn open(plane: &ControlPlane, page: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(root.join("docs/migrating").join(page)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        for folder in ["charts", "examples"] {
            std::os::unix::fs::symlink(root.join(folder), directory.path().join(folder)).unwrap();
        }
        fs::create_dir_all(directory.path().join(".kube")).unwrap();
        fs::copy(plane.kubeconfig_file("tutorial", None), directory.path().join(".kube/config")).unwrap();
        let binaries = Path::new(env!("CARGO_BIN_EXE_nodegate")).parent().unwrap();
        let built = run(Command::new(root.join("tests/tools/build")).arg("--print-dir"), None).unwrap();
        let path = env::var("PATH").unwrap();
        let path = format!("{}:{}:{}:{path}", binaries.display(), assets().display(), built.trim());
        Self { steps: steps(&text).into_iter(), directory, exports: String::new(), path, elsewhere: None }
    }

    /// The directory in which the commands run.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Follows the tutorial up to the step with this command, and returns what that step prints.
    pub(super) fn until(&mut self, command: &str) -> String {
        while let Some(step) = self.steps.next() {
            let found = step.commands.contains(command);
            let output = self.follow(&step);
            if found {
                return output;
            }
        }
        panic!("no further step has {command:?}");
    }

    /// Whether the output is what the text after the last `console` block says.
    pub(super) fn printed_like(&self, output: &str) -> bool {
        has_lines(output, self.elsewhere.as_ref().expect("the tutorial says what is printed"))
    }

    /// Follows it to its end.
    pub(super) fn finish(mut self) {
        while let Some(step) = self.steps.next() {
            self.follow(&step);
        }
    }

    fn follow(&mut self, step: &Step) -> String {
        let Step { commands, expected, elsewhere } = step;
        self.elsewhere.clone_from(elsewhere);
        println!("$ {}", commands.trim_end());
        let script = format!("set -eu\n{}{commands}", self.exports);
        let mut shell = Command::new("timeout");
        shell.args([PATIENCE, "sh", "-c", &script]).current_dir(self.directory.path()).env_clear();
        shell.env("PATH", &self.path).env("HOME", self.directory.path());
        let output = shell.output().unwrap();
        let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        println!("{printed}{errors}");
        assert!(output.status.success(), "{}:\n{commands}\n{printed}{errors}", output.status);
        if let Some(expected) = expected {
            assert!(has_lines(&printed, expected), "expected:\n{expected}\nprinted:\n{printed}{errors}");
        }
        for line in commands.lines().filter(|line| line.starts_with("export ")) {
            add(&mut self.exports, line);
        }
        printed.into_owned()
    }
}

#[test]
fn steps_are_shell_blocks_with_the_output_that_follows() {
    let found = steps("a\n```sh\none\ntwo\n```\nx\n```text\nout\n```\n```console\nnever\n```\n```sh\nthree\n```\n");
    let found: Vec<(&str, Option<&str>)> =
        found.iter().map(|step| (step.commands.as_str(), step.expected.as_deref())).collect();
    assert_eq!(found, [("one\ntwo\n", Some("out\n")), ("three\n", None)]);
}

#[test]
fn output_has_to_be_as_written() {
    assert!(has_lines("x\na  1m\nb\n", "a  …\nb\n"));
    assert!(has_lines("a 5 b\n", "a … b\n"));
    for wrong in ["a\nc\n", "a … c\n", "a\n", "b\nx\n"] {
        assert!(!has_lines("x\na 1m\nb\n", wrong), "{wrong}");
    }
}
