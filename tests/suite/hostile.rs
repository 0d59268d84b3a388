//! Hostile policy texts: everything ends in an error or a policy, in bounded time, memory and stack.

use nodegate_policy::{
    DecideContext, NodeFacts, Operation, Origin, PolicyDocument, PolicySet, Requester, Write, decide,
};

pub(crate) fn errors_of(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let documents = PolicyDocument::parse_all(&Origin::File("p.yaml".into()), text, &mut errors);
    errors.extend(PolicySet::compile(&documents).err().unwrap_or_default());
    errors.iter().map(ToString::to_string).collect()
}

fn policy(spec: &str) -> String {
    format!("apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: p}}\nspec: {spec}\n")
}

#[test]
fn an_alias_bomb_is_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let before = level - 1;
        text.push_str(&format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 10].join(", ")));
    }
    assert!(!errors_of(&text).is_empty());
}

#[test]
fn deep_nesting_is_refused_without_a_stack_overflow() {
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", "")] {
        let text = policy(&format!("{}x{}", open.repeat(50_000), close.repeat(50_000)));
        assert!(!errors_of(&text).is_empty(), "{open}");
    }
    for bracket in ["(", "[", "{", "!", "-", "a.", "a?"] {
        let expression = bracket.repeat(4000);
        let text =
            policy(&format!("{{rules: [{{name: r, match: {{expression: '{expression}'}}, labels: {{a: b}}}}]}}"));
        assert!(errors_of(&text).iter().any(|error| error.contains("expression")), "{bracket}");
    }
}

#[test]
fn text_that_is_not_a_policy_is_an_error_that_names_the_file() {
    for text in [
        "\0",
        "\u{feff}",
        "%YAML 9",
        "a: b: c",
        "- - -",
        "'",
        "---\n...\n---\n:",
        "{",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {}\n",
    ] {
        let errors = errors_of(text);
        assert!(
            text == "\u{feff}" || errors.iter().all(|error| error.starts_with("p.yaml:")) && !errors.is_empty(),
            "{text:?}: {errors:?}"
        );
    }
}

#[test]
fn oversized_globs_patterns_and_numbers_are_refused() {
    let long = "a*".repeat(400);
    let regex = format!(
        r#"{{"governance": {{"naming": [{{"keys": ["a"], "regex": "{}", "of": "value"}}]}}}}"#,
        "x".repeat(5000)
    );
    assert!(errors_of(&policy(&regex))[0].contains("has 5000 bytes, but the limit is 4096"));
    let errors = errors_of(&policy(&format!(
        "{{rules: [{{name: r, match: {{names: [\"{long}\"], capacity: {{cpu: \">=99999999999999999999999999999999\"}}}}, labels: {{a: b}}, priority: 99999999999999999999}}]}}"
    )));
    for part in ["the glob has 800 characters", "is not a quantity", "spec.rules[0].priority"] {
        assert!(errors.iter().any(|error| error.contains(part)), "{part} in {errors:?}");
    }
}

#[test]
fn two_thousand_expressions_load_and_more_do_not() {
    let expressions = |count: usize| {
        let entries = (0..count).map(|at| format!("{{expression: 'object.metadata.name != \"n{at}\"'}}"));
        policy(&format!("{{governance: {{expressions: [{}]}}}}", entries.collect::<Vec<_>>().join(", ")))
    };
    assert_eq!(errors_of(&expressions(2_000)), Vec::<String>::new());
    let errors = errors_of(&expressions(2_001));
    assert!(errors[0].contains("2001 expressions in total, but the limit is 2000"), "{errors:?}");
    // What is beyond the limit is not even parsed.
    let last = expressions(2_001).replace("object.metadata.name != \"n2000\"", "1 +");
    assert_eq!(errors_of(&last), errors);
}

#[test]
fn everything_compiled_of_a_set_has_one_budget() {
    let repeated = |count: usize, of: &dyn Fn(usize) -> String| (0..count).map(of).collect::<Vec<_>>().join(",");
    let naming = |_| r#"{"keys": ["a"], "regex": "[a-z0-9]{2,1000}[a-z]{1,400}", "of": "value"}"#.to_owned();
    let too_large = |_| r#"{"keys": ["a"], "regex": "([a-z]{1,900}[0-9]{1,900}){1,900}", "of": "value"}"#.to_owned();
    let matches = |at| format!(r#"{{"expression": "object.metadata.name.matches('(a{{1,50}}){{1,50}}{at}')"}}"#);
    let alternatives = (10..100).map(|at| at.to_string()).collect::<Vec<_>>().join(",");
    let names = |at| {
        format!(r#"{{"name": "r{at}", "labels": {{"a": "b"}}, "match": {{"names": ["{{{alternatives}}}*{at}"]}}}}"#)
    };
    let users = |at| format!(r#""*{at}?""#);
    for spec in [
        format!(r#"{{"governance": {{"naming": [{}]}}}}"#, repeated(400, &naming)),
        format!(r#"{{"governance": {{"naming": [{}]}}}}"#, repeated(400, &too_large)),
        format!(r#"{{"governance": {{"expressions": [{}]}}}}"#, repeated(400, &matches)),
        format!(r#"{{"rules": [{}]}}"#, repeated(1_000, &names)),
        format!(
            r#"{{"governance": {{"reserved": [{{"keys": ["a"], "allow": {{"users": [{}]}}}}]}}}}"#,
            repeated(20_000, &users)
        ),
    ] {
        let errors = errors_of(&policy(&spec));
        assert!(errors.iter().any(|error| error.contains("32 MiB when compiled")), "{:.80}: {errors:.3?}", spec);
    }
}

#[test]
fn an_object_has_fewer_values_than_a_file_and_its_errors_are_bounded() {
    let object = |count: usize| {
        let spec = format!(r#"{{"rules": [{}]}}"#, vec!["{}"; count].join(","));
        PolicyDocument::of_object_text("p", &spec).unwrap_err()
    };
    let too_large = object(60_000);
    assert!(too_large.len() == 1 && too_large[0].to_string().contains("at most 50,000"), "{too_large:?}");
    assert!(object(40_000).len() <= 1_000, "each of them has no name and sets nothing");
}

#[test]
fn ten_thousand_rules_load() {
    let rules: Vec<String> = (0..10_000)
        .map(|at| format!("{{name: r{at}, match: {{names: [\"rack-{at}-*\"]}}, labels: {{l{at}: x}}}}"))
        .collect();
    assert_eq!(errors_of(&policy(&format!("{{rules: [{}]}}", rules.join(", ")))), Vec::<String>::new());
}

#[test]
fn one_hundred_costly_expressions_share_one_budget_of_steps() {
    let costly = "lists.range(100000).all(x, lists.range(100000).all(y, x != y + 100000))";
    let rules = (0..100).map(|at| format!("{{name: r{at}, match: {{expression: '{costly}'}}, labels: {{l{at}: x}}}}"));
    let text = policy(&format!("{{rules: [{}]}}", rules.collect::<Vec<_>>().join(", ")));
    let documents = PolicyDocument::parse_all(&Origin::File("p.yaml".into()), &text, &mut Vec::new());
    let set = PolicySet::compile(&documents).unwrap();
    let write = Write {
        operation: Operation::Create,
        status: false,
        dry_run: false,
        evidence: None,
        requester: Requester::default(),
        node: NodeFacts::parse(r#"{"metadata": {"name": "n"}}"#).unwrap(),
        old: None,
    };
    let decision = decide(&set, &write, &DecideContext::default());
    let alone = decision.notes.iter().filter(|note| note.to_string().contains("takes more than 500000 steps")).count();
    let together = decision
        .notes
        .iter()
        .filter(|note| note.to_string().contains("all expressions together take more than"))
        .count();
    assert_eq!((alone, together), (8, 92));
}
