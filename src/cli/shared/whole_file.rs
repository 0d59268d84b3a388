//! Files that are replaced whole or not at all, even if the command is ended while it writes or the disk is full.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

/// A new file in a directory, to which the caller gives its name. Its own name begins with a dot, and it is removed unless it
/// gets another one. Others may read it, as the umask permits.
///
/// # Errors
/// Returns an error if it cannot be written.
pub(in crate::cli) fn unnamed(directory: &Path, text: &str) -> io::Result<NamedTempFile> {
    let mode = Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new().prefix(".nodegate-").permissions(mode).tempfile_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Those of these files that are there already.
pub(in crate::cli) fn there(files: &[(PathBuf, String)]) -> Vec<String> {
    let there = files.iter().filter(|(path, _)| path.symlink_metadata().is_ok());
    there.map(|(path, _)| path.display().to_string()).collect()
}

/// Puts files with these texts into a directory, which has to be there. If the command is ended, or the disk full, while it
/// writes, none of them is half.
///
/// # Errors
/// Names the file that cannot be written, or that is there although `replaces` is not set.
pub(in crate::cli) fn place_all(directory: &Path, files: &[(PathBuf, String)], replaces: bool) -> anyhow::Result<()> {
    let mut written = Vec::new();
    for (path, text) in files {
        written.push(unnamed(directory, text).with_context(|| path.display().to_string())?);
    }
    for ((path, _), file) in files.iter().zip(written) {
        let placed = match replaces {
            true => file.persist(path),
            // Whatever appears between a check and now is not overwritten either.
            false => file.persist_noclobber(path),
        };
        placed.map_err(|error| error.error).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Replaces a file, with these permissions if the umask shall not decide. A link in its place is replaced, not followed.
///
/// # Errors
/// Returns an error if the file cannot be written; it has then not changed.
pub(in crate::cli) fn replace(file: &Path, text: &str, permissions: Option<Permissions>) -> io::Result<()> {
    put(beside(file, text)?, file, permissions)
}

/// Replaces a file as [`replace`] does, and keeps who may read and write it if it is the user's own. Whoever may write to the folder
/// could put a file there that everybody may write, or that is setuid.
///
/// # Errors
/// As [`replace`].
pub(in crate::cli) fn replace_alike(file: &Path, text: &str) -> io::Result<()> {
    let written = beside(file, text)?;
    let own = written.as_file().metadata()?.uid();
    let before = fs::symlink_metadata(file).ok().filter(|before| before.is_file() && before.uid() == own);
    put(written, file, before.map(|before| Permissions::from_mode(before.mode() & 0o666)))
}

fn beside(file: &Path, text: &str) -> io::Result<NamedTempFile> {
    unnamed(file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")), text)
}

fn put(written: NamedTempFile, file: &Path, permissions: Option<Permissions>) -> io::Result<()> {
    if let Some(permissions) = permissions {
        written.as_file().set_permissions(permissions)?;
    }
    written.persist(file)?;
    Ok(())
}

/// A pipe or a device such as `/dev/stdout`, which has to be written to, not replaced; `None` if the file is none.
///
/// # Errors
/// Returns an error if it cannot be opened.
pub(in crate::cli) fn stream(file: &Path) -> io::Result<Option<File>> {
    if fs::metadata(file).is_ok_and(|found| is_stream(&found)) { open_stream(file) } else { Ok(None) }
}

/// Does not trust an earlier look: by now a link to any file of the user may be there, which is neither created nor cut.
fn open_stream(file: &Path) -> io::Result<Option<File>> {
    let opened = OpenOptions::new().write(true).open(file)?;
    let is_stream = is_stream(&opened.metadata()?);
    Ok(is_stream.then_some(opened))
}

fn is_stream(found: &Metadata) -> bool {
    found.file_type().is_fifo() || found.file_type().is_char_device()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_takes_the_place_of_a_pipe_changes_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let (other, link) = (directory.path().join("other"), directory.path().join("link"));
        fs::write(&other, "of others").unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        assert!(stream(&link).unwrap().is_none() && open_stream(&link).unwrap().is_none());
        assert_eq!(fs::read_to_string(&other).unwrap(), "of others");
        fs::remove_file(&other).unwrap();
        assert!(open_stream(&link).is_err() && !other.exists());
        assert!(open_stream(Path::new("/dev/null")).unwrap().is_some());
    }

    #[test]
    fn a_file_keeps_its_mode_only_if_it_is_the_users_own() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let mode_after = |mode| {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            replace_alike(&file, "new").unwrap();
            fs::metadata(&file).unwrap().mode() & 0o7777
        };
        fs::write(&file, "old").unwrap();
        assert_eq!((mode_after(0o600), mode_after(0o664), mode_after(0o4777)), (0o600, 0o664, 0o666));
        // Only root can give files away.
        if std::os::unix::fs::chown(&file, Some(65_534), None).is_ok() {
            assert_eq!(mode_after(0o4777) & 0o7022, 0);
        }
    }
}
