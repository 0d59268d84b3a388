//! Nodes from files: as `kubectl` prints them, as admission reviews, or in the short form.

mod objects;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value as Json;

use crate::cli::shared::faults::Faults;
use nodegate_policy::api::names::is_dns_subdomain;
use nodegate_policy::api::source::decode;
pub(in crate::cli) use objects::{Object, Wanted};

/// Parses the name of a node on a command line.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    // As the API server checks it (`ValidateNodeName`).
    if is_dns_subdomain(text) {
        return Ok(text.to_owned());
    }
    Err("not a node name; write at most 253 lower-case letters, digits, '-' or '.', as `kubectl get nodes` shows it"
        .to_owned())
}

/// A node that was read from a file.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) file: String,
    pub(crate) node: Json,
    /// The rest of the request, if the node comes from an AdmissionReview.
    pub(crate) review: Option<Reviewed>,
}

/// The parts of an AdmissionReview besides its object.
#[derive(Clone, Debug)]
pub(crate) struct Reviewed {
    pub(crate) old: Option<Json>,
    pub(crate) status: bool,
    pub(crate) username: String,
    pub(crate) groups: Vec<String>,
    /// What the authenticator added about the requester, as JSON.
    pub(crate) extra: Option<String>,
}

/// Reads files, directories, or `-` for standard input.
///
/// # Errors
/// Returns an error if a file cannot be read, or contains anything other than Nodes, Lists of Nodes or
/// AdmissionReviews.
pub(crate) fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<Found>> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            found.extend(read(&of_directory(path)?)?);
        } else {
            found.extend(read_file(path)?);
        }
    }
    Ok(found)
}

/// The YAML and JSON files of a directory, sorted: at least one.
pub(in crate::cli) fn of_directory(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.retain(|file| {
        file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml" || extension == "json")
    });
    files.sort();
    anyhow::ensure!(!files.is_empty(), "{}: contains no .yaml, .yml or .json file", path.display());
    Ok(files)
}

/// What commands for nodes take.
const NODES: Wanted =
    Wanted { kinds: &["Node", "AdmissionReview"], expected: "a Node, a List of Nodes or an AdmissionReview of a Node" };

fn read_file(path: &Path) -> anyhow::Result<Vec<Found>> {
    let (file, objects) = objects(path, NODES)?;
    objects.into_iter().map(|object| one(&file, object)).collect()
}

/// The name of a file (`-` is standard input) and its objects, with those of lists one by one: at least one.
///
/// # Errors
/// Returns an error if the file cannot be read, is neither YAML nor JSON, has other objects or none, or has a value that the API
/// server refuses.
pub(in crate::cli) fn objects(path: &Path, wanted: Wanted) -> anyhow::Result<(String, Vec<Object>)> {
    let (file, text) = text(path)?;
    let found = objects::read(&file, &text, wanted);
    let found = found.map_err(|errors| Faults::in_file(errors, format!("{file} was not read")))?;
    anyhow::ensure!(!found.is_empty(), "{file}: contains no {}; expected {}", wanted.kinds[0], wanted.expected);
    Ok((file, found))
}

/// The name of a file (`-` is standard input) and its text.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not text.
pub(in crate::cli) fn text(path: &Path) -> anyhow::Result<(String, String)> {
    let mut bytes = Vec::new();
    let file = if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes).context("standard input")?;
        "standard input".to_owned()
    } else {
        bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        path.display().to_string()
    };
    let text = decode(bytes).with_context(|| file.clone())?;
    Ok((file, text))
}

fn one(file: &str, Object { kind, json }: Object) -> anyhow::Result<Found> {
    if kind == "Node" {
        return Ok(Found { file: file.to_owned(), node: json, review: None });
    }
    let request = &json["request"];
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    let groups = request["userInfo"]["groups"].as_array().cloned().unwrap_or_default();
    let review = Reviewed {
        old: Some(request["oldObject"].clone()).filter(|old| !old.is_null()),
        status: request["subResource"] == "status",
        username: text(&request["userInfo"]["username"]),
        groups: groups.iter().map(text).collect(),
        extra: request["userInfo"].get("extra").map(Json::to_string),
    };
    anyhow::ensure!(request["object"].is_object(), "{file}: the AdmissionReview has no object");
    Ok(Found { file: file.to_owned(), node: request["object"].clone(), review: Some(review) })
}

/// The one Node of a file.
pub(crate) fn read_one(path: &Path) -> anyhow::Result<Json> {
    let mut found = read_file(path)?;
    anyhow::ensure!(found.len() == 1, "{}: contains {} nodes, expected exactly one", path.display(), found.len());
    found.pop().map(|found| found.node).context("one node")
}
