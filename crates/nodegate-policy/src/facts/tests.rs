//! What is read from a node's JSON.

use super::*;

#[derive(serde::Deserialize)]
struct Review<'a> {
    #[serde(borrow)]
    request: Request<'a>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    object: NodeFields<'a>,
    #[serde(borrow)]
    old_object: NodeFields<'a>,
}

#[test]
fn expressions_read_each_object_of_a_review_from_where_it_begins() {
    let text =
        r#"{"request": {"object": { "kind": "New", "metadata": {}}, "oldObject": {"kind": "Old", "metadata": {}}}}"#;
    let Review { request: Request { object, old_object } } = serde_json::from_str(text).unwrap();
    let begins = |facts: &NodeFacts<'_>, with: &str| match facts.object {
        ObjectText::Here(text) => text.starts_with(with),
        ObjectText::ObjectOf(_) | ObjectText::OldObjectOf(_) | ObjectText::PartsOf(..) => false,
    };
    assert!(begins(&NodeFacts::new(object, ObjectText::ObjectOf(text)), r#"{ "kind": "New""#));
    assert!(begins(&NodeFacts::new(old_object, ObjectText::OldObjectOf(text)), r#"{"kind": "Old""#));
}

#[test]
fn what_was_not_kept_of_an_object_is_unknown_and_not_absent() {
    let text = r#"{"metadata": {"name": "n"}, "status": {"phase": "x"}}"#;
    let (phase, images) = (Paths::Whole.under(&["status", "phase"]), Paths::Whole.under(&["status", "images"]));
    let facts = NodeFacts::parse_parts(text, &phase).unwrap();
    let read = |paths| facts.object.read(paths, &Budget::default()).map(drop).map_err(|error| error.to_string());
    assert_eq!(read(&phase), Ok(()));
    assert!(read(&images).unwrap_err().contains("was not read again yet"));
    assert!(NodeFacts::parse(text).unwrap().object.read(&images, &Budget::default()).is_ok());
}

fn fault(text: &str) -> String {
    NodeFacts::parse(text).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn texts_are_as_long_as_the_api_server_stores_them_and_no_longer() {
    let longest = |bytes: usize| "x".repeat(bytes);
    let uid = |bytes| format!(r#"{{"metadata": {{"uid": "{}"}}}}"#, longest(bytes));
    assert!(NodeFacts::parse(&uid(1024)).is_ok());
    assert!(fault(&uid(1025)).contains("a text of 1025 bytes"));
    let value = |bytes| format!(r#"{{"metadata": {{"labels": {{"a": "", "b": "{}"}}}}}}"#, longest(bytes));
    assert!(NodeFacts::parse(&value(317)).is_ok());
    assert!(fault(&value(318)).contains("the value of a label has 318 bytes"));
    let annotations = |bytes: usize| {
        let half = longest(bytes / 2 - 1);
        format!(r#"{{"metadata": {{"annotations": {{"a": "{half}", "b": "{half}"}}}}}}"#)
    };
    assert!(NodeFacts::parse(&annotations(256 * 1024)).is_ok());
    assert!(fault(&annotations(256 * 1024 + 2)).contains("the annotations have 262146 bytes in total"));
    for field in ["key", "value", "effect"] {
        let taint = |bytes| {
            let others = if field == "key" { "" } else { r#""key": "k", "# };
            format!(r#"{{"metadata": {{}}, "spec": {{"taints": [{{{others}"{field}": "{}"}}]}}}}"#, longest(bytes))
        };
        assert!(NodeFacts::parse(&taint(317)).is_ok(), "{field}");
        assert!(fault(&taint(318)).contains("a text of 318 bytes"), "{field}");
    }
}

#[test]
fn a_quantity_that_a_kubelet_made_too_long_is_not_one_and_hides_nothing_else() {
    for number in [format!("\"{}8\"", "0".repeat(1 << 20)), format!("\"\\u0030{}8\"", "0".repeat(200))] {
        let node = format!(r#"{{"metadata": {{}}, "status": {{"capacity": {{"a": {number}, "b": "8", "c": 8}}}}}}"#);
        let facts = NodeFacts::parse(&node).unwrap();
        assert_eq!(["a", "b", "c"].map(|name| facts.capacity_of(name)), [None, Some(8.0), Some(8.0)]);
        assert_eq!(facts.capacity.get("a"), Some(""));
    }
}

#[test]
fn labels_annotations_taints_and_resources_of_one_node_are_counted_together() {
    let entries = |count: usize, with: &str| {
        let all: Vec<String> = (0..count).map(|at| format!("\"{at:x}\":{with}")).collect();
        format!("{{{}}}", all.join(","))
    };
    let taints = |count: usize| format!("[{}]", vec![r#"{"key": "", "effect": "x"}"#; count].join(","));
    let node = |labels, annotations, resources, count| {
        format!(
            r#"{{"metadata": {{"labels": {}, "annotations": {}}}, "status": {{"capacity": {}}}, "spec": {{"taints": {}}}}}"#,
            entries(labels, "\"\""),
            entries(annotations, "\"\""),
            entries(resources, "\"1\""),
            taints(count)
        )
    };
    for most in [node(60_000, 30_000, 40_000, 50_000), node(180_000, 0, 0, 0), node(0, 0, 91_000, 89_000)] {
        assert!(NodeFacts::parse(&most).is_ok());
    }
    for more in [node(60_001, 30_000, 40_000, 50_000), node(180_000, 1, 0, 0), node(0, 0, 91_001, 89_000)] {
        assert!(fault(&more).contains("more than 180000 entries"));
    }
    // Each node has its own count, and so have their texts.
    assert!(NodeFacts::parse(&node(100_000, 0, 0, 0)).is_ok() && NodeFacts::parse(&node(100_000, 0, 0, 0)).is_ok());
    let long = entries(15_000, &format!("\"{}\"", "x".repeat(300)));
    assert!(fault(&format!(r#"{{"metadata": {{"labels": {long}}}}}"#)).contains("more than 4 MiB of labels"));
}
