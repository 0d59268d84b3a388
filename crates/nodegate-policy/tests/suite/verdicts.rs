//! What `decide` and `judge` do with expressions that cost too much or fail.

use nodegate_cel::Budget;
use nodegate_policy::simulate::{Scene, compile_inline, simulate};
use nodegate_policy::{
    CHANGES_MAX, DecideContext, Exemptions, NodeFacts, Operation, Requester, Text, Verdict, Write, decide, judge,
};
use serde_json::{Value as Json, json};

/// The verdict on a label that `user` adds to a node without labels.
fn verdict_on(policy: &Json, label: &str, user: &str) -> Verdict {
    let node = |labels: Json| json!({"metadata": {"name": "n", "uid": "u", "labels": labels}});
    let scene =
        Scene { old: Some(node(json!({}))), ..Scene::of(node(json!({label: "b"})), user.to_owned(), Vec::new()) };
    simulate(&compile_inline(policy).unwrap(), &scene, &Exemptions::default()).unwrap().verdict
}

/// The same, with one expression.
fn verdict(expression: &str, mode: &str, user: &str) -> Verdict {
    let governance = json!({
        "expressions": [{"name": "e", "expression": expression, "mode": mode}],
        "breakGlass": {"users": ["oncall"]},
    });
    verdict_on(&json!({"governance": governance}), "a", user)
}

#[test]
fn an_entry_that_costs_too_much_prevents_a_verdict_only_if_it_could_deny_the_write() {
    let costly =
        "object.metadata.labels.size() >= 0 && lists.range(100000).all(x, lists.range(100000).all(y, x != y + 100000))";
    let of = |mode, user| {
        let verdict = verdict(costly, mode, user);
        (verdict.too_costly.is_some(), verdict.unknown.len(), verdict.violations.len())
    };
    assert_eq!(of("enforce", "alice"), (true, 0, 0));
    assert_eq!(of("warn", "alice"), (false, 1, 0), "it could only warn");
    assert_eq!(of("audit", "alice"), (false, 1, 0));
    assert_eq!(of("enforce", "oncall"), (false, 1, 0), "it is overridden");
}

#[test]
fn a_write_that_changes_more_keys_than_anyone_does_is_denied_as_a_whole() {
    let labels = |count: usize, part: &str| (0..count).map(|at| (format!("{part}{at}"), json!(""))).collect::<Json>();
    let denial = |new: Json, old: Json| {
        let node = |labels: Json| json!({"metadata": {"name": "n", "uid": "u", "labels": labels}});
        let scene = Scene { old: Some(node(old)), ..Scene::of(node(new), "alice".to_owned(), Vec::new()) };
        let set = compile_inline(&json!({"protect": {"keys": ["p.example/*"]}})).unwrap();
        let verdict = simulate(&set, &scene, &Exemptions::default()).unwrap().verdict;
        assert!(verdict.violations.len() <= 1 && verdict.further.is_empty(), "each key is not looked at");
        verdict.denial()
    };
    assert_eq!(denial(labels(CHANGES_MAX, "a"), json!({})), None);
    for (new, old) in [(CHANGES_MAX + 1, 0), (0, CHANGES_MAX + 1), (30_000, 30_000)] {
        let denied = denial(labels(new, "a"), labels(old, "b")).unwrap();
        assert!(denied.contains(&format!("changes {} labels, annotations and taints", new + old)), "{denied}");
    }
    assert_eq!(denial(labels(60_000, "a"), labels(60_000, "a")), None, "what is there already does not count");
}

#[test]
fn an_entry_that_fails_denies_nothing_and_is_reported_once() {
    let failing = verdict("object.metadata.annotations['x'] == 'y'", "enforce", "alice");
    assert_eq!((failing.too_costly, failing.unknown.len(), failing.violations.len()), (None, 1, 0));
    let denied = verdict("!('a' in object.metadata.labels)", "enforce", "alice");
    assert!(denied.denial().is_some() && denied.unknown.is_empty());
    let overridden = verdict("!('a' in object.metadata.labels)", "enforce", "oncall");
    assert_eq!((overridden.denial(), overridden.violations.len()), (None, 1));
}

#[test]
fn an_expression_that_reads_a_part_alone_pays_for_the_length_of_the_whole_node() {
    // Each reads all of the capacity, and another reads one resource, so that they are not read together.
    let alone = |variable: &str, at: usize| format!("{variable}.status.capacity.size() != {at}");
    let one = |variable: &str| format!("{variable}.status.capacity['cpu'] == '8'");
    let rule = |at: usize, expression: String| json!({"name": format!("r{at}"), "match": {"expression": expression}, "labels": {"x": "y"}});
    let entry = |at: usize, expression: String| json!({"name": format!("e{at}"), "expression": expression});
    let all = |of: &dyn Fn(usize, String) -> Json, variable: &str| -> Vec<Json> {
        (2..12).map(|at| of(at, alone(variable, at))).chain([of(12, one(variable))]).collect()
    };
    let rules = compile_inline(&json!({"rules": all(&rule, "node")})).unwrap();
    let entries = compile_inline(&json!({"governance": {"expressions": all(&entry, "object")}})).unwrap();
    let too_brief = |text: usize| {
        let status = json!({"capacity": {"cpu": "8"}, "long": "x".repeat(text)});
        let text = json!({"metadata": {"name": "n"}, "status": status}).to_string();
        let requester = Requester { username: Text("alice".into()), ..Requester::default() };
        let node = NodeFacts::parse(&text).unwrap();
        let write = Write {
            operation: Operation::Create,
            status: false,
            dry_run: false,
            requester,
            evidence: None,
            node,
            old: None,
        };
        let (decided, judged) = (Budget::brief(), Budget::brief());
        let within = |budget| DecideContext { budget: Some(budget), ..DecideContext::default() };
        decide(&rules, &write, &within(&decided));
        judge(&entries, &write, &within(&judged), &Exemptions::default());
        (decided.was_too_brief(), judged.was_too_brief())
    };
    assert_eq!(too_brief(1_000), (false, false));
    assert_eq!(too_brief(500_000), (true, true));
}

/// The event loop waits for a first attempt, so one that does not suffice must not look at everything else.
#[test]
fn a_first_attempt_ends_with_its_budget() {
    // About fifty of them take what a first attempt has.
    let expression = "lists.range(20).all(x, x < 30)";
    let rule = |at: usize| json!({"name": format!("r{at}"), "match": {"expression": expression}, "labels": {format!("k{at}"): "y"}});
    let entry = |at: usize| json!({"name": format!("e{at}"), "expression": format!("object.metadata.name != 'x' && {expression}"), "mode": "audit"});
    let rules = compile_inline(&json!({"rules": (0..400).map(rule).collect::<Vec<_>>()})).unwrap();
    let entries = json!({"governance": {"expressions": (0..400).map(entry).collect::<Vec<_>>()}});
    let entries = compile_inline(&entries).unwrap();
    let text = json!({"metadata": {"name": "n"}}).to_string();
    let node = NodeFacts::parse(&text).unwrap();
    let requester = Requester { username: Text("alice".into()), ..Requester::default() };
    let write = Write {
        operation: Operation::Create,
        status: false,
        dry_run: false,
        requester,
        evidence: None,
        node,
        old: None,
    };
    let unknown = |budget: Budget| {
        let context = DecideContext { budget: Some(&budget), ..DecideContext::default() };
        let notes = decide(&rules, &write, &context).notes.len();
        let verdict = judge(&entries, &write, &context, &Exemptions::default());
        (budget.was_too_brief(), notes + verdict.unknown.len())
    };
    let (too_brief, failed) = unknown(Budget::immediate());
    assert!(too_brief && failed <= 2, "{failed} of 800 were looked at in vain");
    assert_eq!(unknown(Budget::default()), (false, 0));
}

#[test]
fn who_may_override_a_policy_may_override_its_presets() {
    let policy = json!({"presets": ["vendor-guard"], "governance": {"breakGlass": {"users": ["oncall"]}}});
    let denied = |user: &str| {
        let verdict = verdict_on(&policy, "nvidia.com/gpu.count", user);
        (verdict.violations.len(), verdict.denial().is_some())
    };
    assert_eq!(denied("alice"), (1, true));
    assert_eq!(denied("oncall"), (1, false));
}

#[test]
fn what_is_found_of_a_node_as_a_whole_is_found_once_however_many_keys_it_has() {
    let labels: serde_json::Map<_, _> = (0..9_000).map(|at| (format!("label-{at}"), json!("x"))).collect();
    let labels = Json::from(labels);
    let node = |labels: &Json| json!({"metadata": {"name": "n", "uid": "u", "labels": labels}});
    let scene =
        Scene { old: Some(node(&json!({"owner": "a"}))), ..Scene::of(node(&labels), "alice".to_owned(), Vec::new()) };
    let governance = json!({"required": [{"name": "owner", "keys": ["owner"]}]});
    let set = compile_inline(&json!({"governance": governance})).unwrap();
    let verdict = simulate(&set, &scene, &Exemptions::default()).unwrap().verdict;
    assert_eq!(verdict.violations.len(), 1, "{:?}", verdict.violations);
}
