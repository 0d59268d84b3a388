//! Nodes and taints as test cases write them.

use serde_json::{Value as Json, json};

use crate::api::source::{Field, Node, Tree};

/// The reason why a write cannot be simulated, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SimulationError(String);

impl SimulationError {
    pub(super) fn new(why: impl ToString) -> Self {
        Self(why.to_string())
    }
}

/// The fields of the short form, and the part of a Node that each belongs to.
const FIELDS: [(&str, &str); 9] = [
    ("name", "metadata"),
    ("uid", "metadata"),
    ("labels", "metadata"),
    ("annotations", "metadata"),
    ("taints", "spec"),
    ("providerID", "spec"),
    ("capacity", "status"),
    ("conditions", "status"),
    ("nodeInfo", "status"),
];

/// Completes a Node from the short form, whose fields ([`FIELDS`]) stand side by side.
///
/// # Errors
/// Returns an error if the short form has an unknown field or an invalid taint.
pub(super) fn complete(node: Tree) -> Result<Tree, SimulationError> {
    if node.field("metadata").is_some() {
        return Ok(node);
    }
    let place = node.place;
    let Node::Mapping(fields) = node.value else { return Err(SimulationError::new("the node is not a mapping")) };
    let mut parts = ["metadata", "spec", "status"].map(|part| (part, Vec::new()));
    for mut field in fields {
        let known = FIELDS.iter().find(|(name, _)| *name == field.key);
        let Some((_, own)) = known else {
            return Err(SimulationError::new(format!(
                "unknown field {:?} in the short form of a node, which has {}; write a complete Node instead",
                field.key,
                FIELDS.map(|(name, _)| name).join(", ")
            )));
        };
        if field.key == "taints" {
            let Node::List(taints) = &mut field.tree.value else {
                return Err(SimulationError::new("taints is not a list"));
            };
            for (_, taint) in taints {
                *taint = Tree { place: taint.place, ..taint_of(&taint.to_json())?.into() };
            }
        }
        if let Some((_, fields)) = parts.iter_mut().find(|(part, _)| part == own) {
            fields.push(field);
        }
    }
    let tree = |value: Node| Tree { place, value, written: None };
    let part = |key: &str, tree: Tree| Field { key: key.to_owned(), place, tree };
    let text = |text: &str| tree(Node::Scalar(text.into()));
    let head = [("apiVersion", text("v1")), ("kind", text("Node"))].into_iter();
    let parts = parts.into_iter().map(|(name, fields)| (name, tree(Node::Mapping(fields))));
    Ok(tree(Node::Mapping(head.chain(parts).map(|(name, tree)| part(name, tree)).collect())))
}

/// A taint that is written as a text or as a mapping.
fn taint_of(written: &Json) -> Result<Json, SimulationError> {
    let is_taint = |fields: &serde_json::Map<String, Json>| {
        ["key", "effect"].iter().all(|name| fields.get(*name).is_some_and(Json::is_string))
    };
    match written {
        Json::String(text) => taint(text),
        Json::Object(fields) if is_taint(fields) => Ok(written.clone()),
        other => Err(SimulationError::new(format!("{other} is not a taint; write key=value:Effect"))),
    }
}

/// Parses a taint from `key=value:Effect` or `key:Effect` into JSON.
///
/// # Errors
/// Returns an error if the text has no effect.
pub fn taint(text: &str) -> Result<Json, SimulationError> {
    let (left, effect) = text
        .rsplit_once(':')
        .ok_or_else(|| SimulationError::new(format!("{text:?} is not a valid taint; write key=value:Effect")))?;
    let (key, value) = left.split_once('=').unwrap_or((left, ""));
    Ok(if value.is_empty() {
        json!({"key": key, "effect": effect})
    } else {
        json!({"key": key, "value": value, "effect": effect})
    })
}

/// Formats a taint as `key=value:Effect`, without `=` if it has no value.
pub fn taint_text(taint: &Json) -> String {
    let text = |field: &str| taint[field].as_str().unwrap_or_default();
    match text("value") {
        "" => format!("{}:{}", text("key"), text("effect")),
        value => format!("{}={value}:{}", text("key"), text("effect")),
    }
}

/// The taints of a node, formatted, in the node's order.
pub fn taints(node: &Json) -> Vec<String> {
    node["spec"]["taints"].as_array().into_iter().flatten().map(taint_text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_of_a_case_names_each_field() {
        let schema = crate::api::schema::schema_of::<crate::api::case::Case>();
        let description = schema["properties"]["node"]["description"].as_str().unwrap_or_default();
        let names = FIELDS.map(|(name, _)| name).join(", ");
        assert!(description.contains(&format!("{{{names}}}")), "{description} does not name {names}");
    }
}
