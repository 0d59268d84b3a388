//! `nodegate test`: unit tests of policies.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;

use super::output::{self, Format};
use super::{Findings, nodes};
use crate::files::{LoadError, Sources};
use nodegate_policy::PolicySet;
use nodegate_policy::api::case::PolicyTest;
use nodegate_policy::api::schema::{check, schema_of};
use nodegate_policy::api::source::{FieldPath, parse_documents};
use nodegate_policy::simulate::{compile_inline, missing_errors, node_of, run_case};

/// Run policy tests: cases with a policy, a node, a requester and the expected outcome
///
/// Exits with 1 if a case fails. A case file looks like this:
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

pub(super) fn run(args: &TestArgs) -> anyhow::Result<Findings> {
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
    match args.output {
        Format::Table => output::print(&table(&results))?,
        format => output::print(&output::structured(format, &results)?)?,
    }
    Ok(if failed == 0 { Findings::None } else { Findings::Some })
}

fn table(results: &[CaseResult]) -> String {
    let mut text = String::new();
    let mut file = "";
    for result in results {
        if result.file != file {
            file = &result.file;
            text.push_str(&format!("{file}\n"));
        }
        text.push_str(&format!("  {}  {}\n", if result.passed { "ok  " } else { "FAIL" }, result.case));
        text.extend(result.differences.iter().map(|line| format!("          {line}\n")));
    }
    let failed = results.iter().filter(|result| !result.passed).count();
    text.push_str(&format!("{} passed, {failed} failed\n", results.len() - failed));
    text
}

/// Reads a case file, or all case files in a directory and its subdirectories.
fn collect(path: &Path, files: &mut Vec<(PathBuf, PolicyTest)>) -> anyhow::Result<()> {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
        let mut below: Vec<PathBuf> = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
        below.sort();
        for path in below {
            let yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
            if path.is_dir() || (yaml && is_test(&path)) {
                collect(&path, files)?;
            }
        }
        return Ok(());
    }
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let trees = parse_documents(&text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    for mut tree in trees {
        let mut faults = Vec::new();
        check(&mut tree, &schema_of::<PolicyTest>(), &FieldPath::root(), &mut faults);
        let lines: Vec<String> = faults
            .iter()
            .map(|fault| {
                format!(
                    "\n  {}:{}:{}: {}: {}",
                    path.display(),
                    fault.place.line,
                    fault.place.column,
                    fault.path,
                    fault.problem
                )
            })
            .collect();
        anyhow::ensure!(lines.is_empty(), "the case file is invalid:{}", lines.concat());
        let test: PolicyTest = serde_json::from_value(tree.to_json()).with_context(|| path.display().to_string())?;
        anyhow::ensure!(test.kind == "PolicyTest", "{}: kind is {:?}, expected PolicyTest", path.display(), test.kind);
        let is_empty = test.cases.is_empty() && test.expect_errors.is_empty();
        anyhow::ensure!(!is_empty, "{}: the PolicyTest has no cases; add cases or expectErrors", path.display());
        files.push((path.to_owned(), test));
    }
    Ok(())
}

fn is_test(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line.trim_end() == "kind: PolicyTest"))
}

/// A path that a case file names.
fn beside(file: &Path, path: &str) -> PathBuf {
    file.parent().unwrap_or(Path::new(".")).join(path)
}

fn load(file: &Path, test: &PolicyTest) -> Result<PolicySet, Vec<String>> {
    let texts = |errors: Vec<LoadError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let Some(policy) = &test.policy else {
        let sources = Sources {
            policies: test.policies.iter().map(|path| beside(file, path)).collect(),
            labels_dir: test.labels_dir.as_ref().map(|path| beside(file, path)),
            ..Sources::default()
        };
        return sources.load().map_err(texts);
    };
    compile_inline(policy).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn run_file(file: &Path, test: &PolicyTest) -> anyhow::Result<Vec<CaseResult>> {
    let result = |case: &str, differences: Vec<String>| CaseResult {
        file: file.display().to_string(),
        case: case.to_owned(),
        passed: differences.is_empty(),
        differences,
    };
    let loaded = load(file, test);
    if !test.expect_errors.is_empty() {
        let errors = loaded.err().unwrap_or_default();
        let missing = missing_errors(test, &errors).into_iter();
        let mut differences: Vec<String> = missing.map(|text| format!("no error contains {text:?}")).collect();
        if !differences.is_empty() {
            differences.extend(errors.iter().map(|error| format!("error: {error}")));
        }
        return Ok(vec![result("the policies are refused", differences)]);
    }
    let set = loaded.map_err(|errors| {
        anyhow::anyhow!("{}: the policies are invalid:\n  {}", file.display(), errors.join("\n  "))
    })?;
    test.cases
        .iter()
        .map(|case| {
            let place = || format!("{}: case {:?}", file.display(), case.name);
            let node = match (node_of(case).with_context(place)?, &case.node_file) {
                (None, Some(path)) => nodes::read_one(&beside(file, path)).with_context(place)?,
                (node, _) => node.unwrap_or_default(),
            };
            Ok(result(&case.name, run_case(&set, case, node).with_context(place)?))
        })
        .collect()
}
