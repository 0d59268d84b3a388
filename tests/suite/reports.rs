//! Reports of people who do this job, to other projects: what is in `tests/reports` comes out as agreed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::Deserialize;
use serde_json::Value;

use crate::shared::rendered;

const README: &str = "tests/README.md";

/// `tests/reports/NAME/report.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    /// The thread on GitHub, such as `kubernetes/kubernetes#8362`.
    source: String,
    kind: Kind,
    verdict: Verdict,
    /// The file in `docs/decisions` that says why it was decided otherwise.
    decision: Option<String>,
    /// What its users needed.
    need: String,
    /// Commands, which run one after the other in the same copy of the folder.
    runs: Vec<Run>,
}

/// What a report is about.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Publisher,
    TransientKey,
    KeyOfTheMachine,
    FirstPolicy,
    Device,
    File,
    Expression,
    Installer,
    Governance,
    Persistence,
    Registration,
    Cost,
    Message,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Held,
    Mended,
    Decided,
}

/// A command, and what must come of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    /// The arguments of `nodegate`, separated by spaces.
    command: String,
    /// The file that it gets as standard input.
    stdin: Option<String>,
    /// Variables of its environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The exit code.
    #[serde(default)]
    exit: i32,
    #[serde(default)]
    stdout: Parts<String>,
    #[serde(default)]
    stderr: Parts<String>,
    /// Standard output as JSON. An object stands for one with at least these fields, a list for one with at least these items, in
    /// any order. `[]` and `{}` stand for empty ones, and `null` for a field that is not there.
    #[serde(default)]
    json: Parts<Value>,
}

/// What must be there, and what must not.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts<T> {
    #[serde(default = "Vec::new")]
    has: Vec<T>,
    #[serde(default = "Vec::new")]
    lacks: Vec<T>,
}

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self { has: Vec::new(), lacks: Vec::new() }
    }
}

impl<T: std::fmt::Display> Parts<T> {
    /// What is wrong with something that has a part if `is_part` says so.
    fn faults(&self, whole: &str, is_part: impl Fn(&T) -> bool) -> Vec<String> {
        let missing = self.has.iter().filter(|part| !is_part(part)).map(|part| format!("{whole} lacks {part}"));
        let wrong = self.lacks.iter().filter(|part| is_part(part)).map(|part| format!("{whole} has {part}"));
        missing.chain(wrong).collect()
    }

    fn is_empty(&self) -> bool {
        self.has.is_empty() && self.lacks.is_empty()
    }
}

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Self::Publisher => "a publisher of labels that is away",
            Self::TransientKey => "what is somebody else's for a moment",
            Self::KeyOfTheMachine => "what belongs to one machine",
            Self::FirstPolicy => "a first policy",
            Self::Device => "devices",
            Self::File => "files as kubectl takes them",
            Self::Expression => "expressions",
            Self::Installer => "what an installer or kubelet asks for",
            Self::Governance => "who may write what",
            Self::Persistence => "saved state",
            Self::Registration => "labels of a kubelet's registration",
            Self::Cost => "prices",
            Self::Message => "messages",
        }
    }
}

impl Run {
    fn output(&self, directory: &Path) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(self.command.split_whitespace()).current_dir(directory).envs(&self.env).stdin(Stdio::null());
        if let Some(file) = &self.stdin {
            command.stdin(File::open(directory.join(file)).unwrap());
        }
        command.output().unwrap()
    }

    fn faults(&self, output: &Output) -> Vec<String> {
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let mut faults = Vec::new();
        if output.status.code() != Some(self.exit) {
            faults.push(format!("it ended with {}, not with exit code {}", output.status, self.exit));
        }
        faults.extend(self.stdout.faults("standard output", |part| stdout.contains(part)));
        faults.extend(self.stderr.faults("standard error", |part| stderr.contains(part)));
        if !self.json.is_empty() {
            match serde_json::from_str::<Value>(&stdout) {
                Ok(whole) => faults.extend(self.json.faults("standard output", |part| is_part_of(part, &whole))),
                Err(error) => faults.push(format!("standard output is not JSON: {error}")),
            }
        }
        if !faults.is_empty() {
            faults.push(format!("--- standard output\n{stdout}--- standard error\n{stderr}"));
        }
        faults
    }
}

/// Whether a document has this part (see [`Run::json`]).
fn is_part_of(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(fields), Value::Object(all)) => {
            let has = |(name, field): (&String, &Value)| is_part_of(field, all.get(name).unwrap_or(&Value::Null));
            fields.iter().all(has) && (!fields.is_empty() || all.is_empty())
        }
        (Value::Array(items), Value::Array(all)) => {
            let has = |item: &Value| all.iter().any(|other| is_part_of(item, other));
            items.iter().all(has) && (!items.is_empty() || all.is_empty())
        }
        _ => part == whole,
    }
}

fn reports() -> Vec<(String, PathBuf, Report)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reports");
    let mut found: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let directory = entry.unwrap().path();
            let name = directory.file_name().unwrap().to_str().unwrap().to_owned();
            let text = fs::read_to_string(directory.join("report.yaml"))
                .unwrap_or_else(|error| panic!("{name}/report.yaml: {error}"));
            let report: Report =
                serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}/report.yaml: {error}"));
            (name, directory, report)
        })
        .collect();
    found.sort_by(|(one, _, first), (other, _, second)| (first.kind, one).cmp(&(second.kind, other)));
    found
}

#[test]
fn every_report_comes_out_as_agreed() {
    let mut faults = Vec::new();
    for (name, directory, report) in reports() {
        let asks = |run: &Run| !(run.stdout.is_empty() && run.stderr.is_empty() && run.json.is_empty());
        assert!(report.runs.iter().any(asks), "{name}: no run says what must come out");
        let copy = tempfile::tempdir().unwrap();
        let copied = Command::new("cp").arg("-R").arg(directory.join(".")).arg(copy.path()).status().unwrap();
        assert!(copied.success(), "{name}");
        for run in &report.runs {
            let wrong = run.faults(&run.output(copy.path()));
            if !wrong.is_empty() {
                faults.push(format!("{name}: nodegate {}\n{}", run.command, wrong.join("\n")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// The row of a report in the table.
fn row(name: &str, report: &Report) -> String {
    let Report { source, kind, verdict, decision, need, runs: _ } = report;
    assert!(!need.contains(['|', '\n']), "{name}: `need` is one sentence on one line");
    let (project, number) = source.split_once('#').unwrap_or_else(|| panic!("{name}: {source} is no thread"));
    let verdict = match (verdict, decision) {
        (Verdict::Held, None) => "held".to_owned(),
        (Verdict::Mended, None) => "mended".to_owned(),
        (Verdict::Decided, Some(file)) => format!("[decided otherwise](../docs/decisions/{file})"),
        _ => panic!("{name}: `decision` names the reason of the verdict `decided`, and of no other"),
    };
    let link = format!("[{source}](https://github.com/{project}/issues/{number})");
    format!("| [{name}](reports/{name}/report.yaml) | {need} | {link} | {} | {verdict} |\n", kind.text())
}

#[test]
fn the_table_of_reports_has_them_all() {
    let mut table = "| case | what its users needed | source | kind | verdict |\n|---|---|---|---|---|\n".to_owned();
    for (name, _, report) in &reports() {
        table.push_str(&row(name, report));
    }
    rendered::table_is_committed(README, "reports", &table);
}

#[test]
fn a_part_of_a_document_is_told_from_what_is_none() {
    let whole = serde_json::json!({"nodes": [{"node": "a", "changes": []}, {"node": "b", "changes": [1]}], "n": 2});
    let is_part = |part: &str| is_part_of(&serde_saphyr::from_str::<Value>(part).unwrap(), &whole);
    for part in ["{n: 2}", "{nodes: [{node: b, changes: [1]}]}", "{nodes: [{node: a, changes: []}], x: null}"] {
        assert!(is_part(part), "{part}");
    }
    for part in
        ["{n: 3}", "{n: '2'}", "{n: null}", "{nodes: []}", "{nodes: [{node: b, changes: []}]}", "{x: 1}", "{}", "[]"]
    {
        assert!(!is_part(part), "{part}");
    }
}
