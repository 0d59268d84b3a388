//! Nodes from files: as `kubectl` prints them, as admission reviews, or in the short form.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value as Json;

use crate::cli::shared::faults::Faults;
use nodegate_policy::api::names::is_dns_subdomain;
use nodegate_policy::api::problem::Problem;
use nodegate_policy::api::source::{Field, FieldPath, Node, SourceText, SyntaxError, Tree, parse_documents};
use nodegate_policy::{Origin, PolicyError};

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
pub(in crate::cli) fn documents(path: &Path) -> anyhow::Result<(String, Vec<Json>)> {
    let (name, text) = if path == Path::new("-") {
        ("standard input".to_owned(), std::io::read_to_string(std::io::stdin()).context("standard input")?)
    } else {
        (path.display().to_string(), std::fs::read_to_string(path).with_context(|| path.display().to_string())?)
    };
    let mut found = Vec::new();
    if let Some(document) = whole_json(&text) {
        found.extend(items(document));
        return Ok((name, found));
    }
    let (origin, source) = (Origin::File(name.clone()), SourceText::from(text.as_str()));
    let faults = |errors| Faults::in_file(errors, format!("{name} was not read"));
    let documents = parse_documents(&text)
        .map_err(|error| faults(vec![PolicyError::of_syntax(&origin, Some(&source), with_remedy(error))]))?;
    let mut errors = Vec::new();
    for document in documents {
        errors.extend(valueless(&document).map(|(path, entry)| {
            let what = format!("{:?} has no value", entry.key);
            let problem = Problem::new(what, "write \"\" for an empty value, or remove the key");
            PolicyError { place: Some(entry.place), ..PolicyError::in_file(&origin, Some(&source), path, problem) }
        }));
        found.extend(items(document.to_json()));
    }
    if errors.is_empty() { Ok((name, found)) } else { Err(faults(errors).into()) }
}

/// A text that is one JSON object. The YAML parser remembers the position of each value, within a budget that a list of some
/// hundred nodes exceeds. Positions are needed only for errors.
fn whole_json(text: &str) -> Option<Json> {
    let document: Json = serde_json::from_str(text).ok().filter(Json::is_object)?;
    let null = |field: &str| document["metadata"][field].as_object().is_some_and(|all| all.values().any(Json::is_null));
    (!null("labels") && !null("annotations")).then_some(document)
}

/// The items of a list, or the object itself.
fn items(mut document: Json) -> Vec<Json> {
    match document["kind"].as_str() {
        Some(kind) if kind.ends_with("List") => match document["items"].take() {
            Json::Array(items) => items,
            _ => Vec::new(),
        },
        _ => vec![document],
    }
}

/// The error, and what to do if the text is only too large for the parser.
fn with_remedy(mut error: SyntaxError) -> SyntaxError {
    if error.exceeds_budget {
        error.problem = Problem::new(
            format!("the text is too large or nested too deep to be read as YAML ({})", error.problem),
            "write a large list as JSON, as `kubectl get -o json` does",
        );
    }
    error
}

/// The labels and annotations that have a key but no value, and would be lost.
fn valueless(document: &Tree) -> impl Iterator<Item = (FieldPath, &Field)> {
    let metadata = document.field("metadata").map(|field| &field.tree);
    ["labels", "annotations"].into_iter().flat_map(move |name| {
        let entries = match metadata.and_then(|metadata| metadata.field(name)).map(|field| &field.tree.value) {
            Some(Node::Mapping(entries)) => entries.as_slice(),
            _ => &[],
        };
        let path = FieldPath::root().key("metadata").key(name);
        entries.iter().filter(|entry| entry.tree.is_null()).map(move |entry| (path.clone().key(&entry.key), entry))
    })
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
