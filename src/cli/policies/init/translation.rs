//! `nodegate init --from-kyverno` and `--from-nfd`: a policy from the rules of other programs.

use std::path::PathBuf;

use anyhow::{anyhow, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::document::SetValue;
use super::{InitArgs, place, text};
use crate::cli::Findings;
use crate::cli::shared::faults::Faults;
use crate::cli::shared::invocation::Invocation;
use crate::cli::shared::{node_files, output};
use nodegate_base::text::{counted, on_a_line};
use nodegate_policy::translate::{Place, Program, TranslateError, Translation, translate};

/// What came of the rules of another program.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TranslationSummary {
    /// The files that were written; empty if no rule was translated.
    files: Vec<String>,
    /// The rules of the policy.
    rules: Vec<TranslatedRule>,
    /// The number of test cases.
    cases: usize,
    /// The rules that stay where they are.
    left_out: Vec<RuleLeftOut>,
}

/// A rule of the policy.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TranslatedRule {
    /// Its name in the policy.
    rule: String,
    /// The original.
    from: Original,
    /// The labels, annotations and taints that it sets.
    sets: Vec<SetValue>,
}

/// A rule that is not in the policy.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RuleLeftOut {
    /// The original.
    from: Original,
    /// The reasons, by line.
    reasons: Vec<LeftOutReason>,
}

/// A rule of another program.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Original {
    /// The file.
    file: String,
    /// The number of the document in the file, from 1.
    document: usize,
    /// The kind and the name of the object.
    object: String,
    /// The number of the rule in the object, from 1.
    number: usize,
    /// The name of the rule; empty if it has none.
    rule: String,
    /// The line of the rule.
    line: u32,
}

/// Why a rule is left out.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LeftOutReason {
    /// The line.
    line: u32,
    /// The reason.
    reason: String,
}

impl From<&Place> for Original {
    fn from(place: &Place) -> Self {
        let Place { file, document, object, number, rule, line } = place.clone();
        Self { file, document, object, number, rule, line }
    }
}

impl TranslationSummary {
    fn of(translation: &Translation) -> Self {
        let rules = translation.translated.iter().map(|one| TranslatedRule {
            rule: one.rule.name.clone(),
            from: Original::from(&one.place),
            sets: SetValue::of_rule(&one.rule),
        });
        let left_out = translation.left_out.iter().map(|one| RuleLeftOut {
            from: Original::from(&one.place),
            reasons: one.reasons.iter().map(|of| LeftOutReason { line: of.line, reason: of.text.clone() }).collect(),
        });
        let cases = translation.cases.len();
        Self { files: Vec::new(), rules: rules.collect(), cases, left_out: left_out.collect() }
    }
}

/// Translates the rules in files.
pub(super) fn run(
    args: &InitArgs,
    program: Program,
    paths: &[PathBuf],
    invocation: Invocation,
) -> anyhow::Result<Findings> {
    let files = texts(paths)?;
    let translation = translate(program, &files).map_err(|error| match error {
        TranslateError::Files(errors) => {
            let read = counted(files.len(), "file was", "files were");
            anyhow::Error::new(Faults::in_file(errors, format!("{read} not translated")))
        }
        TranslateError::Together(..) => anyhow!(
            "{error}; no file was written. Leave some of the rules out of the files, but keep those together that set or read the same keys"
        ),
    })?;
    let mut summary = TranslationSummary::of(&translation);
    if summary.rules.is_empty() && summary.left_out.is_empty() {
        bail!("found no rule that changes nodes, so no file was written; pass the files with such rules");
    }
    if summary.rules.is_empty() {
        output::show(args.output, &summary, |summary: &TranslationSummary| table(summary, invocation.program()))?;
        return Err(anyhow!(
            "no rule has an exact translation, so no file was written; leave the rules where they are, or write a policy by hand"
        ));
    }
    let policy = translation.policy_yaml(&args.name, "nodepolicy.schema.json")?;
    let test = translation.test_yaml("policy.yaml", "policytest.schema.json")?;
    summary.files = place(args, policy, test)?;
    output::show(args.output, &summary, |summary: &TranslationSummary| table(summary, invocation.program()))?;
    Ok(Findings::None)
}

/// The texts of files, and of the files in directories, with their names.
fn texts(paths: &[PathBuf]) -> anyhow::Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    for path in paths {
        let files = if path.is_dir() { node_files::of_directory(path)? } else { vec![path.clone()] };
        for file in files {
            texts.push(node_files::text(&file)?);
        }
    }
    Ok(texts)
}

/// The summary as text. `program` is how the commands that it names are called.
fn table(summary: &TranslationSummary, program: &str) -> String {
    let TranslationSummary { files, rules, cases, left_out } = summary;
    let mut text = String::new();
    if !rules.is_empty() {
        let mut table = output::table(&["rule", "from", "sets"]);
        for TranslatedRule { rule, from, sets } in rules {
            table.add_row([
                rule,
                &whereabouts(from, from.line),
                &text::first(&sets.iter().map(text::set).collect::<Vec<_>>()),
            ]);
        }
        text.push_str(&format!("{}\n\n", table.trim_fmt()));
    }
    if !left_out.is_empty() {
        let mut table = output::table(&["left out", "rule", "where", "reason"]);
        for (number, RuleLeftOut { from, reasons }) in left_out.iter().enumerate() {
            let name = if from.rule.is_empty() { &from.object } else { &from.rule };
            for LeftOutReason { line, reason } in reasons {
                table.add_row([&(number + 1).to_string(), name, &whereabouts(from, *line), reason]);
            }
        }
        text.push_str(&format!("{}\n\n", table.trim_fmt()));
    }
    let stay = match left_out.len() {
        0 => String::new(),
        some => format!("; {}", counted(some, "rule stays where it is", "rules stay where they are")),
    };
    let [policy, test, ..] = files.as_slice() else { return format!("{text}translated no rule{stay}\n") };
    let (policy, test) = (on_a_line(policy), on_a_line(test));
    text.push_str(&format!(
        "wrote {policy} ({}) and {test} ({}){stay}\n\n\
         Next, review the rules in {policy}, run its tests, and see what it changes:\n  \
         {program} test {test}\n  \
         kubectl get nodes -o json | {program} plan --policy {policy} -\n",
        counted(rules.len(), "rule", "rules"),
        counted(*cases, "case", "cases")
    ));
    text
}

fn whereabouts(from: &Original, line: u32) -> String {
    format!("{}:{line}", from.file)
}
