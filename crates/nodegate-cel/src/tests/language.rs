//! What expressions mean.

use super::{ask, failure};

/// Conditions that hold on the doc of the tests.
const TRUE: &[&str] = &[
    // Text
    r#""a" + 'b' == "ab""#,
    r#""\x41\u0042\103\t" == "ABC\t""#,
    r#""it\'s" == 'it\'s'"#,
    r#"r"\d" == "\\d""#,
    "'''a'b''' == \"a'b\"",
    "\"\"\"a\"b\n\"\"\" == \"a\\\"b\\n\"",
    "b'\\xff' == b'\\377' && b'ab' + b'c' == b'abc'",
    // Numbers
    "1 + 2 * 3 == 7 && (1 + 2) * 3 == 9 && 7 / 2 == 3 && -7 % 4 == -3",
    "1 == 1.0 && 1u == 1 && 2 > 1.5 && -1 < 1u && 1 != 2",
    "0x1F == 31 && 1e3 == 1000.0 && .5 < 1.0 && 4--1 == 5 && - 1 == -1",
    "-9223372036854775808 < 0 && 9223372036854775807 > 0 && 18446744073709551615u > 9223372036854775807",
    // Conditions
    "!false && !!true && (false || true) && !(true && false)",
    "true ? true : false",
    "false ? false : true ? true : false",
    "1 < 2 == true",
    // A term that decides outweighs one that fails.
    "true || 1 / 0 == 1",
    "1 / 0 == 1 || true",
    "!(false && 1 / 0 == 1) && !(1 / 0 == 1 && false)",
    "[0, 1].exists(x, 1 / x == 1)",
    "!([0, 2].all(x, 1 / x == 1))",
    // Lists and maps
    "[1, 2] + [3] == [1, 2, 3] && 2 in [1, 2] && !(3 in [1, 2]) && [1, 2][1] == 2",
    r#"{"a": 1}.a == 1 && {"a": 1}["a"] == 1 && "a" in {"a": 1} && has({"a": 1}.a) && !has({"a": 1}.b)"#,
    r#"{1: "x"}[1u] == "x" && {true: 1}[true] == 1 && {"a": 1, "b": 2} == {"b": 2, "a": 1}"#,
    "[1, 2,] == [1, 2] && {} == {} && [] != [1]",
    "[1, 2, 3].filter(x, x > 1) == [2, 3] && [1, 2].map(x, x * 2) == [2, 4]",
    "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6] && [1, 2].exists_one(x, x == 1) && [1, 2].existsOne(x, x > 1)",
    r#"{"b": 1, "a": 2}.map(k, k) == ["a", "b"] && {"a": 1}.all(k, v, k == "a" && v == 1)"#,
    r#"["x", "y"].exists(i, v, i == 1 && v == "y") && [5].transformList(i, v, i + v) == [5]"#,
    r#"{"a": 1, "b": 2}.transformMap(k, v, v > 1, k + "!") == {"b": "b!"}"#,
    "[1].all(x, [2].all(y, [x, y] == [1, 2]))",
    "[[1, 2], [3]].map(x, x.map(y, y + 1)) == [[2, 3], [4]]",
    // Optionals
    r#"{"a": 1}.?a.orValue(0) == 1 && {"a": 1}.?b.orValue(0) == 0 && {"a": 1}[?"a"].hasValue()"#,
    r#"{"a": {"b": 1}}.?a.b.orValue(0) == 1 && {"a": {}}.?a.b.orValue(0) == 0 && {}.?a.?b[?"c"].orValue(7) == 7"#,
    "[1][?0].value() == 1 && [1][?5].orValue(9) == 9 && optional.none().or(optional.of(1)).value() == 1",
    r#"[?optional.none(), ?optional.of(1)] == [1] && {?"a": optional.none(), ?"b": optional.of(1)} == {"b": 1}"#,
    "optional.of(1).optMap(x, x + 1).value() == 2 && optional.of(1).optFlatMap(x, optional.none()).hasValue() == false",
    "!optional.ofNonZeroValue(\"\").hasValue() && optional.ofNonZeroValue(1).hasValue()",
    "optional.of(1).orValue(1 / 0) == 1 && optional.of([1]) == optional.of([1])",
    // The doc
    r#"doc.metadata.name == "extra-1" && doc.metadata.labels.tier == "gold""#,
    r#""pool" in doc.metadata.labels && has(doc.metadata.labels.pool) && !("nope" in doc.metadata.labels)"#,
    r#"doc.metadata.labels.`kubernetes.io/arch` == "arm64" && int(doc.metadata.labels["count"]) > 2"#,
    r#"doc.spec.taints.exists(t, t.key == "dedicated" && t.value == "ml") && doc.spec.taints[1].value == """#,
    r#"doc.status.conditions.exists_one(c, c.type == "Ready" && c.status == "True")"#,
    "doc.status.daemonEndpoints.kubeletEndpoint.Port == 10250 && size(doc.metadata.annotations.note) == 5",
    "has(doc.metadata.labels) && has(doc.spec.taints) && !has(doc.spec.configSource)",
    r#"extra.vendor == "nvidia" && extra.count >= 2 && !has(extra.source) && table["rack.example.com/row"] == "7""#,
    // Comments and layout
    "true // the end\n  && // more\n !false",
];

#[test]
fn conditions_mean_what_the_language_says() {
    for source in TRUE {
        assert_eq!(ask(source), Ok(true), "{source}");
    }
}

/// Conditions without an answer, and what the message says.
const UNKNOWN: &[(&str, &str)] = &[
    ("doc.metadata.labels.nope == 'x'", r#"doc.metadata.labels has no "nope""#),
    ("doc.metadata.labels['a/b'].startsWith('x')", r#"doc.metadata.labels has no "a/b""#),
    ("dyn(doc.status).nope.deeper == 1", r#"the result of dyn() has no "nope""#),
    ("doc.status.conditions[7].type == 'x'", "doc.status.conditions has no 7"),
    ("doc.status.conditions[-1].type == 'x'", "doc.status.conditions has no -1"),
    ("dyn(doc.status.conditions).type == 'x'", r#"the result of dyn() is a list, which has no "type""#),
    ("extra.source == 'labels'", r#"extra has no "source""#),
    ("1 / (extra.count - 2) == 1", "division by zero"),
    ("1 % (extra.count - 2) == 1", "division by zero"),
    ("9223372036854775807 + extra.count > 0", "beyond the range of int"),
    ("(-9223372036854775807 - 1) / (1 - extra.count) == 1", "beyond the range of int"),
    ("-(-9223372036854775807 - 1) == 1", "beyond the range of int"),
    ("1u - 2u == 0u", "beyond the range of uint"),
    ("int('x' + doc.metadata.name) == 1", "\"xextra-1\" is not an int"),
    ("int(1e300) == 1", "beyond the range of int"),
    ("uint(-1) == 1u", "beyond the range of uint"),
    ("dyn(1) + dyn('a') == 'b'", "`+` cannot take an int and a string"),
    ("dyn(1) < dyn('a')", "an int cannot be compared with a string"),
    ("dyn('a') && true", "is no condition but a string"),
    ("dyn(1).startsWith('a')", "string.startsWith(string) cannot take an int"),
    ("'a' in dyn('abc')", "`in` needs a list or a map"),
    ("dyn([1]).all(x, x)", "is no condition but an int"),
    ("dyn(1).all(x, true)", "this needs a list or a map"),
    ("{'a': 1, 'a': 2} == {}", "has the key \"a\" twice"),
    ("optional.none().value() == 1", "orValue"),
    ("dyn(1).orValue(2) == 2", "is no optional but an int"),
    ("[1, 'a'].sort() == []", "cannot be compared"),
    ("[].min() == 1", "empty list"),
    ("bytes('é') == b'a' || string(b'\\xff') == ''", "not UTF-8"),
    ("timestamp(doc.metadata.name) > timestamp('2020-01-01T00:00:00Z')", "not a point in time such as"),
    ("quantity(doc.metadata.name).isGreaterThan(quantity('1'))", "is not a quantity"),
    ("ip(doc.metadata.name).family() == 4", "ip()"),
];

#[test]
fn what_fails_makes_the_answer_unknown_and_says_why() {
    for (source, expected) in UNKNOWN {
        let message = failure(source);
        assert!(message.contains(expected), "{source}: {message}");
    }
}

/// Both sides of `&&` and `||` fail: there is no answer.
#[test]
fn a_failure_that_nothing_outweighs_stays() {
    assert!(failure("1 / 0 == 1 || false").contains("division"));
    assert!(failure("1 / 0 == 1 && true").contains("division"));
    assert!(failure("[0, 2].exists(x, 1 / x == 1)").contains("division"));
}

/// The interpreter of the `cel` crate agrees wherever it is known to be right.
#[test]
fn the_cel_crate_agrees() {
    let context = kube_cel::KubeCelExt::with_all(cel::Context::default());
    let sources = [
        "1 + 2 * 3 - 4 / 2 % 3",
        "'a' + 'b' == 'ab' ? [1, 2] : [3]",
        "[1, 2, 3].filter(x, x % 2 == 1).map(x, x * x)",
        "{'a': 1, 'b': [2]}.b[0] in [1, 2]",
        "[1, 2].all(x, x > 0) && [1, 2].exists(x, x == 2) || [1].exists_one(x, x == 1)",
        "size('abc') + size([1, 2]) + size({'a': 1})",
        "'a.b.c'.split('.').join('-').upperAscii()",
        "'hello'.substring(1, 3) + 'hello'.charAt(4) + ' x '.trim()",
        "'%s has %d of %.2f'.format(['x', 3, 1.5])",
        "'abcabc'.indexOf('c', 3) + 'abcabc'.lastIndexOf('b') + [1, 2].indexOf(2)",
        "'aaa'.replace('a', 'b', 2) + 'x'.replace('', '-')",
        "[3, 1, 2].sort() + [1, 1].distinct() + [[1], [2]].flatten() + lists.range(2)",
        "math.greatest(1, 3, 2) + math.least(4, 5) + math.abs(-2)",
        "sets.contains([1, 2], [1]) && sets.intersects([1], [1, 2]) && !sets.equivalent([1], [2])",
        "quantity('1.5Gi').isGreaterThan(quantity('1G')) && semver('1.2.3').minor() == 2",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && ip('::1').isLoopback()",
        "duration('1h') + duration('30m') == duration('90m')",
        "timestamp('2026-01-02T03:04:05Z').getFullYear() == 2026",
        "base64.encode(b'hi') + string(1.5) + string(7u)",
        "'abc'.matches('^a.c$') && 'a1b22'.findAll('[0-9]+') == ['1', '22']",
    ];
    for source in sources {
        let theirs = cel::Program::compile(source).unwrap().execute(&context).unwrap();
        let theirs = theirs.json().unwrap();
        assert_eq!(ask(&format!("({source}) == {}", literal(&theirs))), Ok(true), "{source}: {theirs}");
    }
}

/// JSON as an expression; the two languages write plain values alike.
fn literal(json: &serde_json::Value) -> String {
    format!("dyn({json})")
}

#[test]
fn maps_are_walked_in_the_order_of_their_keys() {
    let source = r#"doc.metadata.labels.map(k, k).join(" ") == "count kubernetes.io/arch pool tier""#;
    assert_eq!(ask(source), Ok(true));
}
