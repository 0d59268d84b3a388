//! Nodes as files have them.

use std::sync::LazyLock;

use nodegate_cel::{Fields, Shape};
use serde_json::{Map as JsonMap, Value as Json, json};

use crate::api::problem::Problem;
use crate::api::schema::{ShapeFault, check};
use crate::api::source::{Field, FieldPath, Node, Tree};
use crate::cel::NODE_FIELDS;

/// Reads the Node in `tree` as the API server does, and adds a fault for each value that it refuses: a label that is a number, a
/// list in place of a text. Quantities may be numbers. What Kubernetes' Node does not have is left as it is.
///
/// A label or annotation without a value is a fault, too. All other fields without a value are removed.
pub fn read_node(tree: &mut Tree, path: &FieldPath, faults: &mut Vec<ShapeFault>) {
    static SCHEMA: LazyLock<Json> = LazyLock::new(|| schema(Shape::Object(NODE_FIELDS)));
    read_metadata(tree, path, faults);
    for name in ["capacity", "allocatable"] {
        let quantities = tree.field_mut("status").and_then(|status| status.field_mut(name));
        quantities.map(entries).into_iter().flatten().for_each(|quantity| to_text(&mut quantity.tree));
    }
    check(tree, &SCHEMA, path, faults);
}

/// As [`read_node`], for an object of another kind, of which only the labels and annotations are checked.
pub fn read_object(tree: &mut Tree, path: &FieldPath, faults: &mut Vec<ShapeFault>) {
    static SCHEMA: LazyLock<Json> = LazyLock::new(|| {
        let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
        let metadata = json!({"type": "object", "properties": {"labels": texts, "annotations": texts}});
        json!({"type": "object", "properties": {"metadata": metadata}})
    });
    read_metadata(tree, path, faults);
    check(tree, &SCHEMA, path, faults);
}

/// Adds a fault for each label and annotation without a value, and removes all fields without one.
fn read_metadata(tree: &mut Tree, path: &FieldPath, faults: &mut Vec<ShapeFault>) {
    for name in ["labels", "annotations"] {
        let path = path.key("metadata").key(name);
        let texts = tree.field_mut("metadata").and_then(|metadata| metadata.field_mut(name));
        for entry in texts.map(entries).into_iter().flatten().filter(|entry| entry.tree.is_null()) {
            let what = format!("{:?} has no value", entry.key);
            let problem = Problem::new(what, "write \"\" for an empty value, or remove the key");
            faults.push(ShapeFault { place: entry.place, path: path.key(&entry.key), problem });
        }
    }
    remove_empty(tree);
}

fn remove_empty(tree: &mut Tree) {
    match &mut tree.value {
        Node::Scalar(_) => {}
        Node::List(items) => items.iter_mut().for_each(|(_, item)| remove_empty(item)),
        Node::Mapping(fields) => {
            fields.retain_mut(|field| {
                remove_empty(&mut field.tree);
                !field.tree.is_null()
            });
        }
    }
}

fn entries(tree: &mut Tree) -> &mut [Field] {
    match &mut tree.value {
        Node::Mapping(fields) => fields,
        Node::Scalar(_) | Node::List(_) => &mut [],
    }
}

/// A number as the text that is written.
fn to_text(tree: &mut Tree) {
    if let Node::Scalar(number @ Json::Number(_)) = &tree.value {
        let written = tree.written.as_deref().map_or_else(|| number.to_string(), str::to_owned);
        tree.value = Node::Scalar(Json::String(written));
    }
}

/// The schema of a shape, as [`check`] takes it.
fn schema(shape: Shape) -> Json {
    let of_fields = |fields: &'static Fields| -> JsonMap<String, Json> {
        fields.all().iter().map(|(name, shape)| ((*name).to_owned(), schema(*shape))).collect()
    };
    match shape {
        Shape::Any => json!({}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Int => json!({"type": "integer"}),
        Shape::Text => json!({"type": "string"}),
        Shape::List(item) => json!({"type": "array", "items": schema(*item)}),
        Shape::Map(value) => json!({"type": "object", "additionalProperties": schema(*value)}),
        Shape::Object(fields) => json!({"type": "object", "properties": of_fields(fields)}),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::api::source::parse_documents;

    fn read(text: &str) -> (Json, Vec<String>) {
        let (mut tree, mut faults) = (parse_documents(text).unwrap().remove(0), Vec::new());
        read_node(&mut tree, &FieldPath::root(), &mut faults);
        let faults = faults.iter().map(|fault| format!("{}: {}: {}", fault.place.line, fault.path, fault.problem));
        (tree.to_json(), faults.collect())
    }

    #[test]
    fn quantities_may_be_numbers_and_stay_as_written() {
        let text = "status:\n  capacity: {cpu: 32, memory: 64Gi, a/b: 1.50}\n  allocatable: {cpu: 31.5}\n";
        let expected = json!({"status": {"capacity": {"cpu": "32", "memory": "64Gi", "a/b": "1.50"}, "allocatable": {"cpu": "31.5"}}});
        assert_eq!(read(text), (expected, vec![]));
    }

    #[test]
    fn what_the_api_server_refuses_is_a_fault_with_its_line() {
        for (text, fault) in [
            (
                "metadata:\n  labels: {a: true}\n",
                "2: metadata.labels.a: expected a string, found true; write it in quotes: \"true\"",
            ),
            (
                "metadata:\n  labels:\n    a: 010\n",
                "3: metadata.labels.a: expected a string, found 010; write it in quotes: \"010\"",
            ),
            ("metadata: {name: 8}\n", "1: metadata.name: expected a string, found 8; write it in quotes: \"8\""),
            (
                "metadata:\n  annotations:\n    a: [b]\n",
                "3: metadata.annotations.a: expected a string, found a list; write one value, without brackets or `-`",
            ),
            (
                "metadata: {labels: {a: }}\n",
                "1: metadata.labels.a: \"a\" has no value; write \"\" for an empty value, or remove the key",
            ),
            (
                "spec: {taints: [{key: a, value: 1, effect: NoSchedule}]}\n",
                "1: spec.taints[0].value: expected a string, found 1; write it in quotes: \"1\"",
            ),
            ("spec: {unschedulable: \"true\"}\n", "1: spec.unschedulable: expected true or false, found \"true\""),
            (
                "status: {nodeInfo: {kernelVersion: 6.10}}\n",
                "1: status.nodeInfo.kernelVersion: expected a string, found 6.10; write it in quotes: \"6.10\"",
            ),
            (
                "status: {capacity: {cpu: true}}\n",
                "1: status.capacity.cpu: expected a string, found true; write it in quotes: \"true\"",
            ),
        ] {
            assert_eq!(read(text).1, [fault], "{text}");
        }
    }

    #[test]
    fn nulls_of_client_libraries_and_fields_of_other_versions_are_no_faults() {
        let text = "{kind: null, metadata: {name: a, creationTimestamp: null}, spec: {taints: null, newField: 1}, status: null}";
        assert_eq!(read(text), (json!({"metadata": {"name": "a"}, "spec": {"newField": 1}}), vec![]));
    }
}
