//! What commands print. The only place that writes to the terminal: what a terminal would act upon instead of showing it is
//! escaped here, whoever wrote it.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write as _};

use crate::kube_error::with_context;
use crate::text::{lines, on_a_line};

/// Writes to standard output.
///
/// # Errors
/// If it is closed; see [`is_closed_pipe`].
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(lines(text).as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Whether the reader of our output has gone (`nodegate … | head`), which is no failure.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes an error and its causes to standard error.
pub(crate) fn error(error: &anyhow::Error) {
    // If standard error is closed too, nobody can be told.
    let _ = writeln!(io::stderr().lock(), "error: {}", lines(&with_context(error)));
}

/// Writes something that people should hear of, beside the result, to standard error.
pub(crate) fn note(text: &str) {
    // If standard error is closed too, nobody can be told.
    let _ = writeln!(io::stderr().lock(), "{}", lines(text));
}

/// All load errors as one: each on its line.
pub(crate) fn load_errors(errors: &[crate::files::LoadError]) -> anyhow::Error {
    let told: Vec<String> = errors.iter().map(|error| format!("\n  {}", on_a_line(&error.to_string()))).collect();
    let what = if errors.len() == 1 { "fault" } else { "faults" };
    anyhow::anyhow!("the policies have {} {what}; none of them is in force{}", errors.len(), told.concat())
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// A value as JSON or YAML.
///
/// # Errors
/// If it cannot be written, which is a fault of ours.
pub(crate) fn structured(format: Format, value: &impl serde::Serialize) -> anyhow::Result<String> {
    let json = || anyhow::Ok(format!("{}\n", serde_json::to_string_pretty(value)?));
    Ok(match format {
        Format::Yaml => {
            let yaml = serde_saphyr::to_string(value)?;
            // An escaped character means itself within double quotes only, and JSON is YAML that has no others.
            match lines(&yaml) {
                Cow::Borrowed(_) => yaml,
                Cow::Owned(_) => json()?,
            }
        }
        Format::Json | Format::Table => json()?,
    })
}

/// A table in the one style of all commands. Each cell is a line of its own.
pub(crate) struct Table(comfy_table::Table);

/// An empty table with these columns.
pub(crate) fn table(columns: &[&str]) -> Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(columns.iter().map(|column| column.to_uppercase()));
    Table(table)
}

impl Table {
    /// Adds a row. A newline in a cell is escaped, so that no cell looks like a row.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        self.0.add_row(cells.into_iter().map(|cell| on_a_line(cell.as_ref()).into_owned()));
    }

    /// Adds a row whose cells have as many lines as they have items.
    pub(crate) fn add_row_of_lines(&mut self, cells: impl IntoIterator<Item = Vec<String>>) {
        let cell = |of: Vec<String>| of.iter().map(|line| on_a_line(line).into_owned()).collect::<Vec<_>>().join("\n");
        self.0.add_row(cells.into_iter().map(cell));
    }

    /// The table without spaces at the ends of lines.
    pub(crate) fn trim_fmt(&self) -> String {
        self.0.trim_fmt()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
