//! `nodegate test`: unit tests of policies.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::output::{self, Format};
use super::simulate::{Scene, Simulated, identity, node_name, simulate};
use super::{Findings, nodes};
use crate::api::case::{Case, ChangeCase, Expectation, PolicyTest, SavedCase, VerdictCase};
use crate::api::names::{TaintEffect, TaintId};
use crate::api::policy::EntryMode;
use crate::api::schema::{check, schema_of};
use crate::api::source::{FieldPath, parse_documents};
use crate::api::state::{Owned, SavedState, SavedTaint};
use crate::files::{LoadError, Sources};
use crate::policy::{Exemptions, Origin, PolicyDocument, PolicySet, Verdict};

/// Run policy tests: cases of policy, node and requester with what must come of them.
///
/// Exit code 1 when a case fails. A case file looks like this:
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
    /// Case files, or directories in which every *.yaml of kind PolicyTest is one
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// One case's result.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CaseResult {
    file: String,
    case: String,
    passed: bool,
    /// What differs, a line each.
    differences: Vec<String>,
}

pub(super) fn run(args: &TestArgs) -> anyhow::Result<Findings> {
    let mut files = Vec::new();
    for path in &args.paths {
        let before = files.len();
        collect(path, &mut files)?;
        anyhow::ensure!(files.len() > before, "{}: has no PolicyTest; write one, or do not name it", path.display());
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

/// Reads a case file, or every case file below a directory.
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
                    fault.message
                )
            })
            .collect();
        anyhow::ensure!(lines.is_empty(), "the case file has faults{}", lines.concat());
        let test: PolicyTest = serde_json::from_value(tree.to_json()).with_context(|| path.display().to_string())?;
        anyhow::ensure!(test.kind == "PolicyTest", "{}: kind is {:?}, expected PolicyTest", path.display(), test.kind);
        let is_empty = test.cases.is_empty() && test.expect_errors.is_empty();
        anyhow::ensure!(!is_empty, "{}: tests nothing; write cases or expectErrors", path.display());
        files.push((path.to_owned(), test));
    }
    Ok(())
}

fn is_test(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line.trim_end() == "kind: PolicyTest"))
}

fn load(file: &Path, test: &PolicyTest) -> Result<PolicySet, Vec<String>> {
    let beside = |path: &String| file.parent().unwrap_or(Path::new(".")).join(path);
    let texts = |errors: Vec<LoadError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let Some(policy) = &test.policy else {
        let sources = Sources {
            policies: test.policies.iter().map(beside).collect(),
            labels_dir: test.labels_dir.as_ref().map(beside),
            ..Sources::default()
        };
        return sources.load().map_err(texts);
    };
    // Written in the test file: a list of policies, or the spec of one.
    let documents = match policy {
        Json::Array(documents) => documents.clone(),
        spec => vec![
            json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "test"}, "spec": spec}),
        ],
    };
    let mut errors = Vec::new();
    let parse = |document: &Json| PolicyDocument::parse_all(&Origin::Object, &document.to_string(), &mut errors);
    let documents: Vec<PolicyDocument> = documents.iter().flat_map(parse).collect();
    let compiled = PolicySet::compile(&documents);
    errors.extend(compiled.as_ref().err().cloned().unwrap_or_default());
    match compiled {
        Ok(set) if errors.is_empty() => Ok(set),
        _ => Err(errors.iter().map(ToString::to_string).collect()),
    }
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
        let missing = test.expect_errors.iter().filter(|text| !errors.iter().any(|error| error.contains(*text)));
        let mut differences: Vec<String> = missing.map(|text| format!("no error contains {text:?}")).collect();
        if !differences.is_empty() {
            differences.extend(errors.iter().map(|error| format!("error: {error}")));
        }
        return Ok(vec![result("the policies are refused", differences)]);
    }
    let set = loaded
        .map_err(|errors| anyhow::anyhow!("{}: the policies have faults\n  {}", file.display(), errors.join("\n  ")))?;
    test.cases
        .iter()
        .map(|case| {
            let scene = scene(file, case).with_context(|| format!("{}: case {:?}", file.display(), case.name))?;
            let simulated = simulate(&set, &scene, &Exemptions::default())?;
            Ok(result(&case.name, differences(&case.expect, &simulated)))
        })
        .collect()
}

fn scene(file: &Path, case: &Case) -> anyhow::Result<Scene> {
    let node = match (&case.node, &case.node_file) {
        (Some(node), None) => nodes::complete(node)?,
        (None, Some(path)) => nodes::read_one(&file.parent().unwrap_or(Path::new(".")).join(path))?,
        _ => anyhow::bail!("write either node or nodeFile"),
    };
    let requester = case.requester.as_deref().unwrap_or("kubelet");
    let (username, groups) = identity(requester, node_name(&node), &case.groups);
    let saved = case.saved.as_ref().map(|saved| saved_state(saved, node_name(&node))).transpose()?;
    let (node, old) = match &case.change {
        Some(change) => (changed(&node, change)?, Some(node)),
        None => (node, None),
    };
    let pending_taint = match case.controller {
        Some(true) => Some(TaintId { key: "nodegate.dev/pending".parse()?, effect: TaintEffect::NoSchedule }),
        _ => None,
    };
    Ok(Scene { node, old, status: case.status.unwrap_or_default(), username, groups, saved, pending_taint })
}

fn saved_state(saved: &SavedCase, node: &str) -> anyhow::Result<SavedState> {
    let taint = |text: &String| -> anyhow::Result<SavedTaint> { Ok(serde_json::from_value(nodes::taint(text)?)?) };
    Ok(SavedState {
        node_name: node.to_owned(),
        labels: saved.labels.clone(),
        taints: saved.taints.iter().map(taint).collect::<Result<_, _>>()?,
        owned: (!saved.owned_labels.is_empty())
            .then(|| Owned { labels: saved.owned_labels.clone(), ..Owned::default() }),
        ..SavedState::default()
    })
}

fn changed(node: &Json, change: &ChangeCase) -> anyhow::Result<Json> {
    let mut node = node.clone();
    for (key, value) in &change.labels {
        node["metadata"]["labels"][key] = json!(value);
    }
    for (key, value) in &change.annotations {
        node["metadata"]["annotations"][key] = json!(value);
    }
    if let Some(labels) = node["metadata"]["labels"].as_object_mut() {
        labels.retain(|key, _| !change.remove_labels.contains(key));
    }
    if let Some(taints) = &change.taints {
        node["spec"]["taints"] =
            taints.iter().map(|text| nodes::taint(text)).collect::<anyhow::Result<Vec<_>>>()?.into();
    }
    if let Some(id) = &change.provider_id {
        node["spec"]["providerID"] = json!(id);
    }
    Ok(node)
}

fn differences(expect: &Expectation, simulated: &Simulated) -> Vec<String> {
    let (decision, node) = (&simulated.decision, &simulated.node);
    let mut found = Vec::new();
    let mut differ = |what: String, expected: &str, actual: Option<&str>| {
        if actual != Some(expected) {
            found.push(format!(
                "{what}: expected {expected:?}, is {}",
                actual.map_or("absent".to_owned(), |actual| format!("{actual:?}"))
            ));
        }
    };
    for (key, value) in &expect.labels {
        differ(format!("label {key}"), value, node["metadata"]["labels"][key].as_str());
    }
    for (key, value) in &expect.annotations {
        differ(format!("annotation {key}"), value, node["metadata"]["annotations"][key].as_str());
    }
    let taints = nodes::taints(node);
    for taint in &expect.taints {
        let there = nodes::taint(taint).is_ok_and(|taint| taints.contains(&nodes::taint_text(&taint)));
        differ(format!("taint {taint}"), "there", there.then_some("there"));
    }
    for key in &expect.absent {
        let label = node["metadata"]["labels"].get(key).or_else(|| node["metadata"]["annotations"].get(key));
        let taint = taints.iter().find(|taint| taint.split(['=', ':']).next() == Some(key));
        if let Some(there) = label.map(ToString::to_string).or_else(|| taint.cloned()) {
            differ(key.clone(), "absent", Some(&there));
        }
    }
    if let Some(expected) = &expect.deferred {
        let expected: BTreeSet<String> = expected.iter().cloned().collect();
        let actual: BTreeSet<String> = decision.deferred.iter().flat_map(nodes::keys).collect();
        differ("deferred".to_owned(), &format!("{expected:?}"), Some(&format!("{actual:?}")));
    }
    for (what, expected, actual) in
        [("pending", expect.pending, decision.pending), ("patch", expect.patch, decision.change.is_some())]
    {
        if let Some(expected) = expected {
            differ(what.to_owned(), &expected.to_string(), Some(&actual.to_string()));
        }
    }
    for text in &expect.notes {
        let notes: Vec<String> = decision.notes.iter().map(ToString::to_string).collect();
        let there = notes.iter().any(|note| note.contains(text));
        differ(format!("a note that contains {text:?} among {notes:?}"), "there", there.then_some("there"));
    }
    if let Some(expected) = expect.verdict {
        differ("verdict".to_owned(), &format!("{expected:?}"), Some(&format!("{:?}", verdict(&simulated.verdict))));
    }
    if let Some(text) = &expect.message {
        let denial = simulated.verdict.denial();
        let each = simulated.verdict.violations.iter().map(|violation| violation.message.as_str());
        let messages: Vec<&str> = each.chain(denial.as_deref()).collect();
        let there = messages.iter().any(|message| message.contains(text));
        differ(format!("a message that contains {text:?} among {messages:?}"), "there", there.then_some("there"));
    }
    found
}

fn verdict(verdict: &Verdict) -> VerdictCase {
    if verdict.denial().is_some() {
        return VerdictCase::Deny;
    }
    match verdict.violations.iter().map(|violation| violation.mode).max() {
        None => VerdictCase::Allow,
        Some(EntryMode::Audit) => VerdictCase::Audit,
        Some(_) => VerdictCase::Warn,
    }
}
