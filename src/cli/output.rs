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

/// All load errors as one: each on its line.
pub(crate) fn load_errors(errors: &[crate::files::LoadError]) -> anyhow::Error {
    let lines: Vec<String> = errors.iter().map(|error| format!("\n  {error}")).collect();
    let what = if errors.len() == 1 { "fault" } else { "faults" };
    anyhow::anyhow!("the policies have {} {what}; none of them is in force{}", errors.len(), lines.concat())
}
