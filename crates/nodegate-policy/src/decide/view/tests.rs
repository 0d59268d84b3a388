//! What rules see of a node.

use serde_json::json;

use super::*;

const NODE: &str = r#"{"metadata": {"name": "n"}}"#;

/// A set with one rule, whose condition looks at so many items.
fn set(items: u32) -> PolicySet {
    let condition = format!("node.metadata.name == 'n' && lists.range({items}).all(x, x >= 0)");
    let rules = json!([{"name": "r", "match": {"expression": condition}, "labels": {"a": "b"}}]);
    crate::simulate::compile_inline(&json!({"rules": rules})).unwrap()
}

fn evaluate(set: &PolicySet, view: &View<'_>) -> Kleene {
    view.evaluate_bool(set.rules()[0].expressions().next().unwrap())
}

#[test]
fn expressions_are_charged_to_the_shared_budget() {
    let facts = NodeFacts::parse(NODE).unwrap();
    for (budget, items, expected) in [
        (Budget::brief(), 10, Kleene::True),
        (Budget::brief(), 60_000, Kleene::Unknown),
        (Budget::default(), 60_000, Kleene::True),
    ] {
        let set = set(items);
        let view = View::new(&set, &facts, None, None).within(Some(&budget));
        let (outcome, failures) = (evaluate(&set, &view), view.take_failures());
        assert_eq!(outcome, expected, "{items}: {failures:?}");
        let too_costly = expected == Kleene::Unknown;
        assert_eq!((failures.len(), budget.was_too_brief()), (usize::from(too_costly), too_costly), "{items}");
    }
}

#[test]
fn without_a_shared_budget_all_expressions_of_a_view_have_one() {
    let (set, facts) = (set(60_000), NodeFacts::parse(NODE).unwrap());
    let view = View::new(&set, &facts, None, None);
    assert_eq!(evaluate(&set, &view), Kleene::True);
    assert!((0..70).any(|_| evaluate(&set, &view) == Kleene::Unknown));
    assert_eq!(evaluate(&set, &View::new(&set, &facts, None, None)), Kleene::True, "another view has its own budget");
}
