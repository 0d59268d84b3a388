//! Which parts of a document are read, and the limits.

use serde_json::json;

use super::super::{Budget, Edit, EvaluationError, Excerpt, Expression, Paths, Scope, SharedPaths, Variables, Yields};
use super::{compile, node};

/// Evaluates a condition over a created object, of which only the needed parts are read.
fn evaluate(source: &str, object: &str, budget: &Budget) -> Result<bool, EvaluationError> {
    let expression = Expression::compile(source, Scope::Write, Yields::Bool).unwrap();
    answer(&expression, &Excerpt::read(object, &expression.paths().object, budget).unwrap())
}

fn answer(expression: &Expression, object: &Excerpt<'_>) -> Result<bool, EvaluationError> {
    expression.evaluate_bool(&Variables::write(&object.completed(), None, None))
}

fn paths(source: &str) -> Vec<String> {
    fn leaves(paths: &Paths, prefix: &str, found: &mut Vec<String>) {
        match paths {
            Paths::Whole => found.push(prefix.to_owned()),
            Paths::Members(members) if members.is_empty() => found.push(format!("{prefix}?")),
            Paths::Members(members) => {
                members.iter().for_each(|(key, paths)| leaves(paths, &format!("{prefix}/{key}"), found));
            }
        }
    }
    let mut found = Vec::new();
    leaves(&compile(source, Yields::Bool).paths().node, "", &mut found);
    found
}

#[test]
fn only_what_an_expression_reads_is_read() {
    for (source, expected) in [
        ("node.metadata.name == 'a' && node.spec.unschedulable", vec!["/metadata/name", "/spec/unschedulable"]),
        ("node.status.?images.orValue([]).size() > 0", vec!["/status/images"]),
        ("has(node.status.images)", vec!["/status/images?"]),
        ("'a' in node.status.capacity", vec!["/status/capacity/a?"]),
        ("node.metadata.annotations['a'] == 'b'", vec!["/metadata/annotations/a"]),
        ("node.metadata.annotations[node.metadata.name] == 'b'", vec!["/metadata/annotations", "/metadata/name"]),
        ("node.metadata.labels.a == 'b' && node.spec.taints.exists(t, t.key == 'a')", vec!["?"]),
        ("dyn(node.status).x == 1", vec!["/status"]),
        (
            "node.status.conditions.exists(c, node.status.addresses.exists(a, a.type == c.type))",
            vec!["/status/addresses", "/status/conditions"],
        ),
        ("node == {}", vec![""]),
    ] {
        assert_eq!(paths(source), expected, "{source}");
    }
}

#[test]
fn parts_that_no_expression_reads_may_have_any_size_and_nesting() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let entries = vec!["{}"; 390_000].join(",");
    let text = format!(
        r#"{{"metadata": {{"name": "n", "managedFields": {deep}, "labels": {{"a": "b"}}}}, "status": {{"images": [{entries}]}}, "x": {deep}}}"#
    );
    let budget = Budget::default();
    assert_eq!(evaluate("object.metadata.labels.a == 'b' && has(object.status.images)", &text, &budget), Ok(true));
    assert!(budget.bytes_left() > Budget::default().bytes_left() - 1_000, "{}", budget.bytes_left());
}

#[test]
fn a_part_that_is_too_large_fails_only_expressions_that_read_it() {
    let entries = vec!["{}"; 390_000].join(",");
    let text = format!(r#"{{"status": {{"images": [{entries}], "phase": "x"}}, "metadata": {{"name": "n"}}}}"#);
    let (images, name) =
        ("object.status.images.size() > 0", "object.metadata.name == 'n' && object.status.phase == 'x'");
    let budget = Budget::default();
    assert_eq!(evaluate(images, &text, &budget), Err(EvaluationError::TooLarge));
    assert_eq!(
        evaluate(&format!("true || {images}"), &text, &budget),
        Ok(true),
        "an operand that is not evaluated does not matter"
    );
    assert_eq!(
        evaluate(&format!("{images} || true"), &text, &budget),
        Err(EvaluationError::TooLarge),
        "nothing outweighs it"
    );
    let both = Expression::compile(&format!("{images} && {name}"), Scope::Write, Yields::Bool).unwrap();
    let excerpt = Excerpt::read(&text, &both.paths().object, &budget).unwrap();
    let name = Expression::compile(name, Scope::Write, Yields::Bool).unwrap();
    assert_eq!(answer(&name, &excerpt), Ok(true));
    assert!(
        budget.bytes_left() > Budget::default().bytes_left() - 2_000,
        "what was not kept is free again: {}",
        budget.bytes_left()
    );
    assert!(EvaluationError::TooLarge.to_string().contains("4096 KiB"));
}

#[test]
fn a_part_that_is_nested_too_deeply_fails_only_expressions_that_read_it() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let text = format!(r#"{{"status": {{"x": {deep}, "phase": "x"}}}}"#);
    let budget = Budget::default();
    assert_eq!(evaluate("size(dyn(object.status).x) == 1", &text, &budget), Err(EvaluationError::TooDeep));
    assert_eq!(evaluate("object.status.phase == 'x'", &text, &budget), Ok(true));
}

#[test]
fn strings_with_escapes_are_charged_to_the_budget() {
    let long = r"\u003c".repeat(5 << 20);
    let text = format!(r#"{{"metadata": {{"annotations": {{"a": "{long}", "b": "{}"}}}}}}"#, "<".repeat(5 << 20));
    let budget = Budget::default();
    assert_eq!(evaluate("object.metadata.annotations.a != ''", &text, &budget), Err(EvaluationError::TooLarge));
    assert_eq!(evaluate("object.metadata.annotations.b != ''", &text, &budget), Ok(true), "it is borrowed");
}

#[test]
fn all_of_a_large_ordinary_node_takes_a_fraction_of_the_budget() {
    let mut node = node();
    let image = |at: usize| json!({"names": [format!("registry.example.com/team/image@sha256:{at:064}"), format!("registry.example.com/team/image:{at}")], "sizeBytes": 123_456_789});
    node["status"]["images"] = (0..50).map(image).collect();
    let volume =
        |at: usize| json!({"name": format!("kubernetes.io/csi/ebs.csi.aws.com^vol-{at:017}"), "devicePath": ""});
    node["status"]["volumesAttached"] = (0..110).map(volume).collect();
    node["status"]["volumesInUse"] =
        (0..110).map(|at| format!("kubernetes.io/csi/ebs.csi.aws.com^vol-{at:017}")).collect();
    for at in 0..400 {
        node["metadata"]["labels"][format!("feature.node.kubernetes.io/cpu-cpuid.FEATURE{at}")] = json!("true");
        node["metadata"]["annotations"][format!("example.com/annotation-{at}")] = json!("{\"a\": \"b\"}");
    }
    let text = node.to_string();
    let budget = Budget::brief();
    let before = budget.bytes_left();
    Excerpt::read(&text, &Paths::Whole, &budget).unwrap();
    let taken = before - budget.bytes_left();
    assert!(taken > text.len() / 2, "{taken} bytes are counted");
    assert!(taken * 3 < before, "{taken} of {before} bytes, of a first try");
}

#[test]
fn a_first_attempt_that_runs_out_of_memory_is_repeated() {
    let entries = vec!["{}"; 10_000].join(",");
    let text = format!(r#"{{"status": {{"images": [{entries}]}}}}"#);
    let expression = Expression::compile("object.status.images.size() == 10000", Scope::Write, Yields::Bool).unwrap();
    for (budget, too_brief) in [(Budget::brief(), true), (Budget::default(), false)] {
        let object = Excerpt::read(&text, &expression.paths().object, &budget).unwrap().completed();
        let answer = expression.evaluate_bool(&Variables::write(&object, None, None).within(&budget));
        assert_eq!((answer.is_err(), budget.was_too_brief()), (too_brief, too_brief));
    }
}

#[test]
fn edits_change_keys_and_nothing_else() {
    let text = r#"{"metadata": {"name": "n", "labels": {"a": "1", "b": "2"}},
        "spec": {"x": 1, "taints": [{"key": "t", "effect": "NoSchedule", "timeAdded": "x"}, {"key": "u", "effect": "NoExecute"}]}}"#;
    let budget = Budget::default();
    let label = |key, value| Edit::Entry { map: "labels", key, value };
    let edits = [
        label("b", None),
        label("c", Some("3")),
        label("none", None),
        Edit::Entry { map: "annotations", key: "note", value: Some("x") },
        Edit::Taint { key: "t", effect: "NoSchedule", value: Some("v") },
        Edit::Taint { key: "u", effect: "NoExecute", value: None },
        Edit::Taint { key: "w", effect: "NoSchedule", value: Some("") },
    ];
    let edited = Excerpt::read(text, &Paths::Whole, &budget).unwrap().edited(&edits, &Paths::Whole, &budget);
    let holds = |source: &str| {
        let expression = Expression::compile(source, Scope::Write, Yields::Bool).unwrap();
        assert_eq!(answer(&expression, &edited), Ok(true), "{source}");
    };
    holds("object.metadata.labels == {'a': '1', 'c': '3'} && object.metadata.annotations == {'note': 'x'}");
    holds("dyn(object.spec).x == 1 && object.metadata.name == 'n' && object.spec.taints.size() == 2");
    let presence = Expression::compile("object.metadata.annotations.size() > 0", Scope::Write, Yields::Bool).unwrap();
    let read = Excerpt::read(text, &presence.paths().object, &budget).unwrap();
    assert_eq!(answer(&presence, &read), Ok(false));
    assert_eq!(answer(&presence, &read.edited(&edits, &presence.paths().object, &budget)), Ok(true), "it is made");
    holds("object.spec.taints[0].timeAdded == 'x' && object.spec.taints[0].value == 'v'");
    holds(
        "object.spec.taints[1].key == 'w' && object.spec.taints[1].value == '' && object.spec.taints[1].effect == 'NoSchedule'",
    );
}

#[test]
fn expressions_that_read_a_whole_are_separate_from_those_that_read_parts_of_it() {
    let paths = |source: &str| compile(source, Yields::Bool).paths().node.clone();
    let all = [
        "node.metadata.name == 'a'",
        "dyn(node.metadata).newField == 'a'",
        "node.metadata.annotations.exists(k, k == 'a')",
        "node.metadata.annotations['b'] == 'c'",
        "node.status.images.size() > 1",
        "node.status.images[0].sizeBytes > 1",
        "has(node.status.images)",
    ]
    .map(paths);
    let shared = SharedPaths::of(&all.each_ref());
    assert_eq!(all.each_ref().map(|paths| shared.hold(paths)), [true, false, false, true, true, true, true]);
    let together = shared.together();
    assert!(together.member("metadata").and_then(|metadata| metadata.member("annotations")).is_some());
    assert_ne!(together.member("metadata"), Some(&Paths::Whole));
    assert!(SharedPaths::of(&[&all[1]]).hold(&all[1]), "alone it is in nobody's way");
}
