//! A certificate directory: `tls.crt`, `tls.key`, and if nodegate issued them also `ca.crt`, `ca.key`.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::tls::certificates::authority::Authority;
use crate::tls::certificates::issue::{self, IssueError};
use crate::tls::certificates::pair::{Pair, PairError};
use crate::tls::certificates::pem::{Pem, all_certificates};
use crate::tls::certificates::subject_name::SubjectName;

/// Who manages the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryOwner {
    /// nodegate: the directory contains `ca.key`, and leaves are renewed.
    Nodegate,
    /// An external issuer: files are only read.
    Other,
}

/// Why a certificate directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A file could not be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The files are not a valid pair.
    #[error("{} and tls.key: {error}; replace them with a matching pair, or empty the directory so that nodegate creates one", certificate.display())]
    Pair {
        /// The certificate file.
        certificate: PathBuf,
        /// The reason.
        error: PairError,
    },
    /// The CA's files are not a valid pair.
    #[error("{} and ca.key: {error}; restore both, or remove both and tls.crt and tls.key so that nodegate creates a new CA", certificate.display())]
    Ca {
        /// The CA's certificate file.
        certificate: PathBuf,
        /// The reason.
        error: PairError,
    },
    /// The CA has expired, and callers must trust a new one.
    #[error("{}: the CA expired at {not_after}; remove ca.crt, ca.key, tls.crt and tls.key so that nodegate creates new ones, and register the new ca.crt", certificate.display())]
    CaExpired {
        /// The CA's certificate file.
        certificate: PathBuf,
        /// When it expired.
        not_after: Timestamp,
    },
    /// The directory contains files, but no pair.
    #[error("{}: the directory contains files, but no tls.crt and tls.key; add both, or use an empty directory so that nodegate creates them", directory.display())]
    Foreign {
        /// Certificate directory
        directory: PathBuf,
    },
    /// A certificate could not be issued.
    #[error(transparent)]
    Issue(#[from] IssueError),
}

/// A certificate directory.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    names: Vec<SubjectName>,
    owner: DirectoryOwner,
}

impl Directory {
    /// Opens a directory. If it is missing or empty, creates it and its files.
    ///
    /// Renews an issued leaf if less than a third of its lifetime is left, or if it lacks a name or is missing; the
    /// CA is kept. Files from an external issuer are only read.
    ///
    /// # Errors
    /// Returns an error if files cannot be read or written, or do not match.
    pub fn open(path: &Path, names: &[SubjectName], now: Timestamp) -> Result<(Self, Pair), DirectoryError> {
        let mut directory = Self { path: path.to_owned(), names: names.to_vec(), owner: DirectoryOwner::Other };
        if directory.is_empty()? {
            fs::create_dir_all(path).map_err(|error| directory.file("", error))?;
            let ca = issue::ca(now)?;
            directory.prepare("ca.key", &ca.key, 0o600)?;
            directory.prepare("ca.crt", &ca.certificate, 0o644)?;
            directory.place("ca.key")?;
            directory.place("ca.crt")?;
        } else if directory.has("ca.key") && !directory.has("ca.crt") && directory.has(&prepared("ca.crt")) {
            // The process that created the CA was ended between the last two steps.
            directory.place("ca.crt")?;
        }
        if directory.has("ca.key") {
            directory.owner = DirectoryOwner::Nodegate;
            directory.renew_if_due(now)?;
        } else if !directory.has("tls.crt") && !directory.has("tls.key") {
            return Err(DirectoryError::Foreign { directory: path.to_owned() });
        }
        let pair = directory.read()?;
        Ok((directory, pair))
    }

    /// Opens a directory with a certificate. Changes nothing.
    ///
    /// # Errors
    /// Returns an error if a file is missing or incomplete, or the two do not match.
    pub fn existing(path: &Path) -> Result<(Self, Pair), DirectoryError> {
        let mut directory = Self { path: path.to_owned(), names: Vec::new(), owner: DirectoryOwner::Other };
        if directory.has("ca.key") {
            directory.owner = DirectoryOwner::Nodegate;
        }
        let pair = directory.read()?;
        Ok((directory, pair))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who manages it.
    pub fn owner(&self) -> DirectoryOwner {
        self.owner
    }

    /// Reads the current pair.
    ///
    /// # Errors
    /// Returns an error if a file is missing or incomplete, or the two do not match.
    pub fn read(&self) -> Result<Pair, DirectoryError> {
        let (certificate, key) = (self.read_file("tls.crt")?, self.read_file("tls.key")?);
        Pair::from_pem(&certificate, &key)
            .map_err(|error| DirectoryError::Pair { certificate: self.path.join("tls.crt"), error })
    }

    /// The CAs in `ca.crt`, with which callers verify the certificate; empty if the directory has no such file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or if a certificate in it is damaged.
    pub fn authorities(&self) -> Result<Vec<Authority>, DirectoryError> {
        if !self.has("ca.crt") {
            return Ok(Vec::new());
        }
        let fault = |why: String| self.file("ca.crt", io::Error::new(io::ErrorKind::InvalidData, why));
        let certificates = all_certificates(&self.read_file("ca.crt")?).map_err(|error| fault(error.to_string()))?;
        certificates.iter().map(|certificate| Authority::read(certificate).map_err(fault)).collect()
    }

    /// Renews the leaf from the stored CA if it is due, damaged or lacks a name. Returns whether it did. Directories
    /// of an external issuer are not changed.
    ///
    /// # Errors
    /// Returns an error if the CA cannot be used, or files cannot be written.
    pub fn renew_if_due(&self, now: Timestamp) -> Result<bool, DirectoryError> {
        if self.owner == DirectoryOwner::Other {
            return Ok(false);
        }
        if self.read().is_ok_and(|pair| !pair.is_due(now) && pair.covers(&self.names)) {
            return Ok(false);
        }
        self.renew(now)?;
        Ok(true)
    }

    /// Issues a new leaf from the stored CA.
    ///
    /// # Errors
    /// Returns an error if the CA cannot be used, or files cannot be written.
    pub fn renew(&self, now: Timestamp) -> Result<(), DirectoryError> {
        let certificate = self.path.join("ca.crt");
        let (ca_certificate, ca_key) = (self.read_file("ca.crt")?, self.read_file("ca.key")?);
        let checked = Pair::from_pem(&ca_certificate, &ca_key)
            .map_err(|error| DirectoryError::Ca { certificate: certificate.clone(), error })?;
        if checked.not_after() <= now {
            return Err(DirectoryError::CaExpired { certificate, not_after: checked.not_after() });
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let ca = Pem { certificate: text(ca_certificate), key: text(ca_key) };
        let leaf = issue::leaf(&ca, checked.not_after(), &self.names, now)?;
        // A reader between the two writes finds files that do not match, and keeps the last good pair.
        self.write("tls.key", &leaf.key, 0o600)?;
        self.write("tls.crt", &leaf.certificate, 0o644)
    }

    /// Whether the directory contains only READMEs and hidden files.
    fn is_empty(&self) -> Result<bool, DirectoryError> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(self.file("", error)),
        };
        for entry in entries {
            let name = entry.map_err(|error| self.file("", error))?.file_name();
            let name = name.to_string_lossy();
            if !name.starts_with('.') && !name.starts_with("README") {
                return Ok(false);
            }
        }
        // A mounted Secret contains only hidden entries while it is being filled, and `..data` afterwards.
        Ok(!self.path.join("..data").exists())
    }

    fn read_file(&self, name: &str) -> Result<Vec<u8>, DirectoryError> {
        fs::read(self.path.join(name)).map_err(|error| self.file(name, error))
    }

    fn has(&self, name: &str) -> bool {
        self.path.join(name).exists()
    }

    /// Replaces a file atomically. The mode is set from the start.
    fn write(&self, name: &str, text: &str, mode: u32) -> Result<(), DirectoryError> {
        self.prepare(name, text, mode)?;
        self.place(name)
    }

    /// Writes a file under a hidden name.
    fn prepare(&self, name: &str, text: &str, mode: u32) -> Result<(), DirectoryError> {
        let temporary = self.path.join(prepared(name));
        let fault = |error| self.file(name, error);
        let _ = fs::remove_file(&temporary);
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).map_err(fault)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fault)
    }

    /// Gives a prepared file its name.
    fn place(&self, name: &str) -> Result<(), DirectoryError> {
        fs::rename(self.path.join(prepared(name)), self.path.join(name)).map_err(|error| self.file(name, error))
    }

    fn file(&self, name: &str, error: io::Error) -> DirectoryError {
        DirectoryError::File { path: if name.is_empty() { self.path.clone() } else { self.path.join(name) }, error }
    }
}

/// The hidden name of a file that is not complete yet.
fn prepared(name: &str) -> String {
    format!(".{name}.new")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(texts: &[&str]) -> Vec<SubjectName> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn days(days: i64) -> jiff::SignedDuration {
        jiff::SignedDuration::from_hours(days * 24)
    }

    #[test]
    fn an_empty_directory_gets_a_ca_and_a_leaf_with_private_keys() {
        let temporary = tempfile::tempdir().unwrap();
        fs::write(temporary.path().join("README.md"), "x").unwrap();
        let now = Timestamp::now();
        let (directory, pair) =
            Directory::open(temporary.path(), &names(&["localhost", "127.0.0.1", "::1", "a.example"]), now).unwrap();
        assert_eq!(directory.owner(), DirectoryOwner::Nodegate);
        assert_eq!(pair.names(), ["localhost", "127.0.0.1", "::1", "a.example"]);
        assert_eq!(now.as_second() - pair.not_before().as_second(), 3600);
        assert_eq!(pair.not_after().as_second() - now.as_second(), issue::LEAF_HOURS * 3600);
        for key in ["ca.key", "tls.key"] {
            assert_eq!(fs::metadata(temporary.path().join(key)).unwrap().permissions().mode() & 0o777, 0o600, "{key}");
        }
    }

    #[test]
    fn a_ca_that_was_not_completed_is_completed_and_one_without_its_certificate_is_an_error() {
        let temporary = tempfile::tempdir().unwrap();
        let open = || Directory::open(temporary.path(), &names(&["localhost"]), Timestamp::now());
        open().unwrap();
        let at = |name: &str| temporary.path().join(name);
        let ca = fs::read(at("ca.crt")).unwrap();
        fs::rename(at("ca.crt"), at(".ca.crt.new")).unwrap();
        for leaf in ["tls.crt", "tls.key"] {
            fs::remove_file(at(leaf)).unwrap();
        }
        open().unwrap();
        assert_eq!(fs::read(at("ca.crt")).unwrap(), ca);
        for name in ["ca.crt", "tls.crt", "tls.key"] {
            fs::remove_file(at(name)).unwrap();
        }
        let error = open().unwrap_err().to_string();
        assert!(error.contains("ca.crt"), "{error}");
    }

    #[test]
    fn a_due_leaf_is_renewed_from_the_kept_ca() {
        let temporary = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let (directory, first) = Directory::open(temporary.path(), &names(&["localhost"]), now).unwrap();
        let ca = fs::read(temporary.path().join("ca.crt")).unwrap();
        assert!(!directory.renew_if_due(now + days(59)).unwrap());
        let later = now + days(61);
        assert!(directory.renew_if_due(later).unwrap());
        let second = directory.read().unwrap();
        assert!(second.not_after() > first.not_after());
        assert_eq!(fs::read(temporary.path().join("ca.crt")).unwrap(), ca);
    }

    #[test]
    fn a_leaf_that_lacks_a_name_is_renewed() {
        let temporary = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        Directory::open(temporary.path(), &names(&["localhost"]), now).unwrap();
        let (_, pair) = Directory::open(temporary.path(), &names(&["localhost", "b.example"]), now).unwrap();
        assert_eq!(pair.names(), ["localhost", "b.example"]);
    }

    #[test]
    fn files_of_an_external_issuer_are_only_read() {
        let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let now = Timestamp::now();
        Directory::open(ours.path(), &names(&["localhost"]), now).unwrap();
        for name in ["tls.crt", "tls.key"] {
            fs::copy(ours.path().join(name), theirs.path().join(name)).unwrap();
        }
        let (directory, _) = Directory::open(theirs.path(), &names(&["other.example"]), now).unwrap();
        assert_eq!(directory.owner(), DirectoryOwner::Other);
        assert!(!directory.renew_if_due(now + jiff::SignedDuration::from_hours(24 * 365)).unwrap());
        assert_eq!(fs::read_dir(theirs.path()).unwrap().count(), 2);
        fs::remove_file(theirs.path().join("tls.key")).unwrap();
        let error = Directory::open(theirs.path(), &[], now).unwrap_err().to_string();
        assert!(error.contains("tls.key"), "{error}");
    }

    #[test]
    fn an_expired_ca_is_an_error_that_says_what_to_do() {
        let temporary = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        Directory::open(temporary.path(), &names(&["localhost"]), now).unwrap();
        let later = now + jiff::SignedDuration::from_hours(issue::CA_HOURS + 1);
        let error = Directory::open(temporary.path(), &names(&["localhost"]), later).unwrap_err();
        assert!(matches!(error, DirectoryError::CaExpired { .. }), "{error}");
    }
}
