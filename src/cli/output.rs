//! What commands print. The only place that writes to the terminal.

use std::io::{self, Write as _};

/// Writes to standard output.
///
/// # Errors
/// If it is closed; see [`is_closed_pipe`].
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
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
    let _ = writeln!(io::stderr().lock(), "error: {error:#}");
}

/// Writes something that people should hear of, beside the result, to standard error.
pub(crate) fn note(text: &str) {
    // If standard error is closed too, nobody can be told.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// All load errors as one: each on its line.
pub(crate) fn load_errors(errors: &[crate::files::LoadError]) -> anyhow::Error {
    let lines: Vec<String> = errors.iter().map(|error| format!("\n  {error}")).collect();
    let what = if errors.len() == 1 { "fault" } else { "faults" };
    anyhow::anyhow!("the policies have {} {what}; none of them is in force{}", errors.len(), lines.concat())
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
    Ok(match format {
        Format::Yaml => serde_saphyr::to_string(value)?,
        Format::Json | Format::Table => format!("{}\n", serde_json::to_string_pretty(value)?),
    })
}

/// Paths in words.
pub(crate) fn paths(paths: &[std::path::PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// An empty table with these columns, in the one style of all commands.
pub(crate) fn table(columns: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(columns.iter().map(|column| column.to_uppercase()));
    table
}
