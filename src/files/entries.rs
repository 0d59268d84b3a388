//! Reads directories and files. Errors are added to a list, so that all of them are reported at once.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::LoadError;

/// Maximum size of a file, in bytes.
const FILE_MAX: u64 = 16 * 1024 * 1024;

/// The file itself, or the policy files of a directory, sorted. Hidden entries belong to mounted ConfigMaps and are
/// skipped.
pub(super) fn policy_files(path: &Path, errors: &mut Vec<LoadError>) -> Vec<PathBuf> {
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
            "contains no .yaml, .yml or .json file; add a NodePolicy, or do not pass this directory",
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

/// The text of a file.
pub(super) fn read_text(file: &Path, errors: &mut Vec<LoadError>) -> Option<String> {
    let fault = |why: String| LoadError::new(file, why);
    match fs::metadata(file) {
        Ok(metadata) if metadata.len() > FILE_MAX => {
            errors.push(fault(format!("has {} bytes; the maximum is {FILE_MAX}", metadata.len())));
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
