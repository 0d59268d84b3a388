//! The output of commands. Only this module writes to the terminal. It escapes every character that a terminal would
//! interpret instead of showing.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use annotate_snippets::Renderer;
use anstream::{AutoStream, ColorChoice};
use anyhow::Context as _;

use crate::cli::shared::faults::{Faults, warning};
use crate::cli::shared::terminal_lines::Lines;
use nodegate_base::kube_error::with_context;
use nodegate_base::text::{lines, on_a_line};
use nodegate_policy::Lint;
use nodegate_stores::files::LoadError;

/// Writes to standard output. A reader that has closed it (`nodegate … | head`) is no error, and the exit code still says
/// what was found.
///
/// # Errors
/// Returns an error if standard output cannot be written, for example to a full disk.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    unless_closed(print_while_read(text))
}

/// As [`print`], for lines that are escaped already.
///
/// # Errors
/// See [`print`].
pub(crate) fn print_lines(text: &Lines) -> anyhow::Result<()> {
    unless_closed(write_escaped(text.as_str()))
}

/// Prints warnings about policies to standard output.
///
/// # Errors
/// See [`print`].
pub(crate) fn print_warnings(lints: &[Lint]) -> anyhow::Result<()> {
    let renderer = renderer(AutoStream::choice(&io::stdout()));
    unless_closed(lints.iter().try_for_each(|lint| write_escaped(&format!("{}\n\n", warning(&renderer, lint)))))
}

/// Whether standard output shows colors: it is a terminal, and the environment (`NO_COLOR`, `TERM`) allows them.
pub(crate) fn has_colors() -> bool {
    shows_colors(AutoStream::choice(&io::stdout()))
}

fn unless_closed(printed: anyhow::Result<()>) -> anyhow::Result<()> {
    printed.or_else(|error| if is_closed_pipe(&error) { Ok(()) } else { Err(error) })
}

/// As [`print`], for a command that prints while it works, and need not go on if nobody reads.
///
/// # Errors
/// Also returns an error if the reader has closed standard output; see [`is_closed_pipe`].
pub(crate) fn print_while_read(text: &str) -> anyhow::Result<()> {
    write_escaped(&lines(text))
}

/// Writes a text in which everything is escaped already.
fn write_escaped(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("could not write to standard output")
}

/// Whether the reader of standard output has closed it, which is not an error.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes an error and its causes to standard error.
pub(crate) fn error(error: &anyhow::Error) {
    let text = match error.downcast_ref::<Faults>() {
        Some(faults) => faults.render(&renderer(AutoStream::choice(&io::stderr()))),
        None => indented(&format!("error: {}", with_context(error))),
    };
    // If standard error is closed too, there is nowhere left to report this.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// How faults are drawn: with colors only on a terminal, and if the environment (`NO_COLOR`, `TERM`) allows them.
fn renderer(colors: ColorChoice) -> Renderer {
    if shows_colors(colors) { Renderer::styled() } else { Renderer::plain() }
}

fn shows_colors(colors: ColorChoice) -> bool {
    match colors {
        ColorChoice::Never => false,
        ColorChoice::Auto | ColorChoice::AlwaysAnsi | ColorChoice::Always => true,
    }
}

/// Writes a note that does not belong to the result to standard error.
pub(crate) fn note(text: &str) {
    block(&indented(text));
}

/// The notes that wait until the whole screen is not in use anymore; `None` if it is not in use.
static HELD: Mutex<Option<BTreeSet<String>>> = Mutex::new(None);
/// How many different ones are kept.
const HELD_MAX: usize = 20;

fn held() -> MutexGuard<'static, Option<BTreeSet<String>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps notes back, each once, because a view has the whole screen.
pub(crate) fn hold_notes() {
    held().get_or_insert_default();
}

/// Writes the notes that were kept back.
pub(crate) fn release_notes() {
    let notes = held().take();
    notes.into_iter().flatten().for_each(|note| block(&note));
}

/// Writes lines that do not belong to the result to standard error.
pub(crate) fn block(text: &str) {
    if let Some(notes) = &mut *held() {
        if notes.len() < HELD_MAX {
            notes.insert(text.to_owned());
        }
        return;
    }
    // If standard error is closed too, there is nowhere left to report this.
    let _ = writeln!(io::stderr().lock(), "{}", lines(text));
}

/// The text escaped, with all lines but the first indented. So a line break in a file name cannot look like another message.
fn indented(text: &str) -> String {
    lines(text).replace('\n', "\n  ")
}

/// Combines all load errors into one error.
pub(crate) fn load_errors(errors: &[LoadError]) -> anyhow::Error {
    Faults::of_policies(errors).into()
}

/// The output format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A table for people.
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// What people read of a result.
pub(crate) trait Shown {
    /// Prints it.
    ///
    /// # Errors
    /// See [`print`].
    fn print(self) -> anyhow::Result<()>;
}

impl Shown for String {
    fn print(self) -> anyhow::Result<()> {
        print(&self)
    }
}

impl Shown for Lines {
    fn print(self) -> anyhow::Result<()> {
        print_lines(&self)
    }
}

/// Prints the result of a command in a format: `text` makes what people read of it.
///
/// # Errors
/// See [`print`] and [`structured`].
pub(crate) fn show<'r, T: serde::Serialize, S: Shown>(
    format: Format,
    result: &'r T,
    text: impl FnOnce(&'r T) -> S,
) -> anyhow::Result<()> {
    match format {
        Format::Table => text(result).print(),
        format => print(&structured(format, result)?),
    }
}

/// A value as JSON or YAML.
///
/// # Errors
/// Returns an error if the value cannot be serialized, which is a bug in nodegate.
pub(crate) fn structured(format: Format, value: &impl serde::Serialize) -> anyhow::Result<String> {
    let json = || anyhow::Ok(format!("{}\n", serde_json::to_string_pretty(value)?));
    Ok(match format {
        Format::Yaml => {
            let yaml = serde_saphyr::to_string(value)?;
            // YAML interprets escape sequences only inside double quotes. JSON is YAML in which every string has
            // double quotes.
            match lines(&yaml) {
                Cow::Borrowed(_) => yaml,
                Cow::Owned(_) => json()?,
            }
        }
        Format::Json | Format::Table => json()?,
    })
}

/// A table in the style that all commands share. Each cell is one line.
pub(crate) struct Table(comfy_table::Table);

/// An empty table with these columns.
pub(crate) fn table(columns: &[&str]) -> Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(columns.iter().map(|column| column.to_uppercase()));
    Table(table)
}

impl Table {
    /// Adds a row. Newlines in a cell are escaped, so that a cell cannot look like another row.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        self.0.add_row(cells.into_iter().map(|cell| on_a_line(cell.as_ref()).into_owned()));
    }

    /// Adds a row whose cells have one line per item.
    pub(crate) fn add_row_of_lines(&mut self, cells: impl IntoIterator<Item = Vec<String>>) {
        let cell = |of: Vec<String>| of.iter().map(|line| on_a_line(line).into_owned()).collect::<Vec<_>>().join("\n");
        self.0.add_row(cells.into_iter().map(cell));
    }

    /// Wraps the cells, but not those of the columns `whole`, so that the table is at most this wide, in characters.
    pub(crate) fn fit(&mut self, width: u16, whole: &[usize]) {
        self.0.set_content_arrangement(comfy_table::ContentArrangement::Dynamic).set_width(width);
        for column in whole {
            if let Some(column) = self.0.column_mut(*column) {
                column.set_constraint(comfy_table::ColumnConstraint::ContentWidth);
            }
        }
    }

    /// The table without trailing spaces.
    pub(crate) fn trim_fmt(&self) -> String {
        self.0.trim_fmt()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_paragraph_whatever_is_in_it() {
        assert_eq!(indented("error: a\nerror: b\u{1b}"), "error: a\n  error: b\\u001b");
    }
}
