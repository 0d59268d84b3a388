//! `nodegate check`: finds faults in policies without nodes.

use std::path::PathBuf;

use serde::Serialize;

use crate::cli::Findings;
use crate::cli::shared::cluster::serve_flags::PendingTaintArgs;
use crate::cli::shared::output::{self, Format};
use nodegate_base::text::counted;
use nodegate_policy::{Lint, PendingKey, PolicyDocument, PolicyError, PolicySet};
use nodegate_stores::files::{LoadError, Sources};

/// Check policies for errors, and for what is probably not meant
///
/// It needs no nodes, and checks all files together. It exits with 2 if a policy has an error. -o json and -o yaml
/// print lists of errors and warnings, with file, line, column, field, message and help, and the name of each warning.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// NodePolicy files, or directories of them
    #[arg(value_name = "FILE", required = true)]
    policies: Vec<PathBuf>,
    #[command(flatten)]
    pending: PendingTaintArgs,
    /// Exit with 1 if there are warnings
    #[arg(long, alias = "exit-code")]
    strict: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The result. If there are errors, nothing else is known.
#[derive(Default, Serialize)]
struct Checked {
    policies: Vec<Policy>,
    /// The warnings as sentences.
    warnings: Vec<String>,
    /// The warnings.
    lints: Vec<CheckLint>,
    errors: Vec<CheckError>,
    #[serde(skip)]
    found: Vec<Lint>,
}

/// A warning about a policy.
#[derive(Serialize)]
struct CheckLint {
    /// Its kind.
    lint: String,
    #[serde(flatten)]
    fault: CheckError,
}

/// An error or a warning about a policy. What does not apply to it is omitted.
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
            LoadError::Policy(error) => Self::of_policy(error),
        }
    }

    fn of_policy(error: &PolicyError) -> Self {
        let PolicyError { file, place, policy, entry: _, path, problem, related: _, text: _ } = error;
        Self {
            file: file.clone(),
            line: place.map(|place| place.line),
            column: place.map(|place| place.column),
            policy: policy.clone(),
            field: path.to_string(),
            message: problem.what.clone(),
            help: problem.remedy.clone(),
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

pub(in crate::cli) fn run(args: &CheckArgs) -> anyhow::Result<Findings> {
    let sources = Sources { policies: args.policies.clone(), ..Sources::default() };
    let checked = match (sources.load(), args.output) {
        (Ok(set), _) => Checked::of(&set, &args.pending.pending_taint_key),
        (Err(errors), Format::Table) => return Err(output::load_errors(&errors)),
        (Err(errors), format) => {
            let checked = Checked { errors: errors.iter().map(CheckError::of).collect(), ..Checked::default() };
            output::print(&output::structured(format, &checked)?)?;
            return Err(output::load_errors(&errors));
        }
    };
    output::show(args.output, &checked, |checked| checked)?;
    Ok(if args.strict && !checked.warnings.is_empty() { Findings::Some } else { Findings::None })
}

impl Checked {
    fn of(set: &PolicySet, pending: &PendingKey) -> Self {
        let policy = |document: &PolicyDocument| Policy {
            name: document.name.clone(),
            rules: document.spec.rules.len(),
            entries: set.entry_count(&document.name),
        };
        let mut policies: Vec<Policy> = set.documents().iter().map(policy).collect();
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        let found = set.lints_with(pending);
        let lint =
            |Lint { name, fault }: &Lint| CheckLint { lint: name.to_string(), fault: CheckError::of_policy(fault) };
        let warnings = found.iter().map(|lint| lint.fault.to_string()).collect();
        Self { policies, warnings, lints: found.iter().map(lint).collect(), errors: Vec::new(), found }
    }
}

impl output::Shown for &Checked {
    fn print(self) -> anyhow::Result<()> {
        let mut table = output::table(&["policy", "rules", "governance entries"]);
        for policy in &self.policies {
            table.add_row([&policy.name, &policy.rules.to_string(), &policy.entries.to_string()]);
        }
        let sum = match self.warnings.len() {
            0 => "no errors\n".to_owned(),
            count => format!("no errors, {}\n", counted(count, "warning", "warnings")),
        };
        output::print(&format!("{}\n\n", table.trim_fmt()))?;
        output::print_warnings(&self.found)?;
        output::print(&sum)
    }
}
