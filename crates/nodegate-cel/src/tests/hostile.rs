//! Text and documents made to hurt.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::limits::{MAX_SHARED_STEPS, MAX_STEPS};
use crate::run::evaluate::Evaluation;
use crate::tests::{SCHEMA, compile, document, variables, whole, with_document};
use crate::{Budget, EvaluationError, Expression, Yields};

/// Runs on a thread with the stack that threads of tests and servers have.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(1 << 20).spawn(work).unwrap().join().unwrap();
}

#[test]
fn deep_text_is_refused_without_using_up_the_stack() {
    let shapes: &[(&str, &str, &str)] = &[
        ("(", "1", ")"),
        ("[", "1", "]"),
        ("{1:", "1", "}"),
        ("!", "true", ""),
        ("-", "1", ""),
        ("!(", "true", ")"),
        ("a", "", ".b"),
        ("", "1", "+1"),
        ("", "1", "<1"),
        ("", "a", "[1]"),
        ("", "a", ".b()"),
        ("", "a", ".?b"),
        ("size(", "1", ")"),
        ("a ? b : ", "c", ""),
        ("", "true", " ? true : true"),
        ("[1].all(x,", "true", ")"),
        ("(a + ", "1", ")"),
        ("{", "", ""),
        ("a.b[", "1", "]"),
        ("'", "", ""),
        ("?", "", "?"),
        ("- ! - ! ", "1", ""),
    ];
    for (open, middle, close) in shapes {
        for levels in [64, 100, 500, 4000] {
            let source = format!("{}{middle}{}", open.repeat(levels), close.repeat(levels));
            on_a_small_stack(move || {
                assert!(Expression::compile(&source, &SCHEMA, Yields::Bool).is_err(), "{source:.40}");
            });
        }
    }
}

#[test]
fn the_deepest_expression_that_compiles_can_be_evaluated_and_dropped() {
    let nots = format!("{}(", "!".repeat(30));
    let source = format!("{nots}{}true{})", "(true && ".repeat(16), ")".repeat(16));
    let lists = format!("{}1{} != []", "[".repeat(31), "]".repeat(31));
    let sums = format!("{} > 0", vec!["size([1])"; 60].join(" + "));
    for source in [source, lists, sums] {
        on_a_small_stack(move || {
            let expression = compile(&source, Yields::Bool);
            with_document(&document(), |variables| expression.evaluate_bool(variables)).unwrap();
        });
    }
}

/// A document with many labels, taints and conditions and long annotations.
fn large_document(labels: usize) -> Json {
    let mut document = document();
    for index in 0..labels {
        document["metadata"]["labels"][format!("example.com/label-{index}")] = json!(format!("value-{index}"));
    }
    document["metadata"]["annotations"]["long"] = json!("a".repeat(200_000));
    // Text of two letters without order, from a linear congruential generator.
    let random = std::iter::successors(Some(1_u32), |x| Some(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)));
    let random = random.map(|x| if x >> 31 == 0 { 'a' } else { 'b' });
    document["metadata"]["annotations"]["random"] = json!(random.take(10_000).collect::<String>());
    document["status"]["images"] = (0..50).map(|index| json!({"names": [format!("registry/image:{index}")]})).collect();
    document
}

/// Expressions that do as much as they can on a document with 200 labels and long annotations.
fn costly() -> Vec<String> {
    let labels = "doc.metadata.labels";
    let long = "doc.metadata.annotations.long";
    let grow = |start: &str, step: &str| format!("size({start}{}) < 0", step.repeat(25));
    vec![
        format!("{labels}.all(a, {labels}.all(b, a != b + 'x'))"),
        format!("{labels}.all(a, {labels}.all(b, [a, b, a, b] != [b, a, b, a] || a == b))"),
        format!("{labels}.map(a, {labels}.map(b, a + b)).size() < 0"),
        format!("{labels}.map(a, {labels}).map(b, {labels}).size() < 0"),
        format!("{labels}.all(a, {labels} == {labels})"),
        format!("{labels}.all(a, {long}.contains(a) || true)"),
        format!("{labels}.all(a, {long}.matches('(a|aa)+(b|bb)+c') || true)"),
        "doc.metadata.annotations.random.matches('(a|b)*a(a|b){20}c')".to_owned(),
        "doc.metadata.annotations.random.matches('(a|b)*a(a|b){100}c')".to_owned(),
        "doc.metadata.annotations.random.matches('(a|b)*a(a|b){500}c')".to_owned(),
        "doc.metadata.annotations.random.findAll('(a|b)*a(a|b){20}').size() > 0".to_owned(),
        format!("{labels}.all(a, {long}.findAll('a').size() >= 0)"),
        format!("{labels}.all(a, {labels}.all(b, a.matches('^[a-z.]+/(label|other)-[0-9]+$') || true))"),
        format!("{labels}.map(a, a).map(a, {labels}.map(b, a)).flatten().distinct().size() < 0"),
        format!("{labels}.map(a, {labels}.map(b, b)).flatten().sort().size() < 0"),
        format!("sets.equivalent({labels}.map(a, a), {labels}.map(a, a)) && false"),
        format!("{long}.split('').sort().size() < 0"),
        format!("{long}.split('').distinct().size() < 0"),
        format!("{long}.split('').join('aaaaaaaaaaaaaaaaaaaa').size() < 0"),
        format!("{long}.indexOf('{}b') > 0 && {long}.lastIndexOf('{}b') > 0", "a".repeat(500), "a".repeat(500)),
        format!("{labels}.all(a, quantity('1Gi').add(quantity('2Gi')).isGreaterThan(quantity('1')))"),
        format!("{labels}.all(a, {labels}.all(b, semver('1.2.3') == semver('1.2.3')))"),
        format!("{labels}.all(a, doc.status == doc.status)"),
        format!("{labels}.all(a, string(ip('10.0.0.1')) + url('https://a/b').getHost() != a)"),
        "lists.range(100000).all(x, lists.range(100000).all(y, x != y + 100000))".to_owned(),
        "lists.range(700).map(x, lists.range(700)).flatten().size() < 0".to_owned(),
        grow("'aaaaaaaa'", ".replace('a', 'aaaaaaaa')"),
        grow("'aaaaaaaa'", ".split('').join('aaaaaaaa')"),
        grow("[1, 1]", ".map(x, [x, x]).flatten()"),
        format!("size({}) < 0", vec![long; 40].join(" + ")),
        format!("{labels}.transformMap(k, v, {labels}.transformMap(l, w, w + v)).size() < 0"),
        format!("{labels}.all(a, {labels}.all(b, 1 / 0 == 1 || {labels}.nope == a))"),
    ]
}

/// Prints what the costly expressions cost: `cargo test -p nodegate-cel -- --nocapture costly`.
#[test]
fn costly_expressions_end() {
    let document = large_document(200);
    with_document(&document, |variables| {
        for source in costly() {
            let expression = compile(&source, Yields::Bool);
            let mut evaluation = Evaluation::new(variables);
            let answer = evaluation.condition(&expression.compiled.tree);
            let taken = evaluation.steps.taken();
            let bounded = taken <= MAX_STEPS || answer == Err(EvaluationError::TooExpensive);
            assert!(bounded, "{source:.100} took {taken} steps");
            let answer = match answer {
                Ok(answer) => answer.to_string(),
                Err(EvaluationError::TooExpensive) => "too expensive".to_owned(),
                Err(error) => error.to_string(),
            };
            println!("{taken:>7} steps  {answer:.40}  {source:.110}");
        }
    });
}

#[test]
fn whatever_grows_runs_out_of_steps() {
    let too_expensive = |source: &str| {
        let expression = compile(source, Yields::Bool);
        let answer = with_document(&large_document(200), |variables| expression.evaluate_bool(variables));
        assert_eq!(answer, Err(EvaluationError::TooExpensive), "{source}");
    };
    too_expensive("lists.range(100000).all(x, lists.range(100000).all(y, x != y + 100000))");
    too_expensive(&format!("size('aaaaaaaa'{}) < 0", ".replace('a', 'aaaaaaaa')".repeat(25)));
    too_expensive(&format!("size([1, 1]{}) < 0", ".map(x, [x, x]).flatten()".repeat(25)));
    // Nothing outweighs it.
    too_expensive("true && lists.range(1000000) == [] || [1].exists(x, lists.range(1000000) == [])");
    assert!(EvaluationError::TooExpensive.to_string().contains(&MAX_STEPS.to_string()));
}

#[test]
fn all_evaluations_with_one_budget_run_out_of_steps() {
    let hostile = compile("lists.range(100000).all(x, lists.range(100000).all(y, x != y + 100000))", Yields::Bool);
    let ordinary = compile("doc.metadata.name == 'extra-1'", Yields::Bool);
    let budget = Budget::default();
    let document = document().to_string();
    let base = variables(whole(&document));
    let variables = base.clone().within(&budget);
    let limit = (MAX_SHARED_STEPS / MAX_STEPS) as usize;
    let answers: Vec<_> = (0..=limit).map(|_| hostile.evaluate_bool(&variables)).collect();
    let too_expensive = answers.iter().filter(|answer| **answer == Err(EvaluationError::TooExpensive)).count();
    assert!(too_expensive >= limit - 1, "{answers:?}");
    assert_eq!(answers.last(), Some(&Err(EvaluationError::Spent)));
    assert_eq!(
        ordinary.evaluate_bool(&variables),
        Err(EvaluationError::Spent),
        "nothing is left for those that follow"
    );
    assert_eq!(ordinary.evaluate_bool(&base.clone().within(&Budget::default())), Ok(true), "the next budget");
    assert!(EvaluationError::Spent.to_string().contains(&MAX_SHARED_STEPS.to_string()));
}

#[test]
fn a_document_with_very_many_labels_costs_no_more() {
    let document = large_document(20_000);
    let source = "doc.metadata.labels.filter(k, !(k in ['a', 'b'])).distinct().size() < 0";
    let answer = with_document(&document, |variables| compile(source, Yields::Bool).evaluate_bool(variables));
    assert_eq!(answer, Err(EvaluationError::TooExpensive));
}

/// Pieces that make sense more often than letters do.
fn piece() -> impl Strategy<Value = String> {
    let words = [
        "doc",
        "extra",
        "table",
        "metadata",
        "labels",
        "spec",
        "taints",
        "status",
        "x",
        "'a'",
        "\"b\"",
        "r'\\d'",
        "b'x'",
        "'''",
        "\"",
        "'",
        "1",
        "2.5",
        "3u",
        "0x1",
        "-",
        "!",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ".",
        ".?",
        "[?",
        ",",
        ":",
        "?",
        "&&",
        "||",
        "==",
        "!=",
        "<",
        ">=",
        "in",
        "+",
        "*",
        "/",
        "%",
        "has(",
        "all(x, ",
        "exists(x, ",
        "map(x, ",
        "filter(x, ",
        "size(",
        "matches('a+')",
        "orValue(",
        "string(",
        "true",
        "false",
        "null",
        " ",
        "\n",
        "//",
        "`a/b`",
        "\\",
        "é",
        "=",
        "math.",
        "transformMap(k, v, ",
        "transformMapEntry(k, v, ",
        "unwrapOpt()",
        "optional.of(",
        "_",
        "$",
        "@result",
    ];
    prop_oneof![9 => prop::sample::select(words.to_vec()).prop_map(str::to_owned), 1 => any::<char>().prop_map(String::from)]
}

/// Compiles and, if that works, evaluates.
fn try_everything(source: &str) {
    for yields in [Yields::Bool, Yields::Text, Yields::TextMap, Yields::Any] {
        match Expression::compile(source, &SCHEMA, yields) {
            Ok(expression) => with_document(&document(), |variables| {
                let errors = [expression.evaluate_bool(variables).err(), expression.evaluate_map(variables).err()];
                for error in errors.into_iter().flatten() {
                    assert!(!matches!(error, EvaluationError::Internal(_)), "{source}: {error}");
                }
            }),
            Err(error) => assert!(!error.to_string().contains("bug in the"), "{source}: {error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_compiler_panic_or_hang(source in any::<String>()) {
        try_everything(&source);
    }

    #[test]
    fn no_sequence_of_pieces_makes_it_panic_or_hang(pieces in prop::collection::vec(piece(), 0..40)) {
        try_everything(&pieces.concat());
    }

    /// Whatever arguments of any type a function is called with, there is an answer or an error.
    #[test]
    fn no_arguments_make_a_function_panic(index in any::<prop::sample::Index>(), arguments in prop::collection::vec(argument(), 8)) {
        let functions: Vec<_> = crate::functions::all().collect();
        let function = functions[index.index(functions.len())];
        let arguments = &arguments[..function.parameters.len()];
        let method = function.form != crate::functions::Form::Function;
        let source = match arguments.split_first() {
            Some((target, rest)) if method => format!("({target}).{}({})", function.name, rest.join(", ")),
            _ => format!("{}({})", function.name, arguments.join(", ")),
        };
        try_everything(&format!("dyn({source}) == 1"));
    }

    /// The same for operators, and for values that functions made.
    #[test]
    fn no_operands_make_an_operator_panic(left in argument(), right in argument(), third in argument()) {
        for operator in ["==", "!=", "<", "<=", ">", ">=", "in", "+", "-", "*", "/", "%"] {
            try_everything(&format!("dyn({left} {operator} {right}) == {third}"));
            try_everything(&format!("dyn(({left} {operator} {right}) {operator} {third}) == 1"));
        }
        try_everything(&format!("dyn({left}[{right}]) == dyn({left}[?{right}]) || dyn(-{left}) == {third}"));
        try_everything(&format!("{left}.all(a, b, a == b) ? {right} == {third} : {{{left}: {right}}} == {third}"));
    }
}

fn argument() -> impl Strategy<Value = String> {
    let values = [
        "dyn('')",
        "dyn('é')",
        "dyn('a,b')",
        "dyn('10.0.0.1')",
        "dyn('10.0.0.0/8')",
        "dyn('1Gi')",
        "dyn('1e30')",
        "dyn('v1.2.3')",
        "dyn('https://[::1]:8/é?a=b')",
        "dyn('2026-01-01T00:00:00Z')",
        "dyn('0001-01-01T00:00:00Z')",
        "dyn('9e9h9e9h')",
        "dyn('-9223372036854775808ns')",
        "dyn('%.3f %s %d')",
        "dyn('a{2}')",
        "dyn(b'')",
        "dyn(b'\\xff')",
        "dyn(0)",
        "dyn(-1)",
        "dyn(1)",
        "dyn(9223372036854775807)",
        "dyn(-9223372036854775808)",
        "dyn(0u)",
        "dyn(18446744073709551615u)",
        "dyn(1.5)",
        "dyn(0.0 / 0.0)",
        "dyn(1.0 / 0.0)",
        "dyn(-1e300)",
        "dyn([])",
        "dyn([1, 2.0, 'a'])",
        "dyn([[1], []])",
        "dyn(['b', 'a'])",
        "dyn({})",
        "dyn({'a': 1})",
        "dyn(null)",
        "dyn(true)",
        "dyn(optional.none())",
        "dyn(optional.of('a'))",
        "dyn(quantity('999999999999999999'))",
        "dyn(quantity('1n'))",
        "dyn(duration('1h'))",
        "dyn(timestamp('9999-12-31T23:59:59Z'))",
        "dyn(ip('::1'))",
        "dyn(cidr('::/0'))",
        "dyn(semver('1.2.3'))",
        "dyn(url('/a'))",
        "dyn(format.uri())",
        "doc",
        "extra",
    ];
    prop::sample::select(values.to_vec()).prop_map(str::to_owned)
}
