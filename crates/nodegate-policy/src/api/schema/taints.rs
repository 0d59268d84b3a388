//! Taints as a text (`key=value:Effect`) and as a mapping: documents may have either wherever they have a taint.

use serde_json::{Value as Json, json};

use super::check::{ShapeFault, check};
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

/// Converts a mapping to the text that it stands for. Returns false if it is not a taint.
pub(super) fn to_text(tree: &mut Tree, path: &FieldPath, faults: &mut Vec<ShapeFault>) -> bool {
    let before = faults.len();
    let schema = json!({
        "type": "object",
        "required": ["key"],
        "additionalProperties": false,
        "properties": {"key": {"type": "string"}, "value": {"type": "string"}, "effect": {"type": "string"}},
    });
    check(tree, &schema, path, faults);
    let text = |name: &str| tree.text(name).map(str::to_owned);
    let (key, value, effect) = (text("key").unwrap_or_default(), text("value"), text("effect"));
    let checked = [("key", check_label_key(&key)), ("value", check_label_value(value.as_deref().unwrap_or_default()))];
    if faults.len() == before {
        for (name, fault) in checked {
            let place = tree.field(name).map_or(tree.place, |field| field.tree.place);
            let fault = fault.err().map(|error| ShapeFault { place, path: path.key(name), problem: error.into() });
            faults.extend(fault);
        }
    }
    if faults.len() > before {
        return false;
    }
    let value = value.filter(|value| !value.is_empty()).map(|value| format!("={value}")).unwrap_or_default();
    let effect = effect.map(|effect| format!(":{effect}")).unwrap_or_default();
    let place = tree.head();
    *tree = Tree { place, value: Node::Scalar(format!("{key}{value}{effect}").into()), written: None };
    true
}
