//! Values that are given to expressions, and what is said of what they read.

use serde_json::json;

use super::super::{Budget, EvaluationError, Expression, Paths, Read, Value, Variables, Yields};
use super::{SCHEMA, compile, refusal, variables, whole};

fn holds(source: &str, document: Value<'_>) -> Result<bool, EvaluationError> {
    compile(source, Yields::Bool).evaluate_bool(&variables(document))
}

#[test]
fn values_are_made_and_taken_apart() {
    let list = Value::from(vec![Value::from(1_i64), Value::from(true), Value::from(1.5), Value::NULL]);
    let map = Value::map([("b", list), ("a", "x".into()), ("a", String::from("y").into())]);
    assert_eq!(map.field("a").as_ref().and_then(Value::as_str), Some("y"), "the last of equal keys counts");
    let entries = map.entries().unwrap();
    assert_eq!(entries.iter().map(|(key, _)| key.as_str().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
    let items = entries[1].1.items().unwrap();
    assert_eq!((items[0].as_i64(), items[1].as_bool(), items[2].as_f64()), (Some(1), Some(true), Some(1.5)));
    assert!(map.is_map() && !items[3].is_map() && map.items().is_none() && items[0].entries().is_none());
    assert_eq!(map.inside(&["b", "c"]).as_str(), None);
}

#[test]
fn fields_are_changed_and_nothing_else() {
    let text = json!({"metadata": {"labels": {"a": "1", "b": "2"}}}).to_string();
    let document = whole(&text);
    let labels = document.inside(&["metadata", "labels"]);
    let labels = labels.with_fields([("b", None), ("c", Some("3".into())), ("d", None)]);
    let document = document.clone().with_field("metadata", document.inside(&["metadata"]).with_field("labels", labels));
    assert_eq!(holds("doc.metadata.labels == {'a': '1', 'c': '3'}", document), Ok(true));
    let made = Value::NULL.with_fields([("x", Some(1_i64.into()))]);
    assert_eq!(made.field("x").and_then(|x| x.as_i64()), Some(1));
}

#[test]
fn what_does_not_fit_into_the_budget_counts_as_not_read() {
    let budget = Budget::default();
    let items = |count: usize| Value::from((0..count).map(|_| Value::map([])).collect::<Vec<_>>());
    let (small, large) = (items(10).charged(&budget), items(200_000).charged(&budget));
    assert!(!small.is_unread() && large.is_unread());
    assert!(budget.bytes_left() > 0 && budget.bytes_left() < Budget::default().bytes_left());
    let document = |status| Value::map([("status", status), ("metadata", Value::map([]))]);
    assert_eq!(holds("doc.status.size() > 0", document(large.clone())), Err(EvaluationError::TooLarge));
    assert_eq!(holds("true || doc.status.size() > 0", document(large)), Ok(true));
}

#[test]
fn reads_are_told_with_their_keys() {
    let read = |keys: &[&str], only_helps, whole| Read {
        variable: "doc",
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        only_helps,
        whole,
    };
    let cases = [
        ("doc.metadata.name == 'a'", vec![read(&["metadata", "name"], false, true)]),
        ("'a' in doc.metadata.labels", vec![read(&["metadata", "labels", "a"], true, false)]),
        ("!('a' in doc.metadata.labels)", vec![read(&["metadata", "labels", "a"], false, false)]),
        ("doc.metadata.?labels.orValue({}) == {}", vec![read(&["metadata", "labels"], false, true)]),
        ("has(doc.metadata.labels)", vec![]),
        (
            "doc.status == null || doc.status == 1",
            vec![read(&["status"], false, false), read(&["status"], false, true)],
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(Expression::compile(source, &SCHEMA, Yields::Bool).unwrap().reads(), expected, "{source}");
    }
    let paths = compile("doc.metadata.name == 'a' && has(doc.status)", Yields::Bool).paths("doc");
    assert_eq!(paths.member("metadata").and_then(|inner| inner.member("name")), Some(&Paths::Whole));
    assert_eq!(paths.member("status"), Some(&Paths::default()));
}

#[test]
fn tokens_are_the_text_without_blanks_and_comments() {
    let expression = compile("doc.metadata . labels.`a/b` == r'x' // why\n && true", Yields::Bool);
    let tokens: Vec<_> = expression.tokens().into_iter().map(|(_, text)| text).collect();
    assert_eq!(tokens, ["doc", ".", "metadata", ".", "labels", ".", "`a/b`", "==", "r'x'", "&&", "true"]);
    assert_eq!(expression.tokens()[2].0, 4);
}

#[test]
fn a_schema_says_what_it_withholds() {
    let message = refusal("extra.secret == 'x'");
    assert!(message.contains("`extra` has the field `secret` elsewhere, but not here (there are vendor"), "{message}");
    assert!(refusal("extra.vednor == 'x'").contains("did you mean `vendor`?"));
    assert!(refusal("doc.labels == {}").contains("write doc.metadata.labels"));
    assert!(refusal("dox == 1").contains("there is no variable `dox` here; there are doc, extra, table"));
}

#[test]
fn a_variable_that_is_not_set_is_not_known() {
    let expression = compile("doc.metadata.name == 'a'", Yields::Bool);
    assert_eq!(
        expression.evaluate_bool(&Variables::new()),
        Err(EvaluationError::Failed("doc is not known".to_owned()))
    );
}
