//! Reads and compiles all sources, and reports every error in every file at once.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::path::PathBuf;
use std::time::Duration;

use super::entries::{beside_policies, policy_files, read_text};
use super::error::LoadError;
use super::labels::{self, LabelFile};
use nodegate_base::watch::Watched;
use nodegate_policy::api::policy::{EntryMode, NodePolicySpec, PersistSpec};
use nodegate_policy::{Origin, PolicyDocument, PolicyError, PolicySet};

/// Where policies are read from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Files, and directories of `*.yaml`, `*.yml` and `*.json` files.
    pub policies: Vec<PathBuf>,
    /// A directory of flat label files.
    pub labels_dir: Option<PathBuf>,
    /// How long a label from a flat label file stays after its last source label is gone.
    pub labels_grace: Duration,
    /// Additional prefix whose labels are persisted (`PERSIST_LABEL_PREFIX`).
    pub persist_prefix: Option<String>,
    /// The mode of the preset `baseline` that is in force without policies.
    pub baseline_mode: EntryMode,
}

/// Policies that were read and compile.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// What the files contained, for [`super::watch`].
    pub fingerprint: u64,
    /// The documents that were read, without presets.
    pub documents: Vec<PolicyDocument>,
    /// The mode of the preset `baseline`, if it is used because no source was given.
    pub stands_in: Option<EntryMode>,
    /// The compiled set.
    pub set: PolicySet,
}

impl Sources {
    /// Whether no source was given, so that the preset `baseline` is in force.
    pub fn are_empty(&self) -> bool {
        self.policies.is_empty() && self.labels_dir.is_none()
    }

    /// Reads and compiles all sources. Blocks on files.
    ///
    /// # Errors
    /// Returns every error in every file; nothing may be put in force then.
    pub fn load(&self) -> Result<PolicySet, Vec<LoadError>> {
        self.load_documents().map(|loaded| loaded.set)
    }

    /// Like [`Self::load`], with the documents that the set was compiled from.
    ///
    /// # Errors
    /// See [`Self::load`].
    pub fn load_documents(&self) -> Result<Loaded, Vec<LoadError>> {
        self.compile(self.read())
    }

    /// Reads every file once: a pipe can be read only once, and a file may change between two readings. Blocks on files.
    pub(super) fn read(&self) -> Texts {
        let mut errors = Vec::new();
        let mut policies = Vec::new();
        for path in &self.policies {
            let before = (policies.len(), errors.len());
            for file in policy_files(path, &mut errors) {
                let Some(text) = read_text(&file, &mut errors) else { continue };
                // Only in a directory: who names a file means it.
                match beside_policies(&text).filter(|_| path.is_dir()) {
                    Some(what) => tracing::debug!(file = %file.display(), "skipped, because it contains {what}"),
                    None => policies.push((file, text)),
                }
            }
            if before == (policies.len(), errors.len()) {
                errors.push(LoadError::new(
                    path,
                    "contains no NodePolicy, only tests or schemas; add one, or do not pass this directory",
                ));
            }
        }
        let labels = self.labels_dir.as_deref().map(|directory| labels::read(directory, &mut errors));
        Texts { policies, labels: labels.unwrap_or_default(), errors }
    }

    /// Compiles what was read.
    ///
    /// # Errors
    /// See [`Self::load`].
    pub(super) fn compile(&self, texts: Texts) -> Result<Loaded, Vec<LoadError>> {
        let fingerprint = texts.fingerprint();
        let mut errors = texts.errors;
        let mut policy_errors = Vec::new();
        let mut documents = Vec::new();
        if self.are_empty() {
            documents.push(nodegate_policy::baseline(self.baseline_mode));
        }
        for (file, text) in &texts.policies {
            let origin = Origin::File(file.display().to_string());
            let before = (documents.len(), policy_errors.len());
            documents.extend(PolicyDocument::parse_all(&origin, text, &mut policy_errors));
            if before == (documents.len(), policy_errors.len()) {
                errors.push(LoadError::new(file, "contains no NodePolicy; add one, or do not pass this file"));
            }
        }
        documents.extend(
            self.labels_dir
                .as_deref()
                .map(|directory| labels::policy(directory, &texts.labels, self.labels_grace, &mut errors)),
        );
        documents.extend(self.persist_prefix.as_deref().map(persist_policy));
        let compiled = PolicySet::compile(&documents);
        policy_errors.extend(compiled.as_ref().err().into_iter().flatten().cloned());
        PolicyError::sort(&mut policy_errors);
        errors.extend(policy_errors.into_iter().map(LoadError::Policy));
        match compiled {
            Ok(set) if errors.is_empty() => {
                documents.retain(|document| document.origin != Origin::Preset);
                let documents = documents.into_iter().map(PolicyDocument::settled).collect();
                let stands_in = self.are_empty().then_some(self.baseline_mode);
                Ok(Loaded { documents, stands_in, set, fingerprint })
            }
            _ => Err(errors),
        }
    }

    /// What to watch. Label files lie in a directory for each namespace.
    pub(super) fn directories(&self) -> Vec<Watched> {
        let of_policy =
            |path: &PathBuf| if path.is_dir() { Watched::Entries(path.clone()) } else { Watched::parent_of(path) };
        self.policies.iter().map(of_policy).chain(self.labels_dir.clone().map(Watched::Tree)).collect()
    }
}

/// What the sources contained when they were read.
pub(super) struct Texts {
    policies: Vec<(PathBuf, String)>,
    labels: Vec<LabelFile>,
    errors: Vec<LoadError>,
}

impl Texts {
    /// A fingerprint of what was read and of what could not be read, to detect changes.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.policies, &self.labels).hash(&mut hasher);
        self.errors.iter().for_each(|error| error.to_string().hash(&mut hasher));
        hasher.finish()
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
