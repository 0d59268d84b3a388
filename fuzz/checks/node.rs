//! What must hold for a node and what a patch makes of it.

use std::collections::BTreeSet;

use json_patch::{Patch, PatchOperation};
use nodegate_policy::api::names::check_label_value;
use nodegate_policy::restriction::is_restricted;
use serde_json::{Value, json};

/// Who writes a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// A kubelet that joins.
    Joining,
    /// A kubelet later on.
    Living,
    /// Anyone else.
    Other,
}

/// The node with the patch, once all is seen to hold that must hold of any patch.
pub(super) fn patched(node: &Value, old: &Value, patch: &Patch, writer: Writer) -> Value {
    let mut patched = node.clone();
    if let Err(error) = json_patch::patch(&mut patched, patch) {
        panic!("the patch does not apply: {error}\n{}\n{node}", json!(patch));
    }
    assert!(!patch.0.is_empty(), "an empty patch costs the API server time");
    assert_eq!(foreign(&patched), foreign(node), "what is not nodegate's survives {}", json!(patch));
    assert!(taints_are_unique(&patched) || !taints_are_unique(node), "no taint twice: {patched}");
    for operation in &patch.0 {
        carried(operation, old, writer);
    }
    patched
}

/// Whether the API server takes this operation from this requester (NodeRestriction, validation).
fn carried(operation: &PatchOperation, old: &Value, writer: Writer) {
    let (path, value) = match operation {
        PatchOperation::Add(add) => (&add.path, Some(&add.value)),
        PatchOperation::Replace(replace) => (&replace.path, Some(&replace.value)),
        PatchOperation::Remove(remove) => (&remove.path, None),
        other => panic!("{other} may fail to apply"),
    };
    let tokens: Vec<_> = path.tokens().map(|token| token.decoded().into_owned()).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    match tokens[..] {
        ["metadata", "labels"] => {
            let all = value.and_then(Value::as_object).unwrap();
            all.iter().for_each(|(key, value)| label_carried(key, value, old, writer));
        }
        ["metadata", "labels", key] => value.into_iter().for_each(|value| label_carried(key, value, old, writer)),
        ["metadata", "annotations", ..] => {}
        ["spec"] | ["spec", "taints", ..] => {
            assert_ne!(writer, Writer::Living, "a kubelet's update may not carry taints");
        }
        _ => panic!("{operation} is none of nodegate's business"),
    }
}

fn label_carried(key: &str, value: &Value, old: &Value, writer: Writer) {
    // What is stored is put back, whatever it is.
    if writer == Writer::Living && old["metadata"]["labels"].get(key) == Some(value) {
        return;
    }
    assert!(writer == Writer::Other || !is_restricted(key), "a kubelet may not carry {key}");
    let valid = check_label_value(value.as_str().unwrap());
    assert!(valid.is_ok(), "{key}={value}: {valid:?}");
}

/// The node without everything nodegate may touch.
fn foreign(node: &Value) -> Value {
    let mut node = node.clone();
    for (parent, field) in [("metadata", "labels"), ("metadata", "annotations"), ("spec", "taints")] {
        if let Some(parent) = node.get_mut(parent).and_then(Value::as_object_mut) {
            parent.remove(field);
        }
    }
    if let Some(fields) = node.as_object_mut()
        && fields.get("spec").is_some_and(|spec| spec.is_null() || *spec == json!({}))
    {
        fields.remove("spec");
    }
    node
}

fn taints_are_unique(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let distinct: BTreeSet<_> = taints.iter().map(|taint| (taint["key"].as_str(), taint["effect"].as_str())).collect();
    distinct.len() == taints.len()
}
