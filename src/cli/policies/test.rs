//! `nodegate test`: unit tests of policies.

use std::path::{Path, PathBuf};

use anstyle::AnsiColor;
use anyhow::Context as _;
use serde::Serialize;

use crate::cli::shared::faults::Faults;
use crate::cli::shared::output::{self, Format};
use crate::cli::shared::terminal_lines::Lines;
use crate::cli::{Findings, shared::node_files};
use nodegate_base::text::counted;
use nodegate_policy::PolicySet;
use nodegate_policy::api::case::TestFile;
use nodegate_policy::api::source::decode;
use nodegate_policy::simulate::{compile_in_place, faulty_nodes, missing_errors, node_of, run_case};
use nodegate_stores::files::{LoadError, Sources};

/// Run policy tests
///
/// A case has a policy, a node, a requester and the expected outcome. Exits with 1 if a case fails. A case file looks like this:
///
///   apiVersion: nodegate.dev/v1alpha1
///   kind: PolicyTest
///   policies: [policy.yaml]
///   cases:
///     - name: the worker gets its label
///       node: {name: w1, labels: {node-role.kubernetes.io/worker: ""}}
///       as: admin
///       expect: {labels: {llm-d-lab-deployer: "true"}, verdict: allow}
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct TestArgs {
    /// Case files, or directories whose *.yaml files of kind PolicyTest are run
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The result of one case.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CaseResult {
    file: String,
    case: String,
    passed: bool,
    /// The differences from the expectation, one per line.
    differences: Vec<String>,
}

pub(in crate::cli) fn run(args: &TestArgs) -> anyhow::Result<Findings> {
    let mut files = Vec::new();
    for path in &args.paths {
        let before = files.len();
        collect(path, &mut files)?;
        anyhow::ensure!(
            files.len() > before,
            "{}: contains no PolicyTest; add one, or remove the path from the command",
            path.display()
        );
    }
    let mut results = Vec::new();
    for (file, test) in &files {
        results.extend(run_file(file, test)?);
    }
    let failed = results.iter().filter(|result| !result.passed).count();
    output::show(args.output, &results, |results| table(results, output::has_colors()))?;
    Ok(if failed == 0 { Findings::None } else { Findings::Some })
}

fn table(results: &[CaseResult], colors: bool) -> Lines {
    let mut lines = Lines::new(colors);
    let mut file = "";
    for result in results {
        if result.file != file {
            file = &result.file;
            lines.add("", file);
        }
        let (color, outcome) = if result.passed { (AnsiColor::Green, "ok  ") } else { (AnsiColor::Red, "FAIL") };
        lines.add_colored("  ", color, outcome, &format!("  {}", result.case));
        result.differences.iter().for_each(|line| lines.add("          ", line));
    }
    let failed = results.iter().filter(|result| !result.passed).count();
    let color = if failed == 0 { AnsiColor::Green } else { AnsiColor::Red };
    lines.add_colored("", color, &format!("{} passed, {failed} failed", results.len() - failed), "");
    lines
}

/// Reads a case file, or all case files in a directory and its subdirectories.
fn collect(path: &Path, files: &mut Vec<(PathBuf, TestFile)>) -> anyhow::Result<()> {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
        let mut below: Vec<PathBuf> = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
        below.sort();
        for path in below {
            let yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
            if path.is_dir() || (yaml && is_test(&path)) {
                collect(&path, files)?;
            } else {
                tracing::debug!(file = %path.display(), "skipped, because it contains no PolicyTest");
            }
        }
        return Ok(());
    }
    let text = read(path).with_context(|| path.display().to_string())?;
    let mut errors = Vec::new();
    let tests = TestFile::parse_all(&path.display().to_string(), &text, &mut errors);
    tests.iter().for_each(|file| faulty_nodes(file, &mut errors));
    if !errors.is_empty() {
        let count = counted(errors.len(), "error", "errors");
        return Err(Faults::in_file(errors, format!("found {count} in the test file; no case was run")).into());
    }
    for file in tests {
        let is_empty = file.test.cases.is_empty() && file.test.expect_errors.is_empty();
        anyhow::ensure!(!is_empty, "{}: the PolicyTest has no cases; add cases or expectErrors", path.display());
        files.push((path.to_owned(), file));
    }
    Ok(())
}

fn is_test(path: &Path) -> bool {
    read(path).is_ok_and(|text| text.lines().any(|line| line.trim_end() == "kind: PolicyTest"))
}

fn read(path: &Path) -> anyhow::Result<String> {
    Ok(decode(std::fs::read(path)?)?)
}

/// A path that a case file names.
fn beside(file: &Path, path: &str) -> PathBuf {
    file.parent().unwrap_or(Path::new(".")).join(path)
}

fn load(path: &Path, file: &TestFile) -> Result<PolicySet, Vec<LoadError>> {
    if let Some(compiled) = compile_in_place(file) {
        return compiled.map_err(|errors| errors.into_iter().map(LoadError::Policy).collect());
    }
    let sources = Sources {
        policies: file.test.policies.iter().map(|policy| beside(path, policy)).collect(),
        labels_dir: file.test.labels_dir.as_ref().map(|directory| beside(path, directory)),
        ..Sources::default()
    };
    sources.load()
}

fn run_file(path: &Path, file: &TestFile) -> anyhow::Result<Vec<CaseResult>> {
    let test = &file.test;
    let result = |case: &str, differences: Vec<String>| CaseResult {
        file: path.display().to_string(),
        case: case.to_owned(),
        passed: differences.is_empty(),
        differences,
    };
    let loaded = load(path, file);
    if !test.expect_errors.is_empty() {
        let errors: Vec<String> = loaded.err().unwrap_or_default().iter().map(ToString::to_string).collect();
        let missing = missing_errors(test, &errors).into_iter();
        let mut differences: Vec<String> = missing.map(|text| format!("no error contains {text:?}")).collect();
        if !differences.is_empty() {
            differences.extend(errors.iter().map(|error| format!("error: {error}")));
        }
        return Ok(vec![result("the policies are refused", differences)]);
    }
    let set = loaded.map_err(|errors| {
        let count = counted(errors.len(), "error", "errors");
        Faults::new(errors, format!("found {count} in the policies of {}; no case was run", path.display()))
    })?;
    test.cases
        .iter()
        .map(|case| {
            let place = || format!("{}: case {:?}", path.display(), case.name);
            let node = match (node_of(case).with_context(place)?, &case.node_file) {
                (None, Some(node)) => node_files::read_one(&beside(path, node)).with_context(place)?,
                (node, _) => node.unwrap_or_default(),
            };
            Ok(result(&case.name, run_case(&set, case, node).with_context(place)?))
        })
        .collect()
}
