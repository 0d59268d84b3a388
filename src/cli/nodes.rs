//! Nodes in files: as `kubectl` prints them, as admission reviews, or in short form.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use crate::api::source::{Field, Node, Tree, parse_documents};
use crate::policy::NodeChange;

/// What a file says about a node.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) file: String,
    pub(crate) node: Json,
    /// From an AdmissionReview: the rest of its request.
    pub(crate) review: Option<Reviewed>,
}

/// What an AdmissionReview says besides its object.
#[derive(Clone, Debug)]
pub(crate) struct Reviewed {
    pub(crate) old: Option<Json>,
    pub(crate) status: bool,
    pub(crate) username: String,
    pub(crate) groups: Vec<String>,
}

/// Reads files, directories of them, or `-` for standard input.
///
/// # Errors
/// If a file cannot be read, or holds something that is neither a Node, a List of them, nor an AdmissionReview.
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
            anyhow::ensure!(!files.is_empty(), "{}: has no .yaml, .yml or .json file", path.display());
            found.extend(read(&files)?);
        } else {
            found.extend(read_file(path)?);
        }
    }
    Ok(found)
}

fn read_file(path: &Path) -> anyhow::Result<Vec<Found>> {
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
                "{name}:{}:{}: {:?} has no value; write \"\" for an empty text, or remove it",
                entry.place.line,
                entry.place.column,
                entry.key
            );
        }
        let document = document.to_json();
        let items = match document["kind"].as_str() {
            Some("List" | "NodeList") => document["items"].as_array().cloned().unwrap_or_default(),
            _ => vec![document],
        };
        for item in items {
            found.push(one(&name, item)?);
        }
    }
    anyhow::ensure!(!found.is_empty(), "{name}: has no Node; write one, or a List or an AdmissionReview with one");
    Ok(found)
}

/// A label or an annotation of a Node that is written without a value, and would vanish.
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
    anyhow::ensure!(found.len() == 1, "{}: has {} nodes, expected one", path.display(), found.len());
    found.pop().map(|found| found.node).context("one node")
}

/// A whole Node from the short form `{name, labels, annotations, taints, capacity, providerID}`.
///
/// # Errors
/// If the short form has another field, or a taint cannot be read.
pub(crate) fn complete(node: &Json) -> anyhow::Result<Json> {
    if node.get("metadata").is_some() {
        return Ok(node.clone());
    }
    let mut whole = json!({"apiVersion": "v1", "kind": "Node", "metadata": {}, "spec": {}, "status": {}});
    for (field, value) in node.as_object().context("the node is not a mapping")? {
        match field.as_str() {
            "name" | "labels" | "annotations" | "uid" => whole["metadata"][field] = value.clone(),
            "providerID" => whole["spec"][field] = value.clone(),
            "capacity" | "conditions" | "nodeInfo" => whole["status"][field] = value.clone(),
            "taints" => {
                let taints = value.as_array().context("taints is not a list")?;
                let texts = taints.iter().map(|text| taint(text.as_str().unwrap_or_default()));
                whole["spec"]["taints"] = texts.collect::<anyhow::Result<Vec<_>>>()?.into();
            }
            other => anyhow::bail!("the short form of a node has no field {other:?}; write a whole Node instead"),
        }
    }
    Ok(whole)
}

/// A taint in JSON from `key=value:Effect` or `key:Effect`.
pub(crate) fn taint(text: &str) -> anyhow::Result<Json> {
    let (left, effect) =
        text.rsplit_once(':').with_context(|| format!("{text:?} is not a taint; write key=value:Effect"))?;
    let (key, value) = left.split_once('=').unwrap_or((left, ""));
    Ok(if value.is_empty() {
        json!({"key": key, "effect": effect})
    } else {
        json!({"key": key, "value": value, "effect": effect})
    })
}

/// A taint as `key=value:Effect`, without `=` when there is no value.
pub(crate) fn taint_text(taint: &Json) -> String {
    let text = |field: &str| taint[field].as_str().unwrap_or_default();
    match text("value") {
        "" => format!("{}:{}", text("key"), text("effect")),
        value => format!("{}={value}:{}", text("key"), text("effect")),
    }
}

/// The taints of a node as texts, in the node's order.
pub(crate) fn taints(node: &Json) -> Vec<String> {
    node["spec"]["taints"].as_array().into_iter().flatten().map(taint_text).collect()
}

/// Every key of a change: labels, annotations, taints.
pub(crate) fn keys(change: &NodeChange) -> Vec<String> {
    let taints = change.taints().keys().map(|id| id.key.to_string());
    change.labels().keys().chain(change.annotations().keys()).cloned().chain(taints).collect()
}
