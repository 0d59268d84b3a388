//! Errors in policy files and flat label files.

use std::fmt;
use std::path::{Path, PathBuf};

use nodegate_policy::PolicyError;

/// An error in a file or in a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read, or is not a valid label file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, if the error is in a line.
        line: Option<u32>,
        /// The reason.
        why: String,
    },
    /// A policy has an error.
    Policy(PolicyError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line: Some(line), why } => write!(f, "{}:{line}: {why}", path.display()),
            Self::File { path, line: None, why } => write!(f, "{}: {why}", path.display()),
            Self::Policy(error) => error.fmt(f),
        }
    }
}

impl LoadError {
    pub(super) fn new(path: &Path, why: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), line: None, why: why.into() }
    }

    pub(super) fn at_line(path: &Path, line: u32, why: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), line: Some(line), why: why.into() }
    }
}
