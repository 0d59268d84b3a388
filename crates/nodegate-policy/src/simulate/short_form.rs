//! Nodes and taints as test cases write them.

use serde_json::{Value as Json, json};

/// The reason why a write cannot be simulated, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SimulationError(String);

impl SimulationError {
    pub(super) fn new(why: impl ToString) -> Self {
        Self(why.to_string())
    }
}

/// Completes a Node from the short form `{name, labels, annotations, taints, capacity, providerID}`.
///
/// # Errors
/// Returns an error if the short form has an unknown field or an invalid taint.
pub fn complete(node: &Json) -> Result<Json, SimulationError> {
    if node.get("metadata").is_some() {
        return Ok(node.clone());
    }
    let mut whole = json!({"apiVersion": "v1", "kind": "Node", "metadata": {}, "spec": {}, "status": {}});
    for (field, value) in node.as_object().ok_or_else(|| SimulationError::new("the node is not a mapping"))? {
        match field.as_str() {
            "name" | "labels" | "annotations" | "uid" => whole["metadata"][field] = value.clone(),
            "providerID" => whole["spec"][field] = value.clone(),
            "capacity" | "conditions" | "nodeInfo" => whole["status"][field] = value.clone(),
            "taints" => {
                let taints = value.as_array().ok_or_else(|| SimulationError::new("taints is not a list"))?;
                whole["spec"]["taints"] = taints.iter().map(taint_of).collect::<Result<Vec<_>, _>>()?.into();
            }
            other => {
                return Err(SimulationError::new(format!(
                    "unknown field {other:?} in the short form of a node; write a complete Node instead"
                )));
            }
        }
    }
    Ok(whole)
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
