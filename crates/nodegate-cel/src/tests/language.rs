//! What expressions mean.

use crate::tests::{ask, failure};

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
    "6u / 4u == 1u && 6u % 4u == 2u && 2u * 3u == 6u && 2u + 3u == 5u && 3u - 2u == 1u && 7 - 2 == 5 && 6 * 7 == 42",
    "1.5 + 2.25 == 3.75 && 1.5 - 0.5 == 1.0 && 1.5 * 2.0 == 3.0 && 3.0 / 2.0 == 1.5 && 1.0 / 0.0 > 1.0 && -(1.5) == -1.5",
    "duration('1s') - duration('3s') == duration('-2s') && duration('1s') + timestamp(0) == timestamp(1)",
    "b'a' + b'b' == b'ab' && b'a' < b'b' && b'' < b'a' && false < true && 'a' < 'b' && 'a' <= 'a' && 'b' >= 'a'",
    "!(0.0 / 0.0 == 0.0 / 0.0) && !(0.0 / 0.0 < 1.0) && !(0.0 / 0.0 >= 1.0) && 0.0 / 0.0 != 1.0",
    "[1, 2] != [1, 3] && [1] != [1, 2] && {'a': 1} != {'a': 2} && {'a': 1} != {'b': 1} && {} != {'a': 1} && null == null",
    "optional.none() == optional.none() && optional.of(1) != optional.of(2) && optional.of(1) != optional.none()",
    "18446744073709551615u != -1 && 1u < 2.5 && 2.5 > 1u && -1 < 18446744073709551615u && 18446744073709551615u > -1",
    "1e2 == 100.0 && 1e+2 == 100.0 && 25e-1 == 2.5 && 1E2 == 100.0 && 12.5e-01 == 1.25 && 1e02 == 100.0 && .5e1 == 5.0",
    "{1: 1}.size() == 1 && 0x10u == 16u && 0xfF == 255 && 10u == 10U && 1.5e3 < 1501.0",
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
    "![1, 1].exists_one(x, x == 1) && ![2].exists_one(x, x == 1) && ![].exists_one(x, true) && ['a', 'b'].exists_one(i, v, i == 1)",
    "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6] && [1, 2].exists_one(x, x == 1) && [1, 2].existsOne(x, x > 1)",
    r#"{"b": 1, "a": 2}.map(k, k) == ["a", "b"] && {"a": 1}.all(k, v, k == "a" && v == 1)"#,
    r#"["x", "y"].exists(i, v, i == 1 && v == "y") && [5].transformList(i, v, i + v) == [5]"#,
    r#"{"a": 1, "b": 2}.transformMap(k, v, v > 1, k + "!") == {"b": "b!"}"#,
    r#"["x", "y"].transformMapEntry(i, v, {v: i}) == {"x": 0, "y": 1} && {"a": 1}.transformMapEntry(k, v, {k: v, k + "!": v}) == {"a": 1, "a!": 1}"#,
    r#"["x", "y", "x"].transformMapEntry(i, v, i < 2, {v: i}) == {"x": 0, "y": 1} && [1].transformMapEntry(i, v, {}) == {}"#,
    "[1].all(x, [2].all(y, [x, y] == [1, 2]))",
    "[[1, 2], [3]].map(x, x.map(y, y + 1)) == [[2, 3], [4]]",
    // Optionals
    "optional.unwrap([optional.of(1), optional.none(), optional.of(3)]) == [1, 3] && [optional.none()].unwrapOpt() == []",
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
    // An index or key that no int can be
    "![1][?18446744073709551615u].hasValue() && !(18446744073709551615u in {1: 2}) && {18446744073709551615u: 1}[18446744073709551615u] == 1",
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
    ("doc.spec.?taints.orValue([])[7].key == 'x'", "doc.spec.taints has no 7"),
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
    ("uint(18446744073709551616.0) == 1u", "beyond the range of uint"),
    ("uint(-0.5) == 0u", "beyond the range of uint"),
    ("int(9223372036854775808.0) == 1", "beyond the range of int"),
    ("int(-9223372036854775809.0) == 1", "beyond the range of int"),
    ("int(9223372036854775808u) == 1", "beyond the range of int"),
    ("int('1.5') == 1", "\"1.5\" is not an int"),
    ("bool('yes')", "\"yes\" is not a bool"),
    ("[].max() == 1", "empty list"),
    ("[1, 'a'].sum() == 1", "`+` cannot take an int and a string"),
    ("[1].flatten(-1) == []", "a depth that is not negative"),
    ("uint(-1) == 1u", "beyond the range of uint"),
    ("dyn(1) + dyn('a') == 'b'", "`+` cannot take an int and a string"),
    ("dyn('a') - dyn('b') == ''", "`-` cannot take a string and a string"),
    ("dyn([1]) * dyn([2]) == []", "`*` cannot take a list and a list"),
    ("dyn(b'a') / dyn(b'b') == b''", "`/` cannot take bytes and bytes"),
    ("dyn(1.5) % dyn(1.5) == 0.0", "`%` cannot take a double and a double"),
    ("dyn(1) + dyn(1u) == 2", "`+` cannot take an int and a uint"),
    ("dyn(duration('1s')) * dyn(duration('1s')) == 1", "`*` cannot take a duration and a duration"),
    ("dyn(timestamp(0)) + dyn(timestamp(0)) == 1", "`+` cannot take a timestamp and a timestamp"),
    ("dyn(duration('1s')) - dyn(timestamp(0)) == 1", "`-` cannot take a duration and a timestamp"),
    ("-dyn('a') == 1", "`-` cannot take a string"),
    ("duration('9223372036854775807ns') + duration('1ns') == duration('0s')", "a duration of more than 292 years"),
    ("duration('-9223372036854775808ns') - duration('1ns') == duration('0s')", "a duration of more than 292 years"),
    ("timestamp('9999-01-01T00:00:00Z') - timestamp('0001-01-01T00:00:00Z') > duration('0s')", "more than 292 years"),
    ("9223372036854775807 * extra.count > 0", "the result of `*` is beyond the range of int"),
    ("18446744073709551615u + uint(extra.count) > 0u", "the result of `+` is beyond the range of uint"),
    ("uint(extra.count) / uint(extra.count - 2) == 1u", "division by zero"),
    ("dyn(1) < dyn('a')", "an int cannot be compared with a string"),
    ("dyn('a') && true", "is not a bool but a string"),
    ("dyn(1).startsWith('a')", "string.startsWith(string) cannot take an int"),
    ("'a'.findAll('a', dyn('x')) == []", "string.findAll(string, [int]) cannot take a string"),
    ("dyn(1).findAll('a') == []", "cannot take an int"),
    ("'a' in dyn('abc')", "`in` needs a list or a map"),
    ("dyn([1]).all(x, x)", "is not a bool but an int"),
    ("dyn(1).all(x, true)", "this needs a list or a map"),
    ("{'a': 1, 'a': 2} == {}", "has the key \"a\" twice"),
    ("optional.none().value() == 1", "orValue"),
    ("dyn(1).orValue(2) == 2", "is not an optional but an int"),
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
    assert!(failure("['x', 'x'].transformMapEntry(i, v, {v: i}) == {}").contains("yields the key \"x\" twice"));
    assert!(failure("[1].transformMapEntry(i, v, dyn(v)) == {}").contains("this needs a map"));
    assert!(failure("[dyn(1)].unwrapOpt() == []").contains("needs a list of optionals"));
    assert!(failure("[0, 2].exists(x, 1 / x == 1)").contains("division"));
}

#[test]
fn maps_are_walked_in_the_order_of_their_keys() {
    let source = r#"doc.metadata.labels.map(k, k).join(" ") == "count kubernetes.io/arch pool tier""#;
    assert_eq!(ask(source), Ok(true));
}
