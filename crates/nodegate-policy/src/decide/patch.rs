//! Converts a change to a JSON patch (RFC 6902) that always applies.
//!
//! The API server applies the patch to the object that was reviewed, so the object's shape is known:
//! missing parents are created, nothing absent is removed, and no operation tests a value. A patch that
//! does not apply would fail the requester's write with a 500, whatever the failure policy is.

use std::collections::BTreeMap;

use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation};
use jsonptr::PointerBuf;
use serde_json::{Map, Value, json};

use crate::api::names::TaintId;
use crate::decide::decision::NodeChange;
use crate::facts::NodeFacts;
use crate::facts::json::borrow::Entries;
use crate::facts::request::{Operation, Write};

/// The patch that makes `change` on the node that `facts` were read from.
pub fn patch(facts: &NodeFacts<'_>, change: &NodeChange) -> Patch {
    let mut operations = Vec::new();
    entries("labels", facts.labels.as_ref(), change.labels(), &mut operations);
    entries("annotations", facts.annotations.as_ref(), change.annotations(), &mut operations);
    taints(facts, change.taints(), &mut operations);
    Patch(operations)
}

/// The patch that answers a write: what `change` changes, and without what a kubelet may not say about its own node.
///
/// With an owner that is an object of its own, such as its CSINode, a kubelet could delete its node at will, and join again without
/// the taints that people put on it. NodeRestriction refuses that only in an UPDATE; no real kubelet sends owners.
pub fn patch_of_write(write: &Write<'_>, change: Option<&NodeChange>) -> Option<Patch> {
    let mut operations = change.map(|change| patch(&write.node, change));
    if write.operation == Operation::Create && write.requester.is_kubelet() && write.node.has_owners {
        let path = PointerBuf::from_tokens(["metadata", "ownerReferences"]);
        operations.get_or_insert_default().0.push(PatchOperation::Remove(RemoveOperation { path }));
    }
    operations
}

fn add<'a>(path: impl IntoIterator<Item = &'a str>, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(path), value })
}

fn entries(
    field: &str,
    there: Option<&Entries<'_>>,
    change: &BTreeMap<String, Option<String>>,
    operations: &mut Vec<PatchOperation>,
) {
    let Some(there) = there else {
        let all: Map<String, Value> =
            change.iter().filter_map(|(key, value)| Some((key.clone(), Value::from(value.as_deref()?)))).collect();
        if !all.is_empty() {
            operations.push(add(["metadata", field], Value::Object(all)));
        }
        return;
    };
    for (key, value) in change {
        match (value, there.get(key)) {
            // For a member of an object, `add` replaces an existing value.
            (Some(value), _) => operations.push(add(["metadata", field, key], Value::from(value.as_str()))),
            (None, Some(_)) => {
                let path = PointerBuf::from_tokens(["metadata", field, key]);
                operations.push(PatchOperation::Remove(RemoveOperation { path }));
            }
            (None, None) => {}
        }
    }
}

fn taint(id: &TaintId, value: &str) -> Value {
    let mut taint = json!({"key": id.key.as_str(), "effect": id.effect.as_str()});
    if !value.is_empty() {
        taint["value"] = Value::from(value);
    }
    taint
}

fn taints(facts: &NodeFacts<'_>, change: &BTreeMap<TaintId, Option<String>>, operations: &mut Vec<PatchOperation>) {
    if change.is_empty() {
        return;
    }
    let Some(there) = &facts.taints else {
        let all: Vec<Value> = change.iter().filter_map(|(id, value)| Some(taint(id, value.as_deref()?))).collect();
        if !all.is_empty() {
            operations.push(if facts.has_spec {
                add(["spec", "taints"], all.into())
            } else {
                add(["spec"], json!({"taints": all}))
            });
        }
        return;
    };
    let mut removed = Vec::new();
    for (id, value) in change {
        let at = there.iter().position(|taint| taint.is(id.key.as_str(), id.effect));
        match (at, value) {
            (Some(at), Some(value)) => {
                let path = PointerBuf::from_tokens(["spec", "taints", &at.to_string()]);
                operations.push(PatchOperation::Replace(ReplaceOperation { path, value: taint(id, value) }));
            }
            (None, Some(value)) => operations.push(add(["spec", "taints", "-"], taint(id, value))),
            (Some(at), None) => removed.push(at),
            (None, None) => {}
        }
    }
    // From the end, so that the indexes of the others stay valid.
    removed.sort_unstable_by_key(|at| std::cmp::Reverse(*at));
    operations.extend(removed.into_iter().map(|at| {
        let path = PointerBuf::from_tokens(["spec", "taints", &at.to_string()]);
        PatchOperation::Remove(RemoveOperation { path })
    }));
}
