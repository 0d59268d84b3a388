//! `nodegate check`: finds faults in policies without nodes.

use std::path::PathBuf;

use serde::Serialize;

use super::Findings;
use super::output::{self, Format};
use crate::files::Sources;
use crate::text::on_a_line;
use nodegate_policy::{PolicyDocument, PolicySet};

/// Check policies without nodes: errors, and warnings about rules of different policies that conflict.
///
/// All files are checked together, as they would be in force. A policy with an error makes the command exit with 2.
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

/// The result for policies without errors.
#[derive(Serialize)]
struct Checked {
    policies: Vec<Policy>,
    warnings: Vec<String>,
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
    let set = sources.load().map_err(|errors| output::load_errors(&errors))?;
    let checked = Checked::of(&set);
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
        let not_acted_on = set.not_acted_on().iter().map(|section| format!("{section} has no effect in this version"));
        Self { policies, warnings: set.possible_conflicts().into_iter().chain(not_acted_on).collect() }
    }

    fn text(&self) -> String {
        let mut table = output::table(&["policy", "rules", "governance entries"]);
        for policy in &self.policies {
            table.add_row([&policy.name, &policy.rules.to_string(), &policy.entries.to_string()]);
        }
        let warnings = self.warnings.iter().map(|warning| format!("warning: {}\n", on_a_line(warning)));
        let sum = match self.warnings.len() {
            0 => "no errors\n".to_owned(),
            1 => "no errors, 1 warning\n".to_owned(),
            count => format!("no errors, {count} warnings\n"),
        };
        format!("{}\n\n{}{sum}", table.trim_fmt(), warnings.collect::<String>())
    }
}
