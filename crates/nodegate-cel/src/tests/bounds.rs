//! The bounds of what is compiled.

use crate::checked::macros::MAX_LOOPS;
use crate::checked::pattern::MAX_PATTERN;
use crate::syntax::parser::{MAX_DEPTH, MAX_ITEMS, MAX_NESTING, MAX_PARTS, MAX_SOURCE};
use crate::tests::{SCHEMA, refusal};
use crate::{Budget, Expression, Paths, Value, Yields};

fn compiles(source: &str) -> bool {
    Expression::compile(source, &SCHEMA, Yields::Bool).is_ok()
}

#[test]
fn the_source_is_bounded() {
    let padded = |bytes: usize| format!("{:bytes$}", "true");
    assert!(compiles(&padded(MAX_SOURCE)));
    assert!(refusal(&padded(MAX_SOURCE + 1)).contains("may have at most 4096 bytes"));
}

#[test]
fn the_number_of_parts_is_bounded() {
    // One part for every term and one for the chain.
    let chain = |terms: usize| vec!["1<2"; terms].join("||");
    assert!(compiles(&chain((MAX_PARTS - 1) / 3)));
    assert!(refusal(&chain(MAX_PARTS / 3 + 1)).contains("may have at most 1024 parts"));
}

#[test]
fn the_depth_of_a_chain_is_bounded() {
    let sum = |terms: usize| format!("{} > 0", vec!["1"; terms].join("+"));
    assert!(compiles(&sum(MAX_DEPTH - 1)));
    assert!(refusal(&sum(MAX_DEPTH)).contains("parts are nested here"));
    assert!(compiles(&format!("{}true", "!".repeat(MAX_DEPTH - 1))));
    assert!(refusal(&format!("{}true", "!".repeat(MAX_DEPTH))).contains("parts are nested here"));
}

#[test]
fn the_depth_of_a_document_is_bounded() {
    let read = |levels: usize| {
        let text = format!("{}{}", "[".repeat(levels + 1), "]".repeat(levels + 1));
        Value::read(&text, &Paths::Whole, &Budget::default()).unwrap().is_unread()
    };
    assert!(!read(crate::limits::MAX_DEPTH));
    assert!(read(crate::limits::MAX_DEPTH + 1));
    assert!(read(2 * crate::limits::MAX_DEPTH));
}

#[test]
fn conditions_may_be_many_and_side_by_side() {
    let name = |index: usize| format!("doc.metadata.name == 'name-{index}'");
    assert!(compiles(&(0..100).map(name).collect::<Vec<_>>().join(" || ")));
    let listed = (0..MAX_ITEMS).map(|index| format!("'n{index}'")).collect::<Vec<_>>();
    assert!(compiles(&format!("doc.metadata.name in [{}]", listed.join(","))));
}

#[test]
fn brackets_are_bounded() {
    let nested = |levels: usize| format!("{}true{}", "(".repeat(levels), ")".repeat(levels));
    assert!(compiles(&nested(MAX_NESTING)));
    assert!(refusal(&nested(MAX_NESTING + 1)).contains("brackets or conditions"));
    let choices = |levels: usize| format!("{}true", "true ? false : ".repeat(levels));
    assert!(compiles(&choices(MAX_NESTING)));
    assert!(refusal(&choices(MAX_NESTING + 1)).contains("brackets or conditions"));
}

#[test]
fn reserved_words_name_nothing() {
    for source in ["package == 1", "[1].all(namespace, true)", "import(1) == 1", "1 == let"] {
        assert!(refusal(source).contains("is a reserved word"), "{source}: {}", refusal(source));
    }
    assert!(compiles("dyn(doc.status).package == 1 && {'if': 1}.if == 1"));
}

#[test]
fn lists_and_maps_are_bounded() {
    let list = |items: usize| format!("1 in [{}]", vec!["1"; items].join(","));
    assert!(compiles(&list(MAX_ITEMS)));
    assert!(refusal(&list(MAX_ITEMS + 1)).contains("may have at most 256 items"));
    let map = |items: usize| format!("1 in {{{}}}", vec!["1:1"; items].join(","));
    assert!(compiles(&map(MAX_ITEMS)));
    assert!(refusal(&map(MAX_ITEMS + 1)).contains("may have at most 256 items"));
}

#[test]
fn loops_are_bounded() {
    let nested = |levels: usize| {
        let open: String = (0..levels).map(|level| format!("[1].all(x{level}, ")).collect();
        format!("{open}true{}", ")".repeat(levels))
    };
    assert!(compiles(&nested(MAX_LOOPS)));
    assert!(refusal(&nested(MAX_LOOPS + 1)).contains("more than 2 loops"));
    assert!(compiles("[1].all(x, true) && [1].filter(x, true).map(x, x).exists(x, true)"), "one behind the other");
}

#[test]
fn patterns_are_bounded() {
    assert!(compiles(&format!("'a'.matches('{}')", "a".repeat(MAX_PATTERN))));
    assert!(refusal(&format!("'a'.matches('{}')", "a".repeat(MAX_PATTERN + 1))).contains("may have at most 512 bytes"));
    assert!(compiles("'a'.matches('a{8000}')"));
    assert!(refusal("'a'.matches('a{10000}')").contains("too large when compiled; repeat less"));
    assert!(refusal("'a'.matches('a{10000}{10000}')").contains("too large"));
    assert!(refusal(&format!("'a'.matches('{}')", "(".repeat(200))).contains("not a regular expression"));
    assert!(compiles(r"'a'.matches('^[\\w.-]{1,63}$')"), "an ordinary pattern fits");
}
