//! `nodegate check`: finds faults in policies without nodes.

use std::path::PathBuf;

use serde::Serialize;

use super::Findings;
use super::output::{self, Format};
use crate::files::{LoadError, Sources};
use crate::text::{counted, on_a_line};
use nodegate_policy::{PolicyDocument, PolicySet};

/// Check policies without nodes: errors, and warnings about rules of different policies that conflict.
///
/// All files are checked together, as they would be in force. A policy with an error makes the command exit with 2. Each
/// error is shown with its line; -o json and -o yaml print the errors as a list, each with file, line, column, field,
/// message and help.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// NodePolicy files, or directories of them
    #[arg(value_name = "FILE", required = true)]
    policies: Vec<PathBuf>,
    /// Exit with 1 if there are warnings
    #[arg(long)]
    exit_code: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The result. If there are errors, nothing else is known.
#[derive(Serialize)]
struct Checked {
    policies: Vec<Policy>,
    warnings: Vec<String>,
    errors: Vec<CheckError>,
}

/// An error in a policy. What does not apply to it is omitted.
#[derive(Serialize)]
struct CheckError {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    /// The path of the field, such as `spec.rules[0].labels.tier`.
    #[serde(skip_serializing_if = "String::is_empty")]
    field: String,
    /// What is wrong.
    message: String,
    /// What to write instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
}

impl CheckError {
    fn of(error: &LoadError) -> Self {
        match error {
            LoadError::File { path, line, why } => Self {
                file: Some(path.display().to_string()),
                line: *line,
                column: None,
                policy: None,
                field: String::new(),
                message: why.clone(),
                help: None,
            },
            LoadError::Policy(error) => Self {
                file: error.file.clone(),
                line: error.place.map(|place| place.line),
                column: error.place.map(|place| place.column),
                policy: error.policy.clone(),
                field: error.path.to_string(),
                message: error.problem.what.clone(),
                help: error.problem.remedy.clone(),
            },
        }
    }
}

/// A policy that was checked. Presets are policies, too.
#[derive(Serialize)]
struct Policy {
    name: String,
    /// The number of its rules.
    rules: usize,
    /// The number of its governance entries.
    entries: usize,
}

pub(super) fn run(args: &CheckArgs) -> anyhow::Result<Findings> {
    let sources = Sources { policies: args.policies.clone(), ..Sources::default() };
    let checked = match (sources.load(), args.output) {
        (Ok(set), _) => Checked::of(&set),
        (Err(errors), Format::Table) => return Err(output::load_errors(&errors)),
        (Err(errors), format) => {
            let (policies, warnings) = (Vec::new(), Vec::new());
            let checked = Checked { policies, warnings, errors: errors.iter().map(CheckError::of).collect() };
            output::print(&output::structured(format, &checked)?)?;
            return Err(output::load_errors(&errors));
        }
    };
    output::print(&match args.output {
        Format::Table => checked.text(),
        format => output::structured(format, &checked)?,
    })?;
    Ok(if args.exit_code && !checked.warnings.is_empty() { Findings::Some } else { Findings::None })
}

impl Checked {
    fn of(set: &PolicySet) -> Self {
        let policy = |document: &PolicyDocument| Policy {
            name: document.name.clone(),
            rules: document.spec.rules.len(),
            entries: set.entry_count(&document.name),
        };
        let mut policies: Vec<Policy> = set.documents().iter().map(policy).collect();
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        let warnings = set.mistyped_resources().into_iter().chain(set.possible_conflicts()).collect();
        Self { policies, warnings, errors: Vec::new() }
    }

    fn text(&self) -> String {
        let mut table = output::table(&["policy", "rules", "governance entries"]);
        for policy in &self.policies {
            table.add_row([&policy.name, &policy.rules.to_string(), &policy.entries.to_string()]);
        }
        let warnings = self.warnings.iter().map(|warning| format!("warning: {}\n", on_a_line(warning)));
        let sum = match self.warnings.len() {
            0 => "no errors\n".to_owned(),
            count => format!("no errors, {}\n", counted(count, "warning", "warnings")),
        };
        format!("{}\n\n{}{sum}", table.trim_fmt(), warnings.collect::<String>())
    }
}
