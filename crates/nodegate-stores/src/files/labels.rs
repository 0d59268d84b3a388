//! Flat label files: `<directory>/<namespace>/<label>`, each line a source label.
//!
//! A node that has any of the source labels gets `<namespace>/<label>=true`. The format is that of
//! k8s-auto-labeller.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::entries::{is_special, read_text, visible_entries};
use super::error::LoadError;
use nodegate_policy::api::names::{check_label_key, is_dns_subdomain};
use nodegate_policy::api::policy::{DerivedSpec, NodePolicySpec};
use nodegate_policy::{Origin, PolicyDocument};

/// The policy name that label files appear under.
pub(super) const POLICY: &str = "labels-dir";

/// A label file that was read.
#[derive(Hash)]
pub(super) struct LabelFile {
    label: String,
    path: PathBuf,
    text: String,
}

/// Reads a directory of label files.
pub(super) fn read(directory: &Path, errors: &mut Vec<LoadError>) -> Vec<LabelFile> {
    let mut files = Vec::new();
    for namespace in visible_entries(directory, errors) {
        let name = namespace.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !namespace.is_dir() {
            if !name.starts_with("README") {
                errors.push(LoadError::new(
                    &namespace,
                    "is a file; label files must be one level deeper, in <namespace>/<label>",
                ));
            }
            continue;
        }
        if !is_dns_subdomain(&name) {
            errors.push(LoadError::new(
                &namespace,
                "the directory's name is not a valid label prefix; use a DNS name such as accelerators or example.com",
            ));
            continue;
        }
        for path in visible_entries(&namespace, errors) {
            files.extend(read_file(&name, path, errors));
        }
    }
    files
}

fn read_file(namespace: &str, path: PathBuf, errors: &mut Vec<LoadError>) -> Option<LabelFile> {
    let label = format!("{namespace}/{}", path.file_name()?.to_string_lossy());
    if let Err(error) = check_label_key(&label) {
        errors.push(LoadError::new(&path, format!("the path is not a valid label key: {error}")));
        return None;
    }
    if is_special(&path, errors) {
        return None;
    }
    let text = read_text(&path, errors)?;
    Some(LabelFile { label, path, text })
}

/// The one policy that the label files of a directory make.
pub(super) fn policy(
    directory: &Path,
    files: &[LabelFile],
    grace: Duration,
    errors: &mut Vec<LoadError>,
) -> PolicyDocument {
    let derived = files.iter().filter_map(|file| derive(file, errors)).collect();
    let spec = NodePolicySpec { derived, ..NodePolicySpec::default() };
    PolicyDocument::new(POLICY, Origin::File(directory.display().to_string()), spec).with_flat_grace(grace)
}

fn derive(file: &LabelFile, errors: &mut Vec<LoadError>) -> Option<DerivedSpec> {
    let mut any_of = Vec::new();
    for (line, source) in (1_u32..).zip(file.text.lines()) {
        let source = source.trim();
        if source.is_empty() || source.starts_with('#') {
            continue;
        }
        match check_label_key(source) {
            Ok(()) => any_of.push(source.to_owned()),
            Err(error) => errors.push(LoadError::at_line(&file.path, line, error.to_string())),
        }
    }
    // A file without a source label never sets its label.
    let label = file.label.clone();
    (!any_of.is_empty()).then_some(DerivedSpec { label, value: None, any_of, trust_kubelet: None })
}
