//! Values that are given to expressions, and what is said of what they read.

use serde_json::json;

use crate::tests::{SCHEMA, compile, refusal, variables, whole};
use crate::{Budget, EvaluationError, Expression, Paths, Read, Value, Variables, Yields};

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
fn an_unsigned_number_is_a_whole_number_if_it_fits() {
    let number = |source: &str| compile(source, Yields::Any).evaluate(&Variables::new()).unwrap().as_i64();
    assert_eq!(number("7u"), Some(7));
    assert_eq!(number("9223372036854775807u"), Some(i64::MAX));
    assert_eq!(number("9223372036854775808u"), None);
}

/// Each accessor has a value only for its own type.
#[test]
fn an_accessor_takes_nothing_of_another_type() {
    let values = [
        Value::NULL,
        Value::from(true),
        Value::from(false),
        Value::from(7_i64),
        Value::from(0.5),
        Value::from("text"),
        Value::from(vec![Value::NULL]),
        Value::map([("key", Value::NULL)]),
    ];
    let seen = |look: &dyn Fn(&Value<'_>) -> Option<String>| values.iter().map(look).collect::<Vec<_>>();
    let only = |at: usize, shown: &str| {
        (0..values.len()).map(|index| (index == at).then(|| shown.to_owned())).collect::<Vec<_>>()
    };
    let bools = seen(&|value| value.as_bool().map(|value| value.to_string()));
    assert_eq!(bools[..3], [None, Some("true".to_owned()), Some("false".to_owned())]);
    assert!(bools[3..].iter().all(Option::is_none));
    assert_eq!(seen(&|value| value.as_i64().map(|value| value.to_string())), only(3, "7"));
    assert_eq!(seen(&|value| value.as_f64().map(|value| value.to_string())), only(4, "0.5"));
    assert_eq!(seen(&|value| value.as_str().map(str::to_owned)), only(5, "text"));
    assert_eq!(seen(&|value| value.items().map(|items| items.len().to_string())), only(6, "1"));
    assert_eq!(seen(&|value| value.is_list().then(String::new)), only(6, ""));
    assert_eq!(seen(&|value| value.entries().map(|entries| entries.len().to_string())), only(7, "1"));
    assert_eq!(seen(&|value| value.is_map().then(String::new)), only(7, ""));
    assert!(values.iter().all(|value| !value.is_unread()));
}

#[test]
fn an_expression_yields_what_it_was_compiled_for() {
    let document = crate::tests::document().to_string();
    let variables = variables(whole(&document));
    let text = compile("doc.metadata.labels.tier + '!'", Yields::Text);
    assert_eq!(text.evaluate_text(&variables), Ok("gold!".to_owned()));
    assert_eq!(text.evaluate(&variables).unwrap().as_str(), Some("gold!"));
    let map = compile("{'tier': doc.metadata.labels.tier, ?'nope': doc.metadata.labels[?'nope']}", Yields::TextMap);
    let entries = map.evaluate_map(&variables).unwrap();
    assert_eq!(entries.into_iter().collect::<Vec<_>>(), [("tier".to_owned(), "gold".to_owned())]);
    assert_eq!(compile("{}", Yields::TextMap).evaluate_map(&variables), Ok([].into()));
    let failed = |message: &str| EvaluationError::Failed(message.to_owned());
    let wrong = compile("dyn(doc.metadata.name)", Yields::Bool).evaluate_bool(&variables);
    assert_eq!(wrong, Err(failed("the expression must yield a bool, but yields a string")));
    let wrong = compile("dyn(1)", Yields::Text).evaluate_text(&variables);
    assert_eq!(wrong, Err(failed("the expression must yield a string, but yields an int")));
    let wrong = compile("dyn([])", Yields::TextMap).evaluate_map(&variables);
    assert_eq!(wrong, Err(failed("the expression must yield a map, but yields a list")));
    let wrong = compile("dyn({'a': 1})", Yields::TextMap).evaluate_map(&variables);
    assert_eq!(wrong, Err(failed("the value of \"a\" is an int; convert it with string(…)")));
    let wrong = compile("dyn({1: 'a'})", Yields::TextMap).evaluate_map(&variables);
    assert_eq!(wrong, Err(failed("the key 1 is not a string")));
}

#[test]
fn an_expression_is_shown_by_its_text() {
    let expression = compile("true || false", Yields::Bool);
    assert_eq!(expression.source(), "true || false");
    assert_eq!(format!("{expression:?}"), "Expression(\"true || false\")");
}

#[test]
fn what_is_only_asked_for_takes_no_memory() {
    let taken = |source: &str| {
        let document = json!({"metadata": {}, "status": (0..100).map(|_| json!({})).collect::<Vec<_>>()}).to_string();
        let budget = Budget::default();
        let _ = Value::read(&document, &compile(source, Yields::Bool).paths("doc"), &budget).unwrap();
        Budget::default().bytes_left() - budget.bytes_left()
    };
    assert_eq!(taken("has(doc.status)"), 0);
    assert_eq!(taken("doc.status != null"), 0);
    assert!(taken("doc.status.size() > 0") > 0);
}

/// A variable that is set again has its new value; all others stay as they are.
#[test]
fn a_variable_may_be_set_again() {
    let of = |one: i64| Value::map([("count", one.into())]);
    let variables =
        Variables::new().with("extra", of(1)).with("table", Value::map([("a", "b".into())])).with("extra", of(2));
    let holds = |source| compile(source, Yields::Bool).evaluate_bool(&variables);
    assert_eq!(holds("extra.count == 2 && table.a == 'b'"), Ok(true));
}

/// A first try has less of everything, and says when that was too little.
#[test]
fn a_brief_budget_is_soon_spent_and_says_so() {
    let (brief, usual) = (Budget::brief(), Budget::default());
    assert!(brief.is_brief() && !usual.is_brief());
    assert!(brief.bytes_left() < usual.bytes_left());
    let document = crate::tests::document().to_string();
    let base = variables(whole(&document));
    let costly = compile("lists.range(120).all(x, lists.range(120).all(y, x != y + 300))", Yields::Bool);
    assert_eq!(costly.evaluate_bool(&base.clone().within(&usual)), Ok(true));
    assert!(!usual.was_too_brief());
    assert!(!brief.was_too_brief());
    assert_eq!(costly.evaluate_bool(&base.clone().within(&brief)), Err(EvaluationError::Spent));
    assert!(brief.was_too_brief(), "what came of it is worth nothing");
    let taken = Budget::brief();
    assert_eq!(taken.take(1), Ok(()));
    assert!(!taken.was_too_brief());
    assert_eq!(taken.take(u64::MAX), Err(EvaluationError::Spent));
    assert!(taken.was_too_brief());
    assert_eq!(taken.take(0), Ok(()));
    assert!(taken.was_too_brief(), "it stays so");
    let spent = Budget::default();
    assert_eq!(spent.take(u64::MAX), Err(EvaluationError::Spent));
    assert!(!spent.was_too_brief(), "it was no first try");
    let immediate = Budget::immediate();
    assert!(immediate.is_brief() && immediate.bytes_left() < brief.bytes_left());
    assert!(immediate.bytes_left() >= 64 << 10, "an ordinary node fits in");
    let short = compile("lists.range(1200).all(x, x < 1200)", Yields::Bool);
    assert_eq!(short.evaluate_bool(&base.clone().within(&immediate)), Err(EvaluationError::Spent));
    assert!(immediate.was_too_brief());
    assert_eq!(short.evaluate_bool(&base.clone().within(&Budget::brief())), Ok(true));
    let ordinary = compile("lists.range(100).all(x, x < 1200)", Yields::Bool);
    assert_eq!(ordinary.evaluate_bool(&base.clone().within(&Budget::immediate())), Ok(true));
    assert_eq!(compile("true", Yields::Bool).evaluate_bool(&base.clone().within(&spent)), Err(EvaluationError::Spent));
}

/// What is too large or too deep to be read takes no memory from what is read behind it.
#[test]
fn what_is_not_read_takes_nothing_from_the_rest() {
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let wide: Vec<_> = (0..40_000).map(|_| json!({"a": 1})).collect();
    let text = format!(r#"{{"status": {}, "spec": {deep}, "metadata": {{"name": "a"}}}}"#, json!(wide));
    let budget = Budget::default();
    let document = Value::read(
        &text,
        &compile("doc.status == 1 || doc.spec.taints == [] || doc.metadata.name == 'a'", Yields::Bool).paths("doc"),
        &budget,
    )
    .unwrap();
    assert_eq!(holds("doc.metadata.name == 'a'", document.clone()), Ok(true));
    assert_eq!(holds("doc.status == 1", document), Err(EvaluationError::TooLarge));
    assert!(budget.bytes_left() > Budget::default().bytes_left() - 1000, "{}", budget.bytes_left());
    let deep = Value::read(&deep, &Paths::Whole, &Budget::default()).unwrap();
    assert!(deep.is_unread());
    assert_eq!(holds("doc.status == 1", Value::map([("status", deep)])), Err(EvaluationError::TooDeep));
}

#[test]
fn a_field_is_put_where_it_belongs() {
    let shown = |map: &Value<'_>| -> Vec<(String, i64)> {
        let entries = map.entries().unwrap();
        entries.iter().map(|(key, value)| (key.as_str().unwrap().to_owned(), value.as_i64().unwrap())).collect()
    };
    let map = Value::map([("a", 1_i64.into()), ("c", 3_i64.into()), ("e", 5_i64.into())]);
    for name in ["0", "a", "b", "c", "d", "e", "f"] {
        let with = map.clone().with_field(name, 9_i64.into());
        let mut expected =
            [("a", 1), ("c", 3), ("e", 5)].into_iter().filter(|(key, _)| *key != name).collect::<Vec<_>>();
        expected.push((name, 9));
        expected.sort_unstable();
        let expected: Vec<_> = expected.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        assert_eq!(shown(&with), expected);
        assert_eq!(with.field(name).and_then(|value| value.as_i64()), Some(9));
    }
    assert_eq!(shown(&Value::NULL.with_field("a", 1_i64.into())), [("a".to_owned(), 1)]);
}

/// What a reader lends is paid for and its memory is free again.
#[test]
fn what_is_lent_is_given_back() {
    let budget = Budget::default();
    let text = json!([[], [], []]).to_string();
    let before = budget.bytes_left();
    let during =
        budget.lend(text.len(), || Value::read(&text, &Paths::Whole, &budget), |_| budget.bytes_left()).unwrap();
    assert!(during < before, "it is taken while it is looked at");
    assert_eq!(budget.bytes_left(), before);
    assert_eq!(budget.lend(1 << 20, || (), |()| ()), Ok(()));
    assert_eq!(budget.take(3_500_000), Ok(()), "reading is cheap");
    let none = Budget::default();
    assert_eq!(none.lend(usize::MAX, || (), |()| ()), Err(EvaluationError::Spent));
    assert_eq!(none.take(1), Err(EvaluationError::Spent), "the steps are spent");
}

/// Equal keys of a document may stand side by side or apart, in any order.
#[test]
fn of_equal_keys_of_a_document_the_last_counts() {
    for text in [
        r#"{"status": {"b": 1, "a": 2, "b": 3}}"#,
        r#"{"status": {"a": 1, "a": 2, "b": 3}}"#,
        r#"{"status": {"a": 2, "b": 3}}"#,
        r#"{"status": {"b": 3, "a": 2}}"#,
        r#"{"status": {"b": 1}, "kind": "x", "status": {"a": 2, "b": 3}}"#,
    ] {
        let source = "doc.status == {'a': 2, 'b': 3} && doc.status.a == 2 && doc.status.b == 3";
        assert_eq!(holds(source, whole(text)), Ok(true), "{text}");
        let paths = compile(source, Yields::Bool).paths("doc");
        let part = Value::read(text, &paths, &Budget::default()).unwrap();
        assert_eq!(holds(source, part), Ok(true), "{text}");
    }
}

/// What is given takes as much of the budget as the same read from a document, and at least what it is held in.
#[test]
fn lists_and_maps_take_memory_of_the_budget() {
    let taken = |text: &str| {
        let (reading, giving) = (Budget::default(), Budget::default());
        let value = Value::read(text, &Paths::Whole, &reading).unwrap().charged(&giving);
        assert!(!value.is_unread());
        let taken = Budget::default().bytes_left() - reading.bytes_left();
        assert_eq!(Budget::default().bytes_left() - giving.bytes_left(), taken, "{text}");
        taken
    };
    let (item, entry) = (size_of::<Value<'_>>(), size_of::<(&str, Value<'_>)>());
    assert_eq!(taken("7"), 0);
    assert_eq!(taken("\"borrowed\""), 0);
    let empty = taken("[]");
    assert!(empty > 0 && taken("{}") == empty);
    // While a list or a map grows, what it holds is there twice.
    assert!(taken("[1]") - empty >= 2 * item && taken("[1, 2]") - taken("[1]") >= 2 * item);
    assert!(taken(r#"{"a": 1}"#) - empty >= 2 * entry);
    assert_eq!(taken(r#"{"a": 1, "b": 2}"#) - taken(r#"{"a": 1}"#), taken(r#"{"a": 1}"#) - empty);
    assert_eq!(taken("[[]]") - taken("[1]"), empty);
    assert_eq!(taken(r#"{"a": [[], 1]}"#), taken(r#"{"a": 1}"#) + taken("[[], 1]"));
    assert_eq!(taken("[{}, {}]"), taken("[1, 2]") + 2 * empty);
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
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let unread = Value::read(&deep, &Paths::Whole, &Budget::default()).unwrap();
    assert!(unread.with_fields([("x", Some(1_i64.into()))]).is_unread());
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
    assert!(
        message.contains("`extra` has the field `secret` elsewhere, but not here; the available fields are vendor"),
        "{message}"
    );
    assert!(refusal("extra.vednor == 'x'").contains("did you mean `vendor`?"));
    assert!(refusal("doc.labels == {}").contains("write doc.metadata.labels"));
    assert!(refusal("dox == 1").contains("there is no variable `dox` here; did you mean `doc`?"));
    assert!(refusal("other == 1").contains("there is no variable `other` here; the variables are doc, extra, table"));
}

#[test]
fn a_variable_that_is_not_set_is_not_known() {
    let expression = compile("doc.metadata.name == 'a'", Yields::Bool);
    assert_eq!(expression.evaluate_bool(&Variables::new()), Err(EvaluationError::Failed("doc is unknown".to_owned())));
}
