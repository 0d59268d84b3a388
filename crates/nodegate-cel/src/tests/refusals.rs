//! What is refused when an expression is compiled: the place, the reason and the remedy.

use crate::Shape::{Int, Map, Object};
use crate::tests::{SCHEMA, ask, failure, refusal};
use crate::{Expression, Fields, Schema, Variable, Yields};

/// Conditions that do not compile, and what the message says.
const REFUSED: &[(&str, &str)] = &[
    // The place counts characters of its own line.
    ("doc.metadata.nope == 'é'", "column 14 of the expression: `doc.metadata` has no field `nope`"),
    ("true &&\n  'é' == nope", "line 2, column 10 of the expression: there is no variable `nope`"),
    (r"1 == 2 || 'ab\q' == 'x'", "column 14 of the expression"),
    ("doc.metadata.name == 'a' && )", "column 29 of the expression: expected a value here, found `)`"),
    ("doc.metadata.name == ", "column 22 of the expression: expected a value here, found the end"),
    ("in [1]", "column 1 of the expression: expected a value here, found `in`"),
    ("1 in in", "column 6 of the expression: expected a value here, found `in`"),
    ("(true", "column 6 of the expression: expected `)` here, found the end"),
    ("true true", "column 6 of the expression"),
    ("[1 2] == []", "column 4 of the expression: expected `]` here, found a number"),
    ("{'a' 1} == {}", "column 6 of the expression: expected `:` here, found a number"),
    ("{'a': 1 b} == {}", "column 9 of the expression: expected `}` here, found `b`"),
    ("size('a' 'b') == 1", "column 10 of the expression: expected `)` here, found text"),
    ("true ? 1 b'a'", "column 10 of the expression: expected `:` here, found bytes"),
    (
        "dyn(doc).true == 1",
        "column 10 of the expression: expected a name here, found `true`; write other keys as [\"key\"]",
    ),
    ("dyn(doc).in == 1", "expected a name here, found `in`; write other keys as [\"key\"]"),
    ("doc.`a`(1) == 1", "column 8 of the expression"),
    ("9223372036854775808 == 1", "column 1 of the expression: this number is too large for an int"),
    ("1 == -9223372036854775809", "this number is too large for an int"),
    ("18446744073709551616u == 1u", "this number is too large"),
    ("0x10000000000000000 == 1", "this number is too large"),
    ("1e999 == 1.0", "this number is too large"),
    ("true && 'ab", "column 12 of the expression: this text is not closed; write ' after it"),
    ("'ab\n' == ''", "this text is not closed on its line; write '"),
    ("true && 1 + 'a' == 'b'", "column 11 of the expression: `+` cannot take an int and a string"),
    // What an answer must be
    (
        "optional.of(true)",
        "the expression must be a bool, but is an optional; take the value out of the optional with .orValue(…)",
    ),
    ("doc.metadata.name", "the expression must be a bool, but is a string; compare it, such as … == \"true\""),
    ("extra.count", "the expression must be a bool, but is an int; compare it with something"),
    ("true ? extra.count : 1", "the expression must be a bool, but is an int"),
    ("extra.count || true", "what `||` joins must be a bool, but is an int"),
    // Both branches are of the same type, so the choice is too.
    ("(true ? 1 : 2) + 'a' == 'b'", "`+` cannot take an int and a string"),
    ("-(true ? 'a' : 'b') == 1", "`-` cannot take a string"),
    // Arguments
    ("lists.range(optional.of(1)) == []", "here; use .orValue(…) first"),
    ("dyn(1.trim()) == 'a'", "column 7 of the expression: string.trim() cannot take an int here"),
    (
        "'a'.startsWith(1)",
        "column 16 of the expression: string.startsWith(string) cannot take an int here; convert it with string(…)",
    ),
    ("[1].slice('a', 2) == []", "cannot take a string here"),
    ("'a'.substring() == ''", "wrong number of arguments; write string.substring(int, [int])"),
    ("size() == 1", "wrong number of arguments; write size("),
    // Names
    ("nope.size() == 1", "there is no variable `nope` here"),
    ("'a'.startWith('a')", "there is no method `startWith`; did you mean `startsWith`?"),
    ("sise('a') == 1", "there is no function `sise`; did you mean `size`?"),
    ("'a'.frobnicate()", "there is no method `frobnicate`; only the functions of Kubernetes' CEL are available"),
    ("trim('a') == 'a'", "`trim` is not called like this; write ….trim(…)"),
    ("'a'.timestamp() == 'a'", "`timestamp` is not called like this; write timestamp(…)"),
    // Macros
    ("[1].all(x)", "write list.all(x, condition)"),
    ("[1].exists(x)", "write list.exists(x, condition)"),
    ("[1].exists_one(x)", "write list.exists_one(x, condition)"),
    ("[1].existsOne(x)", "write list.exists_one(x, condition)"),
    ("[1].filter(x) == []", "write list.filter(x, condition)"),
    ("[1].map(x) == []", "write list.map(x, value) or list.map(x, condition, value)"),
    ("[1].sortBy(x) == []", "write list.sortBy(x, key)"),
    ("{}.transformList(k, v) == []", "write map.transformList(key, value, result)"),
    ("{}.transformMap(k, v) == {}", "write map.transformMap(key, value, result)"),
    ("{}.transformMapEntry(k, v) == {}", "write map.transformMapEntry(key, value, {newKey: newValue})"),
    ("{}.transformMapEntry(k, v, 1) == {}", "what transformMapEntry yields for each entry"),
    ("optional.of(1).optMap(x) == optional.of(1)", "write optional.optMap(x, value)"),
    ("optional.of(1).optFlatMap(x) == optional.of(1)", "write optional.optFlatMap(x, optional)"),
    ("has(doc)", "write has(a.b), or \"b\" in a"),
    ("has(doc.?status)", "write has(a.b), or \"b\" in a"),
    ("has(doc.metadata.nope)", "`doc.metadata` has no field `nope`"),
    ("1.all(x, true)", "this needs a list or a map before the dot, not an int"),
    ("{}.sortBy(x, x) == []", "this needs a list or a map before the dot, not a map"),
    ("[1].optMap(x, x) == optional.of(1)", "this needs an optional before the dot, not a list"),
    ("optional.of(1).map(x, x) == []", "this needs a list or a map before the dot, not an optional"),
    ("[1].all(x.y, true)", "the variable of a loop must be an identifier"),
    ("[1].all(doc, true)", "`doc` is already defined; choose another name for the variable of the loop"),
    ("[1].all(x, 1)", "the condition must be a bool, but is an int"),
    ("[1].map(x, 1, x) == []", "the condition must be a bool, but is an int"),
    ("optional.of(1).optFlatMap(x, x + 1) == optional.of(1)", "what optFlatMap yields must be an optional, but is"),
    ("doc.metadata.name.orValue('a') == 'a'", "what has a default must be an optional, but is a string"),
    ("doc.?metadata.or({}) == optional.of({})", "what `or` takes instead must be an optional, but is a map"),
    // What is known of a value is known behind a macro and behind an empty default, too.
    ("doc.spec.taints.filter(t, true)[0].nope == 'a'", "has no field `nope`"),
    ("doc.spec.taints.sortBy(t, t.key)[0].nope == 'a'", "has no field `nope`"),
    ("doc.spec.taints.all(t, t.nope == 'a')", "has no field `nope`"),
    ("doc.spec.taints.all(i, t, t.nope == 'a')", "has no field `nope`"),
    ("doc.spec.taints.all(i, t, i == 'a')", "`==` cannot take an int and a string"),
    ("doc.metadata.labels.all(k, v, k == 1 && v == '')", "`==` cannot take a string and an int"),
    ("doc.metadata.labels.all(k, v, v == 1)", "`==` cannot take a string and an int"),
    ("doc.?metadata.optMap(m, m.nope) == optional.of('a')", "has no field `nope`"),
    ("doc.?metadata.?nope.orValue('') == ''", "has no field `nope`"),
    ("doc.spec.?taints.orValue([])[0].nope == 'a'", "has no field `nope`"),
    ("doc.?metadata.orValue({}).nope == 'a'", "has no field `nope`"),
    ("doc.metadata.?name.orValue('') == 1", "`==` cannot take a string and an int"),
    // Operators
    ("optional.of(1) == 1", "; take the value out of the optional with .orValue(…)"),
    ("quantity('1') < 2", "`<` cannot take a quantity and an int; compare quantities with .isGreaterThan(…)"),
    ("semver('1.0.0') < semver('1.1.0')", "compare versions with .isGreaterThan(…)"),
    ("'a' + 1 == 'a1'", "`+` cannot take a string and an int; convert the value with string(…)"),
    ("'a' in 'abc'", "`in` cannot take a string and a string; look for text in text with .contains(…)"),
    (
        "doc.metadata.name == null",
        "`==` cannot take a string and null; ask for what may be absent with \"key\" in … or has(…)",
    ),
    ("doc.metadata.name > 5", "`>` cannot take a string and an int; convert the string with int(…)"),
    ("1 + 1.5 == 2.5", "`+` cannot take an int and a double; make them the same with int(…) or double(…)"),
    ("[1] < [2]", "`<` cannot take a list and a list"),
    ("true < 'a'", "`<` cannot take a bool and a string"),
    ("timestamp(0) * 2 == timestamp(0)", "`*` cannot take a timestamp and an int"),
    ("timestamp(0) + duration('1s') == 1", "`==` cannot take a timestamp and an int"),
    ("duration('1s') + timestamp(0) == duration('1s')", "`==` cannot take a timestamp and a duration"),
    ("timestamp(0) - timestamp(0) == timestamp(0)", "`==` cannot take a duration and a timestamp"),
    ("duration('1s') + 1 == duration('2s')", "`+` cannot take a duration and an int"),
    ("1.5 % 2.0 == 1.0", "`%` cannot take a double and a double"),
    ("'a' - 'b' == ''", "`-` cannot take a string and a string"),
    ("true + true == true", "`+` cannot take a bool and a bool"),
    // Tokens
    ("1a == 1", "column 2 of the expression: `a` directly after a number; put text in quotes"),
    ("1_0 == 10", "`_` directly after a number"),
    ("1.5x == 1.5", "`x` directly after a number"),
    ("true & false", "a single `&` is not an operator; write `&&`"),
    ("true | false", "a single `|` is not an operator; write `||`"),
    ("“a” == 'a'", "typographic quotes are not supported; write \" or '"),
    ("doc.metadata.name = 'a'", "a single `=` is not an operator; write `==`"),
    ("1 == 1 #", "unexpected character '#'; write text in quotes"),
    ("b'\\u0041' == b'A'", "`\\u` is not an escape sequence; write `\\\\` for a backslash"),
    ("b'\\U00000041' == b'A'", "`\\U` is not an escape sequence"),
    ("'\\x4' == 'a'", "this escape needs 2 digits that name a character"),
    ("'\\ud800' == 'a'", "this escape needs 4 digits that name a character"),
    ("doc.`a", "must be closed"),
    ("doc.`a$b` == 1", "a name in backquotes may hold letters"),
];

#[test]
fn a_refusal_names_the_place_the_reason_and_the_remedy() {
    let message = |source: &str| match Expression::compile(source, &SCHEMA, Yields::Bool) {
        Ok(_) => "it compiles".to_owned(),
        Err(error) => error.to_string(),
    };
    let told = REFUSED.iter().map(|(source, expected)| (source, expected, message(source)));
    let wrong: Vec<_> = told.filter(|(_, expected, message)| !message.contains(*expected)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_refusal_is_told_in_parts_as_well() {
    let error = Expression::compile("doc.metadata.name = 'a'", &SCHEMA, Yields::Bool).unwrap_err();
    assert_eq!((error.what(), error.remedy()), ("a single `=` is not an operator", Some("write `==`")));
    let error = Expression::compile("true < 'a'", &SCHEMA, Yields::Bool).unwrap_err();
    assert_eq!(error.remedy(), None);
}

/// Only what suits the fault is advised.
#[test]
fn a_refusal_advises_nothing_that_does_not_help() {
    for source in ["true < 'a'", "[1] < [2]", "timestamp(0) * 2 == timestamp(0)", "[1].slice('a', 2) == []"] {
        let message = refusal(source);
        assert!(!message.contains(';'), "{source}: {message}");
    }
    assert!(!refusal("'a'.frobnicate()").contains("did you mean"));
}

/// One name, of the form that was asked for, not a list of all.
#[test]
fn an_unknown_function_is_answered_with_the_one_that_is_alike() {
    for (source, near) in [
        ("'a'.trimm() == ''", "trim"),
        ("sise(1) == 1", "size"),
        ("timestmp('a') == 1", "timestamp"),
        ("[1].sise() == 1", "size"),
    ] {
        let message = refusal(source);
        assert!(message.ends_with(&format!("; did you mean `{near}`?")), "{source}: {message}");
    }
    assert!(!refusal("trimm('a') == ''").contains("did you mean"), "trim is no function");
}

#[test]
fn what_may_be_of_a_fitting_type_is_decided_when_it_is_evaluated() {
    assert_eq!(ask("(extra.count == 2 ? 1 : 'a') + 1 == 2"), Ok(true));
    assert!(failure("(extra.count == 3 ? 1 : 'a') + 1 == 2").contains("`+` cannot take a string and an int"));
    assert!(failure("[?extra.count].size() == 0").contains("`?` needs an optional, found an int"));
    // A default of another kind makes the type unknown.
    assert_eq!(ask("doc.metadata.?labels.orValue(1) != 1 && doc.?spec.orValue({'nope': 1}) != 1"), Ok(true));
    assert!(failure("doc.?spec.orValue({'nope': 1}).nope == 1").contains("has no \"nope\""));
    assert_eq!(ask("dyn(1) + dyn(2) == 3 && dyn('b') > dyn('a') && dyn(1) == 1.0"), Ok(true));
}

/// A variable of a loop hides the functions whose namespace has its name.
#[test]
fn a_variable_hides_a_namespace() {
    assert_eq!(ask("['ab'].all(math, math.size() == 2)"), Ok(true));
    assert!(refusal("[1].all(math, math.greatest(1, 2) == 2)").contains("there is no method `greatest`"));
}

#[test]
fn each_entry_of_a_map_of_texts_is_checked() {
    let refusal = |source: &str| Expression::compile(source, &SCHEMA, Yields::TextMap).unwrap_err().to_string();
    assert!(refusal("{'a': 1}").contains("a value of the map must be a string, but is an int"));
    assert!(refusal("{1: 'a'}").contains("a key of the map must be a string, but is an int"));
    assert!(refusal("{?1: optional.of('a')}").contains("a key of the map must be a string, but is an int"));
    assert!(refusal("true ? {'a': 1} : {}").contains("a value of the map"));
    assert!(refusal("'a'").contains("the expression must be a map, but is a string; write {\"key\": \"value\"}"));
    assert!(Expression::compile("{'a': 'b', ?'c': optional.of('d')}", &SCHEMA, Yields::TextMap).is_ok());
    let text = Expression::compile("1", &SCHEMA, Yields::Text).unwrap_err().to_string();
    assert!(text.contains("the expression must be a string, but is an int; convert it with string(…)"), "{text}");
}

/// A filter of a map yields a list of its keys, of which the structure of the values says nothing.
#[test]
fn the_keys_of_a_map_are_not_taken_for_its_values() {
    static INNER: Fields = Fields::new("Inner", &[("name", Int)]);
    static OUTER: Schema =
        Schema { variables: &[Variable::new("counts", Map(&Int)), Variable::new("inners", Map(&Object(&INNER)))] };
    for source in [
        "counts.filter(k, true)[0] + 'x' == 'ax'",
        "counts.filter(k, true).all(k, k == 'a')",
        "inners.filter(k, true)[0] == 'a'",
        "counts.map(k, k)[0] == 'a' && counts.all(k, v, v + 1 > 0 && k + 'x' == 'ax')",
    ] {
        assert!(Expression::compile(source, &OUTER, Yields::Bool).is_ok(), "{source}");
    }
    assert!(Expression::compile("counts.all(k, k == 1)", &OUTER, Yields::Bool).is_err());
    assert!(Expression::compile("counts.all(k, v, v == 'a')", &OUTER, Yields::Bool).is_err());
}

#[test]
fn a_name_is_proposed_only_if_it_is_alike() {
    static SHORT: Fields = Fields::new("Short", &[("id", Int), ("nested", Object(&NESTED))]);
    static NESTED: Fields = Fields::new("Nested", &[("region", Int)]);
    static SHORTS: Schema = Schema { variables: &[Variable::new("short", Object(&SHORT))] };
    let message = |source: &str| Expression::compile(source, &SHORTS, Yields::Bool).unwrap_err().to_string();
    assert!(message("short.ix == 1").contains("did you mean `id`?"));
    assert!(message("short.ID == 1").contains("did you mean `id`?"));
    assert!(message("short.nestedd == 1").contains("did you mean `nested`?"));
    for source in ["short.xy == 1", "short.x == 1", "short.other == 1"] {
        assert!(!message(source).contains("did you mean"), "{source}: {}", message(source));
    }
    assert!(message("short.region == 1").contains("`short` has no field `region`; write short.nested.region"));
}
