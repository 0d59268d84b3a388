//! Reads small files below a root. Whoever made the tree may have put anything there: links that lead out of it, pipes, files
//! without an end.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Maximum length of a file, in bytes. The attributes that are read here have at most 20.
const FILE_MAX: u64 = 4096;
/// Maximum number of entries of a directory.
const ENTRIES_MAX: usize = 65_536;

/// Why something below the root could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SysfsError {
    /// It does not exist.
    Missing,
    /// It is a link that leads out of the tree.
    Outside,
    /// It is a directory, a pipe or a device.
    NotAFile,
    /// It is longer than such a file can be.
    TooLong,
    /// A directory has too many entries.
    TooMany,
    /// It is not UTF-8.
    NotText,
    /// It is not the number that belongs there.
    NotANumber,
    /// The name is not one that the kernel gives.
    Name,
    /// The operating system refuses.
    Refused(io::ErrorKind),
}

impl fmt::Display for SysfsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("does not exist"),
            Self::Outside => f.write_str("leads out of the tree"),
            Self::NotAFile => f.write_str("is not a file"),
            Self::TooLong => write!(f, "is longer than {FILE_MAX} bytes"),
            Self::TooMany => write!(f, "has more than {ENTRIES_MAX} entries"),
            Self::NotText => f.write_str("is not UTF-8"),
            Self::NotANumber => f.write_str("is not a number of the expected form"),
            Self::Name => f.write_str("does not have a name that the kernel gives"),
            Self::Refused(kind) => write!(f, "cannot be read: {kind}"),
        }
    }
}

impl From<io::Error> for SysfsError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            kind => Self::Refused(kind),
        }
    }
}

/// A tree with the layout of sysfs.
///
/// # Guarantees
/// It reads nothing that is not below its root at the time of the check, and of no file more than a page. Whoever can change
/// the tree while it is read can circumvent the check.
pub(super) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// # Errors
    /// Returns an error if the root is not a directory, or has no directory `bus`: an empty directory, where a mount is missing,
    /// would be a machine without devices.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        if !root.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        if !root.join("bus").is_dir() {
            return Err(io::Error::other("it has no directory bus, so it is not a sysfs"));
        }
        Ok(Self { root })
    }

    /// The names in a directory, sorted; none if there is no such directory.
    pub(super) fn entries(&self, directory: &Path) -> Result<Vec<OsString>, SysfsError> {
        let found = match self.resolve(directory) {
            Err(SysfsError::Missing) => return Ok(Vec::new()),
            found => found?,
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(found)? {
            if names.len() == ENTRIES_MAX {
                return Err(SysfsError::TooMany);
            }
            names.push(entry?.file_name());
        }
        names.sort();
        Ok(names)
    }

    /// The text of a file.
    pub(super) fn text(&self, file: &Path) -> Result<String, SysfsError> {
        let path = self.resolve(file)?;
        // Opening a pipe would wait for its writer.
        if !path.metadata()?.is_file() {
            return Err(SysfsError::NotAFile);
        }
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_MAX {
            return Err(SysfsError::TooLong);
        }
        String::from_utf8(bytes).map_err(|_| SysfsError::NotText)
    }

    /// Where a path leads, without links.
    pub(super) fn resolve(&self, path: &Path) -> Result<PathBuf, SysfsError> {
        let found = self.root.join(path).canonicalize()?;
        if found.starts_with(&self.root) { Ok(found) } else { Err(SysfsError::Outside) }
    }

    /// The last part of a link's target, without following it; `None` if it is not a link.
    pub(super) fn link_name(&self, path: &Path) -> Option<String> {
        let target = fs::read_link(self.root.join(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// A hexadecimal number of so many digits, such as `0x10de`; the `0x` may be left out.
    pub(super) fn hexadecimal(&self, file: &Path, digits: usize) -> Result<u32, SysfsError> {
        let text = self.text(file)?;
        let text = text.trim_end();
        let number = text.strip_prefix("0x").unwrap_or(text);
        if number.len() != digits || !number.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(SysfsError::NotANumber);
        }
        u32::from_str_radix(number, 16).map_err(|_| SysfsError::NotANumber)
    }

    /// A decimal number; `None` if the file is not there.
    pub(super) fn decimal(&self, file: &Path) -> Result<Option<u64>, SysfsError> {
        match self.text(file) {
            Err(SysfsError::Missing) => Ok(None),
            text => text?.trim_end().parse().map(Some).map_err(|_| SysfsError::NotANumber),
        }
    }
}
