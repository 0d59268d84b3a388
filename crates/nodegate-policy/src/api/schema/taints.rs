//! Taints as a text (`key=value:Effect`) and as a mapping: documents may have either wherever they have a taint.

use serde_json::{Value as Json, json};

use super::fault::ShapeFault;
use crate::api::names::{check_label_key, check_label_value};
use crate::api::source::{Field, FieldPath, Node, Tree};

/// Converts a text to the mapping that it stands for. Errors in its parts are found when the mapping is compiled.
pub(super) fn to_mapping(tree: &mut Tree) {
    let Node::Scalar(Json::String(text)) = &tree.value else { return };
    let (left, effect) = match text.rsplit_once(':') {
        Some((left, effect)) => (left, Some(effect)),
        None => (text.as_str(), None),
    };
    let (key, value) = match left.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (left, None),
    };
    let part = |name: &str, text: &str| Field {
        key: name.to_owned(),
        place: tree.place,
        tree: Tree { place: tree.place, value: Node::Scalar(text.into()), written: None },
    };
    let parts = [("key", Some(key)), ("value", value), ("effect", Some(effect.unwrap_or_default()))];
    tree.value = Node::Mapping(parts.into_iter().filter_map(|(name, text)| Some(part(name, text?))).collect());
}

/// The schema of a mapping.
pub(super) fn schema() -> Json {
    json!({
        "type": "object",
        "required": ["key"],
        "additionalProperties": false,
        "properties": {"key": {"type": "string"}, "value": {"type": "string"}, "effect": {"type": "string"}},
    })
}

/// What is wrong in a mapping of this schema.
pub(super) fn faults(tree: &Tree, path: &FieldPath) -> impl Iterator<Item = ShapeFault> {
    let text = |name: &str| tree.text(name).unwrap_or_default();
    let checked = [("key", check_label_key(text("key"))), ("value", check_label_value(text("value")))];
    checked.into_iter().filter_map(|(name, outcome)| {
        let place = tree.field(name).map_or(tree.place, |field| field.tree.place);
        outcome.err().map(|error| ShapeFault { place, path: path.key(name), problem: error.into() })
    })
}

/// Converts a mapping to the text that it stands for.
pub(super) fn to_text(tree: &mut Tree) {
    let text = |name: &str| tree.text(name).filter(|text| !text.is_empty());
    let key = text("key").unwrap_or_default();
    let value = text("value").map(|value| format!("={value}")).unwrap_or_default();
    let effect = tree.text("effect").map(|effect| format!(":{effect}")).unwrap_or_default();
    let written = format!("{key}{value}{effect}");
    *tree = Tree { place: tree.head(), value: Node::Scalar(written.into()), written: None };
}
