//! Reading everything there is and compiling it, with every fault of every file reported at once.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::labels;
use crate::api::policy::{NodePolicySpec, PersistSpec};
use crate::policy::{self, Origin, PolicyDocument, PolicyError, PolicySet};

/// Largest file that is read, in bytes.
const FILE_MAX: u64 = 16 * 1024 * 1024;

/// Where policies come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Files, and directories of `*.yaml`, `*.yml` and `*.json` files.
    pub policies: Vec<PathBuf>,
    /// A directory of flat label files.
    pub labels_dir: Option<PathBuf>,
    /// Grace between "no source label" and the removal of a label that a flat label file gave.
    pub labels_grace: Duration,
    /// One more prefix whose labels are persisted (`PERSIST_LABEL_PREFIX`).
    pub persist_prefix: Option<String>,
}

/// Policies that were read and compile.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// What the files contained, for [`super::watch`].
    pub fingerprint: u64,
    /// What was read, presets left out.
    pub documents: Vec<PolicyDocument>,
    /// Whether no source was named, so that the preset `baseline` stands in.
    pub stands_in: bool,
    /// All of it, compiled.
    pub set: PolicySet,
}

/// A fault in a file or in a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read, or is no label file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, if one is at fault.
        line: Option<u32>,
        /// What is wrong.
        why: String,
    },
    /// A policy has a fault.
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

impl Sources {
    /// Whether nothing was given, so that the preset `baseline` is in force.
    pub fn are_empty(&self) -> bool {
        self.policies.is_empty() && self.labels_dir.is_none()
    }

    /// Reads and compiles everything. Blocks on files.
    ///
    /// # Errors
    /// Every fault of every file; nothing of it may then be put in force.
    pub fn load(&self) -> Result<PolicySet, Vec<LoadError>> {
        self.load_documents().map(|loaded| loaded.set)
    }

    /// As [`Self::load`], with the documents the set was compiled from.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_documents(&self) -> Result<Loaded, Vec<LoadError>> {
        // Taken first: what changes while we read is seen as a change.
        let fingerprint = self.fingerprint();
        let mut errors = Vec::new();
        let mut policy_errors = Vec::new();
        let mut documents = Vec::new();
        if self.are_empty() {
            documents.push(policy::baseline());
        }
        for path in &self.policies {
            for file in policy_files(path, &mut errors) {
                if let Some(text) = read_text(&file, &mut errors) {
                    let origin = Origin::File(file.display().to_string());
                    let before = (documents.len(), policy_errors.len());
                    documents.extend(PolicyDocument::parse_all(&origin, &text, &mut policy_errors));
                    if before == (documents.len(), policy_errors.len()) {
                        errors.push(LoadError::new(&file, "has no NodePolicy; write one, or do not name the file"));
                    }
                }
            }
        }
        documents.extend(
            self.labels_dir.as_deref().map(|directory| labels::read(directory, self.labels_grace, &mut errors)),
        );
        documents.extend(self.persist_prefix.as_deref().map(persist_policy));
        let compiled = PolicySet::compile(&documents);
        let compile_errors = compiled.as_ref().err().cloned().unwrap_or_default();
        for error in policy_errors.into_iter().chain(compile_errors) {
            let error = LoadError::Policy(error);
            if !errors.contains(&error) {
                errors.push(error);
            }
        }
        match compiled {
            Ok(set) if errors.is_empty() => {
                documents.retain(|document| document.origin != Origin::Preset);
                Ok(Loaded { documents, stands_in: self.are_empty(), set, fingerprint })
            }
            _ => Err(errors),
        }
    }

    /// What the files contain, to tell whether anything changed. Blocks on files.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut ignored = Vec::new();
        for path in &self.policies {
            for file in policy_files(path, &mut ignored) {
                (&file, fs::read(&file).ok()).hash(&mut hasher);
            }
        }
        for namespace in
            self.labels_dir.iter().flat_map(|directory| visible_entries(directory, &mut ignored)).collect::<Vec<_>>()
        {
            namespace.hash(&mut hasher);
            for file in visible_entries(&namespace, &mut Vec::new()) {
                (&file, fs::read(&file).ok()).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// The directories whose changes matter.
    pub(super) fn directories(&self) -> Vec<PathBuf> {
        let of_policy = |path: &PathBuf| {
            if path.is_dir() {
                return path.clone();
            }
            path.parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .map_or_else(|| PathBuf::from("."), Path::to_owned)
        };
        self.policies.iter().map(of_policy).chain(self.labels_dir.clone()).collect()
    }
}

/// `PERSIST_LABEL_PREFIX=persist.demo/` as a policy.
fn persist_policy(prefix: &str) -> PolicyDocument {
    let pattern = format!("{}/*", prefix.trim_end_matches('*').trim_end_matches('/'));
    let spec = NodePolicySpec {
        persist: Some(PersistSpec { labels: vec![pattern], ..PersistSpec::default() }),
        ..NodePolicySpec::default()
    };
    PolicyDocument::new("persist-label-prefix", Origin::File("PERSIST_LABEL_PREFIX".to_owned()), spec)
}

/// A file itself, or the policy files of a directory, sorted. Hidden entries are how ConfigMaps are mounted.
fn policy_files(path: &Path, errors: &mut Vec<LoadError>) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_owned()];
    }
    let named = |file: &PathBuf| {
        file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml" || extension == "json")
    };
    let files: Vec<PathBuf> =
        visible_entries(path, errors).into_iter().filter(|file| named(file) && !file.is_dir()).collect();
    if files.is_empty() {
        errors.push(LoadError::new(
            path,
            "has no .yaml, .yml or .json file; put a NodePolicy there, or do not name the directory",
        ));
    }
    files
}

/// The entries of a directory that are not hidden, sorted.
pub(super) fn visible_entries(directory: &Path, errors: &mut Vec<LoadError>) -> Vec<PathBuf> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            errors.push(LoadError::new(directory, error.to_string()));
            return Vec::new();
        }
    };
    let visible = entries.filter_map(Result::ok).filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let mut paths: Vec<PathBuf> = visible.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn read_text(file: &Path, errors: &mut Vec<LoadError>) -> Option<String> {
    let fault = |why: String| LoadError::new(file, why);
    match fs::metadata(file) {
        Ok(metadata) if metadata.len() > FILE_MAX => {
            errors.push(fault(format!("has {} bytes; at most {FILE_MAX} are read", metadata.len())));
            return None;
        }
        Ok(_) => {}
        Err(error) => {
            errors.push(fault(error.to_string()));
            return None;
        }
    }
    fs::read_to_string(file).map_err(|error| errors.push(fault(error.to_string()))).ok()
}
