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
        ObjectText::ObjectOf(_) | ObjectText::OldObjectOf(_) => false,
    };
    assert!(begins(&NodeFacts::new(object, ObjectText::ObjectOf(text)), r#"{ "kind": "New""#));
    assert!(begins(&NodeFacts::new(old_object, ObjectText::OldObjectOf(text)), r#"{"kind": "Old""#));
}
