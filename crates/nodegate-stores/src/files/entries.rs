//! Reads directories and files. Errors are added to a list, so that all of them are reported at once.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::LoadError;
use nodegate_policy::api::source::decode;

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
    let files: Vec<PathBuf> = visible_entries(path, errors)
        .into_iter()
        .filter(|file| named(file) && !file.is_dir() && !is_special(file, errors))
        .collect();
    if files.is_empty() {
        errors.push(LoadError::new(
            path,
            "contains no .yaml, .yml or .json file; add a NodePolicy, or do not pass this directory",
        ));
    }
    files
}

/// What a file of a directory is that `nodegate init` writes beside policies; `None` for everything else, and for what cannot be
/// parsed: a policy that is left out would take its labels off the nodes.
pub(super) fn beside_policies(text: &str) -> Option<&'static str> {
    #[derive(Deserialize)]
    struct Head {
        kind: Option<String>,
        #[serde(rename = "$schema")]
        schema: Option<String>,
    }
    // Most files have neither, and need not be parsed twice.
    if !text.contains("PolicyTest") && !text.contains("$schema") {
        return None;
    }
    let heads: Vec<Head> = serde_saphyr::from_multiple(text).ok().filter(|heads: &Vec<Head>| !heads.is_empty())?;
    if heads.iter().all(|head| head.kind.as_deref() == Some("PolicyTest")) {
        return Some("PolicyTests");
    }
    heads.iter().all(|head| head.kind.is_none() && head.schema.is_some()).then_some("a JSON Schema")
}

/// The entries of a directory that are not hidden, sorted. If an entry cannot be read, that is an error: a policy that
/// is left out would take its labels off the nodes.
pub(super) fn visible_entries(directory: &Path, errors: &mut Vec<LoadError>) -> Vec<PathBuf> {
    let entries = match fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(error) => {
            errors.push(LoadError::new(directory, error.to_string()));
            return Vec::new();
        }
    };
    let visible = entries.iter().filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let mut paths: Vec<PathBuf> = visible.map(fs::DirEntry::path).collect();
    paths.sort();
    paths
}

/// Whether an entry of a directory is a pipe, a socket or a device, which is an error: who opens a pipe waits until
/// somebody writes to it, so that no later change would be noticed.
pub(super) fn is_special(entry: &Path, errors: &mut Vec<LoadError>) -> bool {
    let is_special = fs::metadata(entry).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
    if is_special {
        errors.push(LoadError::new(entry, "is a pipe, a socket or a device; remove it, or put a file in its place"));
    }
    is_special
}

/// The text of a file. A pipe that is named by itself, as by a shell's `<(…)`, is read to its end.
pub(super) fn read_text(file: &Path, errors: &mut Vec<LoadError>) -> Option<String> {
    bounded_text(file).map_err(|error| errors.push(LoadError::new(file, error.to_string()))).ok()
}

fn bounded_text(file: &Path) -> io::Result<String> {
    let opened = fs::File::open(file)?;
    let is_too_large = || io::Error::other(format!("is larger than {} MiB, the maximum", FILE_MAX >> 20));
    // A device or a pipe has no size, but may have no end either.
    if opened.metadata()?.len() > FILE_MAX {
        return Err(is_too_large());
    }
    let mut text = Vec::new();
    opened.take(FILE_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_MAX {
        return Err(is_too_large());
    }
    decode(text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::beside_policies;

    #[test]
    fn only_files_without_any_policy_are_beside_them() {
        let tests = "apiVersion: nodegate.dev/v1alpha1\nkind: PolicyTest # of gpu.yaml\ncases: []\n";
        for text in [tests, r#"{"kind": "PolicyTest", "cases": []}"#] {
            assert_eq!(beside_policies(text), Some("PolicyTests"), "{text}");
        }
        assert_eq!(
            beside_policies(r#"{"$schema": "https://json-schema.org/draft/2020-12/schema"}"#),
            Some("a JSON Schema")
        );
        for policy in ["kind: \"NodePolicy\"", "kind: NodePolicy # the fleet", "{kind: NodePolicy, spec: {}}"] {
            assert_eq!(beside_policies(&format!("{tests}---\n{policy}\n")), None, "{policy}");
        }
        for text in [r#"{"$schema": "x", "kind": "NodePolicy"}"#, "kind: PolicyTest\n\t[", "kind: NodePolicy", ""] {
            assert_eq!(beside_policies(text), None, "{text}");
        }
    }
}
