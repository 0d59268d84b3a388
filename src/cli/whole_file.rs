//! Files that are replaced whole or not at all, even if the command is ended while it writes or the disk is full.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// A new file in a directory, to which the caller gives its name. Its own name begins with a dot, and it is removed unless it
/// gets another one. Others may read it, as the umask permits.
///
/// # Errors
/// Returns an error if it cannot be written.
pub(super) fn unnamed(directory: &Path, text: &str) -> io::Result<NamedTempFile> {
    let mode = Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new().prefix(".nodegate-").permissions(mode).tempfile_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Replaces a file, with these permissions if the umask shall not decide. A link in its place is replaced, not followed.
///
/// # Errors
/// Returns an error if the file cannot be written; it has then not changed.
pub(super) fn replace(file: &Path, text: &str, permissions: Option<Permissions>) -> io::Result<()> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = unnamed(directory, text)?;
    if let Some(permissions) = permissions {
        written.as_file().set_permissions(permissions)?;
    }
    written.persist(file)?;
    Ok(())
}
