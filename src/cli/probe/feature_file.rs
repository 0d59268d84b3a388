//! Replaces a file as a whole. Node Feature Discovery ignores files whose name starts with a dot.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

/// Writes the text to a file beside it, then renames that.
///
/// # Guarantees
/// A reader sees the old text or the new one. A link in the place of either file is replaced, not followed.
pub(super) fn replace(file: &Path, text: &str) -> io::Result<()> {
    let Some(name) = file.file_name() else { return Err(io::ErrorKind::InvalidFilename.into()) };
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    let beside = file.with_file_name(hidden);
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut open = OpenOptions::new().write(true).create_new(true).open(&beside)?;
    open.write_all(text.as_bytes())?;
    open.sync_all()?;
    fs::rename(&beside, file)
}
