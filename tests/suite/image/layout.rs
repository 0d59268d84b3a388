//! An image as an OCI archive: what is in it, by platform.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// The image for one platform.
pub(super) struct Platform {
    /// `amd64` or `arm64`.
    pub(super) architecture: String,
    /// What a runtime starts: `User`, `Env`, `Entrypoint` and so on.
    pub(super) config: Value,
    /// The files of all layers: mode and owner as `tar` lists them, by path.
    pub(super) files: BTreeMap<String, String>,
    /// The unpacked files, with the empty directories that a runtime adds.
    pub(super) root: PathBuf,
}

/// An unpacked image.
pub(super) struct Image {
    pub(super) platforms: Vec<Platform>,
    _directory: TempDir,
}

impl Image {
    /// Unpacks an OCI archive.
    pub(super) fn unpack(archive: &Path) -> Self {
        let directory = TempDir::new().unwrap();
        // The program runs as another user, who must reach its root.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let layout = directory.path().join("layout");
        fs::create_dir(&layout).unwrap();
        tar(&["-xf", &text(archive), "-C", &text(&layout)]);
        let platforms = manifests(&layout, &json(&layout.join("index.json")))
            .iter()
            .map(|manifest| Platform::unpack(&layout, manifest, directory.path()))
            .collect();
        Self { platforms, _directory: directory }
    }
}

/// The manifests of an index and of the indexes in it.
fn manifests(layout: &Path, index: &Value) -> Vec<Value> {
    let entries = index["manifests"].as_array().unwrap();
    let read = entries.iter().map(|entry| json(&blob(layout, entry)));
    read.flat_map(|document| match document.get("manifests") {
        Some(_) => manifests(layout, &document),
        None => vec![document],
    })
    .collect()
}

impl Platform {
    fn unpack(layout: &Path, manifest: &Value, directory: &Path) -> Self {
        let image = json(&blob(layout, &manifest["config"]));
        let architecture = image["architecture"].as_str().unwrap().to_owned();
        let root = directory.join(&architecture);
        for added in ["", "proc", "dev"] {
            fs::create_dir(root.join(added)).unwrap();
        }
        let mut files = BTreeMap::new();
        for layer in manifest["layers"].as_array().unwrap() {
            let layer = text(&blob(layout, layer));
            tar(&["-xf", &layer, "-C", &text(&root)]);
            for line in tar(&["-tvf", &layer, "--numeric-owner"]).lines() {
                let columns: Vec<&str> = line.split_whitespace().collect();
                files.insert(columns[5].trim_end_matches('/').to_owned(), format!("{} {}", columns[0], columns[1]));
            }
        }
        Self { architecture, config: image["config"].clone(), files, root }
    }
}

fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    layout.join("blobs").join(descriptor["digest"].as_str().unwrap().replace(':', "/"))
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn tar(arguments: &[&str]) -> String {
    let output = Command::new("tar").args(arguments).output().unwrap();
    assert!(output.status.success(), "tar {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
