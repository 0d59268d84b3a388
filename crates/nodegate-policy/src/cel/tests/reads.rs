//! The reads of expressions.

use std::collections::BTreeMap;

use super::super::{Expression, LabelRead, Polarity, Reads, Scope, Variables, Yields};
use super::{compile, whole};
use proptest::prelude::*;

fn value(key: &str) -> LabelRead {
    LabelRead { key: key.to_owned(), polarity: Polarity::Value }
}

fn presence(key: &str) -> LabelRead {
    LabelRead { key: key.to_owned(), polarity: Polarity::Presence }
}

fn labels<const N: usize>(labels: [LabelRead; N]) -> Reads {
    Reads { labels: labels.into(), ..Reads::default() }
}

fn check(source: &str, expected: &Reads) {
    assert_eq!(compile(source, Yields::Bool).reads(), expected, "{source}");
}

#[test]
fn the_value_of_a_label_is_read_however_it_is_written() {
    let sources = [
        r#"node.metadata.labels["k"] == "v""#,
        r#"node.metadata.labels.k == "v""#,
        r#"node["metadata"]["labels"]["k"] == "v""#,
        r#"node.metadata.labels[?"k"].orValue("") == "v""#,
        r#"node.metadata.labels[?"k"].hasValue()"#,
        r#"node.metadata.?labels.?k.orValue("") == "v""#,
        r#"node.metadata.?labels.orValue({})["k"] == "v""#,
        r#"node.metadata.labels.k.startsWith("v")"#,
        r#"[1].exists(x, node.metadata.labels.k == string(x))"#,
    ];
    for source in sources {
        check(source, &labels([value("k")]));
    }
}

#[test]
fn presence_that_can_only_help_is_distinguished() {
    let sources = [
        r#""k" in node.metadata.labels"#,
        "has(node.metadata.labels.k)",
        r#""k" in node.metadata.?labels.orValue({})"#,
        r#"has(node.metadata.labels) && "k" in node.metadata.labels"#,
        r#"("k" in node.metadata.labels || false) && true"#,
        r#"true ? "k" in node.metadata.labels : false"#,
        r#"[1, 2].exists(x, x == 1 && "k" in node.metadata.labels)"#,
        r#"[1, 2].all(x, has(node.metadata.labels.k))"#,
    ];
    for source in sources {
        check(source, &labels([presence("k")]));
    }
}

#[test]
fn presence_that_may_harm_counts_as_the_value() {
    let sources = [
        r#"!("k" in node.metadata.labels)"#,
        "!has(node.metadata.labels.k)",
        r#"("k" in node.metadata.labels) == true"#,
        r#""k" in node.metadata.labels ? true : false"#,
        r#"[1].exists_one(x, "k" in node.metadata.labels)"#,
        r#"[1].filter(x, "k" in node.metadata.labels) == [1]"#,
        r#"[1].map(x, has(node.metadata.labels.k), x) == [1]"#,
        r#"bool(string("k" in node.metadata.labels))"#,
        r#"!(!("k" in node.metadata.labels))"#,
        r#"["k" in node.metadata.labels] == [true]"#,
        "has(node.metadata.labels[?'k'].deeper)",
        r#"[1].exists(x, !has(node.metadata.labels.k))"#,
    ];
    for source in sources {
        check(source, &labels([value("k")]));
    }
}

#[test]
fn presence_is_no_help_to_text_and_maps() {
    let text = compile(r#""k" in node.metadata.labels ? "a" : "b""#, Yields::Text);
    assert_eq!(text.reads(), &labels([value("k")]));
    let map = compile(r#"{"a": has(node.metadata.labels.k) ? "x" : "y"}"#, Yields::TextMap);
    assert_eq!(map.reads(), &labels([value("k")]));
}

#[test]
fn a_label_that_is_read_both_ways_is_read_by_value() {
    let source = r#""k" in node.metadata.labels && node.metadata.labels.k == "v" && "a" in node.metadata.labels"#;
    check(source, &labels([presence("a"), value("k")]));
}

#[test]
fn labels_with_a_computed_key_or_as_a_whole_are_any_label() {
    let any = Reads { any_label: true, ..Reads::default() };
    let sources = [
        r#"node.metadata.labels["a" + "b"] == "v""#,
        r#"("a" + "b") in node.metadata.labels"#,
        r#"node.metadata.labels.exists(k, k.startsWith("x"))"#,
        r#"node.metadata.labels.exists(k, v, v == "x")"#,
        "size(node.metadata.labels) > 3",
        "node.metadata.labels.size() > 3",
        r#"node.metadata.labels == {"a": "b"}"#,
        r#"node.metadata.?labels.orValue({"a": "b"}) == {}"#,
        r#"dyn(node.metadata.labels) == {}"#,
        r#""k" in dyn(node.metadata.labels)"#,
        r#"[node.metadata.labels].exists(l, "k" in l)"#,
        r#"(true ? node.metadata.labels : {})["k"] == "v""#,
    ];
    for source in sources {
        check(source, &any);
    }
    let name = Reads { name: true, ..any };
    check(r#"node.metadata.labels[node.metadata.name] == "v""#, &name);
}

#[test]
fn taints_name_gpu_inventory_and_identity_are_reported() {
    let taints = Reads { taints: true, ..Reads::default() };
    check(r#"node.spec.taints.exists(t, t.key == "a")"#, &taints);
    check("size(node.spec.taints) == 0", &taints);
    check(r#"node.spec.taints[0].key == "a""#, &taints);
    check(r#"node.spec.?taints.orValue([]).exists(t, t.key == "a")"#, &taints);
    let name = Reads { name: true, ..Reads::default() };
    check(r#"node.metadata.name == "a""#, &name);
    check(r#"has(node.metadata.name)"#, &name);
    check("gpu.count > 1", &Reads { gpu: true, ..Reads::default() });
    check("has(gpu.model)", &Reads { gpu: true, ..Reads::default() });
    check("gpu == {}", &Reads { gpu: true, ..Reads::default() });
    check(r#""a" in inventory"#, &Reads { inventory: true, ..Reads::default() });
    check(r#"inventory["a"] == "b""#, &Reads { inventory: true, ..Reads::default() });
    check(r#""gpu" in identity.pools"#, &Reads { pools: true, ..Reads::default() });
    check("size(identity.contradictions) > 0", &Reads { contradictions: true, ..Reads::default() });
    check("has(identity.instance)", &Reads { instance: true, ..Reads::default() });
}

#[test]
fn everything_else_is_reported_as_other() {
    let other = Reads { other: true, ..Reads::default() };
    let sources = [
        r#"node.status.nodeInfo.architecture == "arm64""#,
        r#"node.status.capacity["cpu"] == "1""#,
        r#"node.spec.providerID.startsWith("aws")"#,
        r#"node.metadata.annotations["a"] == "b""#,
        r#""a" in node.metadata.annotations"#,
        "has(node.status.capacity)",
        "node.status.conditions.exists(c, c.type == 'Ready')",
        "node.kind == 'Node'",
        "has(node.metadata.uid)",
        "node.status[node.kind] == 1",
    ];
    for source in sources {
        check(source, &other);
    }
}

#[test]
fn reading_a_whole_part_of_a_node_reads_everything_in_it() {
    let all = Reads { any_label: true, taints: true, name: true, other: true, ..Reads::default() };
    check("node == {}", &all);
    check("[node].exists(n, n.metadata.name == 'a')", &all);
    check("node['meta' + 'data'].name == 'a'", &all);
    let metadata = Reads { any_label: true, name: true, other: true, ..Reads::default() };
    check("node.metadata == {}", &metadata);
    check("node.metadata['lab' + 'els'] == {}", &metadata);
    check("node.metadata.exists(k, k == 'a')", &metadata);
    check("'a' in dyn(node.metadata)", &metadata);
    check("size(node.spec) > 1", &Reads { taints: true, other: true, ..Reads::default() });
}

#[test]
fn testing_the_presence_of_a_field_that_every_node_has_reads_nothing() {
    for source in ["has(node.metadata.labels)", "has(node.spec.taints)", "'labels' in node.metadata", "1 < 2"] {
        check(source, &Reads::default());
    }
}

#[test]
fn for_a_write_only_the_objects_are_reported() {
    let reads = |source| Expression::compile(source, Scope::Write, Yields::Bool).unwrap().reads().clone();
    assert_eq!(reads("request.operation == 'UPDATE'"), Reads::default());
    let new = Reads { object: true, ..Reads::default() };
    assert_eq!(reads("object.metadata.labels.a == 'b' && request.operation == 'UPDATE'"), new);
    let old = Reads { old_object: true, ..Reads::default() };
    assert_eq!(reads("oldObject == null"), old);
    assert_eq!(reads("has(oldObject.metadata.labels.a)"), old);
    assert_eq!(reads("[1].all(x, size(oldObject.spec.taints) == x)"), old);
    assert_eq!(reads("dyn(oldObject).metadata.name == 'a'"), old);
}

/// Conditions over the labels `a`, `b` and `c`.
fn condition() -> impl Strategy<Value = String> {
    let leaves = [
        "'a' in node.metadata.labels",
        "has(node.metadata.labels.b)",
        "'c' in node.metadata.?labels.orValue({})",
        "node.metadata.labels.c == '1'",
        "node.metadata.labels[?'a'].orValue('') == '1'",
        "node.metadata.labels[?'b'].hasValue()",
        "size(node.metadata.labels) > 1",
        "node.metadata.labels.exists(k, k == 'b')",
        "node.metadata.labels == {'a': '1'}",
        "has(node.metadata.labels)",
        "1 / 0 == 1",
        "true",
        "false",
    ];
    let leaf = prop::sample::select(leaves.to_vec()).prop_map(str::to_owned);
    leaf.prop_recursive(4, 24, 3, |inner| {
        let shapes = [
            "(X && Y)",
            "(X || Y)",
            "!(X)",
            "(X ? Y : Z)",
            "(X == Y)",
            "[1, 2].exists(i, i == 1 && X)",
            "[1, 2].all(i, X || i == 1)",
            "[1].exists_one(i, X)",
            "[X, Y].all(v, v)",
            "[X, Y].exists(v, v)",
            "[1].filter(i, X) == [1]",
            "(true ? X : Y)",
            "optional.of(X).orValue(Y)",
            "{'k': X}.k",
            "dyn(X)",
            "bool(string(X))",
            "(X) in [true]",
            "optional.of(1).optMap(o, X).value()",
        ];
        let parts = (prop::sample::select(shapes.to_vec()), inner.clone(), inner.clone(), inner);
        parts.prop_map(|(shape, x, y, z)| shape.replace('X', &x).replace('Y', &y).replace('Z', &z))
    })
}

/// The results for every combination of the three labels with one of two values.
fn answers(expression: &Expression) -> Vec<(BTreeMap<&'static str, &'static str>, Option<bool>)> {
    let base = Variables::node(&whole(r#"{"metadata": {"name": "n"}}"#));
    let values = [None, Some("1"), Some("2")];
    let mut answers = Vec::new();
    for choice in 0..27 {
        let chosen = [("a", values[choice % 3]), ("b", values[choice / 3 % 3]), ("c", values[choice / 9])];
        let labels: BTreeMap<_, _> = chosen.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        let variables = base.with(labels.iter().map(|(key, value)| (*key, *value)), []);
        answers.push((labels, expression.evaluate_bool(&variables).ok()));
    }
    answers
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// The result depends on the reported labels, and in the reported way.
    #[test]
    fn reads_tell_the_truth(source in condition()) {
        let Ok(expression) = Expression::compile(&source, Scope::Node, Yields::Bool) else { return Ok(()) };
        let reads = expression.reads();
        if reads.any_label {
            return Ok(());
        }
        let answers = answers(&expression);
        let order = |answer: &Option<bool>| match answer {
            Some(false) => 0,
            None => 1,
            Some(true) => 2,
        };
        for key in ["a", "b", "c"] {
            let polarity = reads.labels.iter().find(|read| read.key == key).map(|read| read.polarity);
            for (labels, with) in answers.iter().filter(|(labels, _)| labels.contains_key(key)) {
                let mut fewer = labels.clone();
                fewer.remove(key);
                let without = answers.iter().find(|(labels, _)| *labels == fewer).map(|(_, answer)| answer).unwrap();
                match polarity {
                    None => prop_assert_eq!(with, without, "{} does not read {}", &source, key),
                    Some(Polarity::Presence) => prop_assert!(order(with) >= order(without), "{} {}", &source, key),
                    Some(Polarity::Value) => {}
                }
            }
        }
    }
}
