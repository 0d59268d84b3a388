//! What is looked at is paid for: a step for about 16 bytes of text that are read or written.

use serde_json::json;

use crate::run::evaluate::Evaluation;
use crate::tests::{SCHEMA, compile, with_document};
use crate::{Expression, Yields};

/// The steps of a condition on a document whose `status.text` and `status.same` have so many letters, and `status.few` one.
fn steps(source: &str, letters: usize) -> u64 {
    let text = "a".repeat(letters);
    let document = json!({"metadata": {}, "spec": {}, "status": {"text": text, "same": text, "few": "b"}});
    let expression = compile(source, Yields::Any);
    with_document(&document, |variables| {
        let mut evaluation = Evaluation::new(variables);
        evaluation.value(&expression.compiled.tree).unwrap_or_else(|error| panic!("{source}: {error}"));
        evaluation.steps.taken()
    })
}

#[test]
fn long_urls_are_compared_for_many_steps() {
    let made = steps("url('/' + doc.status.text) == dyn(null)", 1 << 16);
    let compared = steps("url('/' + doc.status.text) == url('/a')", 1 << 16);
    assert!(compared > made + 3_000, "{made} and {compared} steps");
    // The text is gone through six times.
    let checked = steps("isURL('/' + doc.status.text)", 1 << 16);
    assert!(checked > 6 << 12, "{checked} steps");
}

#[test]
fn long_texts_take_many_steps() {
    const LETTERS: usize = 1 << 16;
    let sources = [
        "doc.status.text == doc.status.same",
        "bytes(doc.status.text) == bytes(doc.status.same)",
        "doc.status.text < doc.status.same",
        "doc.status.text + doc.status.few",
        "doc.status.few + doc.status.text",
        "doc.status.text + ''",
        "doc.status.few in [doc.status.text + '']",
        "size(doc.status.text)",
        "bytes(doc.status.text)",
        "string(bytes(doc.status.text))",
        "doc.status.text.contains('b')",
        "doc.status.text.startsWith('b')",
        "doc.status.few.startsWith(doc.status.text)",
        "doc.status.text.endsWith('b')",
        "doc.status.text.matches('b')",
        "doc.status.text.find('b')",
        "doc.status.text.findAll('b')",
        "doc.status.text.indexOf('b')",
        "doc.status.few.indexOf(doc.status.text)",
        "doc.status.text.lastIndexOf('b')",
        "doc.status.few.lastIndexOf(doc.status.text)",
        "doc.status.text.indexOf('')",
        "doc.status.text.lastIndexOf('')",
        "doc.status.text.replace('b', 'c')",
        "doc.status.few.replace('b', doc.status.text)",
        "doc.status.text.split('b')",
        "doc.status.text.reverse()",
        "doc.status.text.lowerAscii()",
        "doc.status.text.trim()",
        "doc.status.text.substring(0)",
        "strings.quote(doc.status.text)",
        "[doc.status.text].join()",
        "['', ''].join(doc.status.text)",
        "doc.status.text.format([])",
        "'%s'.format([doc.status.text])",
        "'%s'.format([[doc.status.text]])",
        "'%s'.format([{'a': doc.status.text}])",
        "'%s'.format([{doc.status.text: 1}])",
        "'%s'.format([bytes(doc.status.text)])",
        "'%x'.format([doc.status.text])",
        "'%X'.format([bytes(doc.status.text)])",
        "base64.encode(bytes(doc.status.text))",
        "isQuantity(doc.status.text)",
        "isSemver(doc.status.text)",
        "isIP(doc.status.text)",
        "isURL(doc.status.text)",
        "format.named(doc.status.text)",
    ];
    let cheap: Vec<_> = sources
        .iter()
        .map(|source| (source, steps(source, LETTERS)))
        .filter(|(_, steps)| *steps < (LETTERS / 16) as u64)
        .collect();
    assert!(cheap.is_empty(), "{cheap:#?}");
    // Each part that is written is paid for once.
    let parts = |count: usize| {
        let (clauses, values) = ("%s".repeat(count), vec!["doc.status.text"; count].join(", "));
        steps(&format!("'{clauses}'.format([{values}])"), 1000)
    };
    assert!(parts(32) <= 2 * parts(16), "{} {}", parts(16), parts(32));
    let joined = steps("bytes(doc.status.text) + b''", LETTERS) - steps("bytes(doc.status.text)", LETTERS);
    assert!(joined >= (LETTERS / 16) as u64, "{joined}");
}

/// A pattern of twice the size costs at most twice as much for every byte of text, and the smallest the least.
#[test]
fn a_search_costs_as_much_as_its_pattern_is_large() {
    let of_a_byte = |pattern: &str| {
        let source = format!("doc.status.text.matches('{pattern}')");
        (steps(&source, 500) - steps(&source, 0)) / 500
    };
    let sizes = (0..14).flat_map(|power| [2 << power, 3 << power]).map(|size| format!("b{{{size}}}"));
    let compiles =
        |pattern: &String| Expression::compile(&format!("'a'.matches('{pattern}')"), &SCHEMA, Yields::Bool).is_ok();
    let mut prices: Vec<_> = sizes.filter(compiles).map(|pattern| of_a_byte(&pattern)).collect();
    prices.sort_unstable();
    prices.dedup();
    assert!(of_a_byte("b") <= 4, "one letter: {}", of_a_byte("b"));
    assert!(prices.len() > 6, "{prices:?}");
    for pair in prices.windows(2) {
        assert!(pair[1] <= 2 * pair[0], "{prices:?}");
    }
    // Not even a search of nothing is free.
    assert!(steps("''.matches('b')", 0) > steps("'' == 'b'", 0) + 5);
}

/// A search that starts again behind each match pays for what is left each time.
#[test]
fn every_match_of_a_pattern_is_paid_for() {
    let source = "doc.status.text.findAll('a')";
    assert!(steps(source, 512) > 3 * steps(source, 256), "{} {}", steps(source, 256), steps(source, 512));
}

#[test]
fn many_items_take_many_steps() {
    const ITEMS: usize = 300;
    let steps = |source: &str, items: usize| {
        let list: Vec<_> = (0..items).collect();
        let map: serde_json::Map<_, _> = (0..items).map(|key| (format!("{key:04}"), json!(key))).collect();
        let document =
            json!({"metadata": {}, "spec": {}, "status": {"list": list, "same": list, "map": map, "twin": map}});
        let expression = compile(source, Yields::Any);
        with_document(&document, |variables| {
            let mut evaluation = Evaluation::new(variables);
            evaluation.value(&expression.compiled.tree).unwrap_or_else(|error| panic!("{source}: {error}"));
            evaluation.steps.taken()
        })
    };
    let sources = [
        "doc.status.list == doc.status.same",
        "doc.status.map == doc.status.twin",
        "-1 in doc.status.list",
        "doc.status.list + [1]",
        "[] + doc.status.list",
        "doc.status.list.all(x, true)",
        "doc.status.list.exists(x, false)",
        "doc.status.list.exists_one(x, false)",
        "doc.status.list.filter(x, true)",
        "doc.status.list.map(x, x)",
        "doc.status.list.transformList(i, x, x)",
        "doc.status.map.transformMap(k, v, v)",
        "doc.status.list.transformMapEntry(i, v, {i: v})",
        "doc.status.list.map(x, optional.of(x)).unwrapOpt()",
        "doc.status.map.all(k, true)",
        "doc.status.list.sort()",
        "doc.status.list.sortBy(x, x)",
        "doc.status.list.isSorted()",
        "doc.status.list.distinct()",
        "doc.status.list.reverse()",
        "doc.status.list.flatten()",
        "doc.status.list.slice(0, size(doc.status.list))",
        "doc.status.list.sum()",
        "doc.status.list.min()",
        "doc.status.list.max()",
        "doc.status.list.indexOf(-1)",
        "doc.status.list.lastIndexOf(-1)",
        "lists.range(size(doc.status.list))",
        "sets.contains(doc.status.list, [-1])",
        "'%s'.format([doc.status.list])",
        "'%s'.format([doc.status.map])",
    ];
    let cheap: Vec<_> = sources
        .iter()
        .map(|source| (source, steps(source, ITEMS)))
        .filter(|(_, steps)| *steps < ITEMS as u64)
        .collect();
    assert!(cheap.is_empty(), "{cheap:#?}");
}
