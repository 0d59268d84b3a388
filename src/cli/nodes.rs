//! Nodes from files: as `kubectl` prints them, as admission reviews, or in the short form.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value as Json;

use nodegate_policy::api::source::{Field, Node, Tree, parse_documents};

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
            let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
            let mut files: Vec<PathBuf> =
                entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
            files.retain(|file| {
                file.extension()
                    .is_some_and(|extension| extension == "yaml" || extension == "yml" || extension == "json")
            });
            files.sort();
            anyhow::ensure!(!files.is_empty(), "{}: contains no .yaml, .yml or .json file", path.display());
            found.extend(read(&files)?);
        } else {
            found.extend(read_file(path)?);
        }
    }
    Ok(found)
}

fn read_file(path: &Path) -> anyhow::Result<Vec<Found>> {
    let (name, documents) = documents(path)?;
    let found: Vec<Found> = documents.into_iter().map(|document| one(&name, document)).collect::<Result<_, _>>()?;
    anyhow::ensure!(
        !found.is_empty(),
        "{name}: contains no Node; expected a Node, a List of Nodes or an AdmissionReview of a Node"
    );
    Ok(found)
}

/// The name of a file (`-` is standard input) and its objects, with those of lists one by one.
///
/// # Errors
/// Returns an error if the file cannot be read, is not YAML, or has labels or annotations without a value.
pub(super) fn documents(path: &Path) -> anyhow::Result<(String, Vec<Json>)> {
    let (name, text) = if path == Path::new("-") {
        ("standard input".to_owned(), std::io::read_to_string(std::io::stdin()).context("standard input")?)
    } else {
        (path.display().to_string(), std::fs::read_to_string(path).with_context(|| path.display().to_string())?)
    };
    let documents = parse_documents(&text).map_err(|error| match error.place {
        Some(place) => anyhow::anyhow!("{name}:{}:{}: {error}", place.line, place.column),
        None => anyhow::anyhow!("{name}: {error}"),
    })?;
    let mut found = Vec::new();
    for document in documents {
        if let Some(entry) = valueless(&document) {
            anyhow::bail!(
                "{name}:{}:{}: {:?} has no value; write \"\" for an empty value, or remove the key",
                entry.place.line,
                entry.place.column,
                entry.key
            );
        }
        let document = document.to_json();
        match document["kind"].as_str() {
            Some(kind) if kind.ends_with("List") => {
                found.extend(document["items"].as_array().cloned().unwrap_or_default());
            }
            _ => found.push(document),
        }
    }
    Ok((name, found))
}

/// A label or an annotation that has a key but no value, and would be lost.
fn valueless(document: &Tree) -> Option<&Field> {
    let metadata = &document.field("metadata")?.tree;
    let entries = |field| match metadata.field(field).map(|field: &Field| &field.tree.value) {
        Some(Node::Mapping(entries)) => entries.as_slice(),
        _ => &[],
    };
    entries("labels").iter().chain(entries("annotations")).find(|entry| entry.tree.is_null())
}

fn one(file: &str, document: Json) -> anyhow::Result<Found> {
    match document["kind"].as_str() {
        Some("Node") => Ok(Found { file: file.to_owned(), node: document, review: None }),
        Some("AdmissionReview") => {
            let request = &document["request"];
            let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
            let groups = request["userInfo"]["groups"].as_array().cloned().unwrap_or_default();
            let review = Reviewed {
                old: Some(request["oldObject"].clone()).filter(|old| !old.is_null()),
                status: request["subResource"] == "status",
                username: text(&request["userInfo"]["username"]),
                groups: groups.iter().map(text).collect(),
            };
            anyhow::ensure!(request["object"].is_object(), "{file}: the AdmissionReview has no object");
            Ok(Found { file: file.to_owned(), node: request["object"].clone(), review: Some(review) })
        }
        other => {
            anyhow::bail!("{file}: kind is {:?}; expected Node, List or AdmissionReview", other.unwrap_or_default())
        }
    }
}

/// The one Node of a file.
pub(crate) fn read_one(path: &Path) -> anyhow::Result<Json> {
    let mut found = read_file(path)?;
    anyhow::ensure!(found.len() == 1, "{}: contains {} nodes, expected exactly one", path.display(), found.len());
    found.pop().map(|found| found.node).context("one node")
}
