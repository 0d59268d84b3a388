//! Rules of other programs: each is translated exactly or left out, and the tests of a translation notice every condition.

mod everywhere;
mod kyverno;
mod nfd;
mod patches;

use nodegate_policy::api::case::{Case, PolicyTest};
use nodegate_policy::api::policy::{ConditionsSpec, NodePolicySpec, RuleSpec};
use nodegate_policy::api::schema::{check, schema_of};
use nodegate_policy::api::source::{FieldPath, parse_documents};
use nodegate_policy::simulate::{node_of, run_case};
use nodegate_policy::translate::{Program, TranslateError, Translation, translate};
use nodegate_policy::{Origin, PolicyDocument, PolicySet};
use serde_json::{Value, json};

fn of_text(program: Program, text: &str) -> Translation {
    translate(program, &[("rules.yaml".to_owned(), text.to_owned())])
        .unwrap_or_else(|error| panic!("{error:#?}\n{text}"))
}

fn set_of(rules: Vec<RuleSpec>) -> PolicySet {
    let spec = NodePolicySpec { rules, ..NodePolicySpec::default() };
    let document = PolicyDocument::new("fleet", Origin::Object, spec);
    PolicySet::compile(&[document]).unwrap_or_else(|errors| panic!("{errors:#?}"))
}

fn rules_of(translation: &Translation) -> Vec<RuleSpec> {
    translation.translated.iter().map(|one| one.rule.clone()).collect()
}

/// Whether a case holds with these policies.
fn passes(set: &PolicySet, case: &Case) -> bool {
    run_case(set, case, node_of(case).unwrap().unwrap()).unwrap().is_empty()
}

/// The labels, annotations and keys of taints that a node gets which is created like this, with its own.
fn given(translation: &Translation, node: &Value, expect: &Value) -> Vec<String> {
    let case = json!({"name": "x", "node": node, "as": "admin", "expect": expect});
    let case: Case = serde_json::from_value(case).unwrap();
    run_case(&set_of(rules_of(translation)), &case, node_of(&case).unwrap().unwrap()).unwrap()
}

/// The rules, with each condition left out in turn.
fn mutants(rule: &RuleSpec) -> Vec<RuleSpec> {
    fn of_group(group: &ConditionsSpec) -> Vec<ConditionsSpec> {
        let mut all = Vec::new();
        let with = |change: &dyn Fn(&mut ConditionsSpec)| {
            let mut group = group.clone();
            change(&mut group);
            group.selector =
                group.selector.filter(|of| !of.match_labels.is_empty() || !of.match_expressions.is_empty());
            group
        };
        all.extend(group.names.is_some().then(|| with(&|group| group.names = None)));
        all.extend(group.expression.is_some().then(|| with(&|group| group.expression = None)));
        // What guards a comparison only makes false what is unknown without it. A node that joins gets nothing of either.
        let parts: Vec<&str> = group.expression.iter().flat_map(|all| all.split(" && ")).collect();
        let comparisons = (0..parts.len()).filter(|at| parts[*at].starts_with("int("));
        all.extend(comparisons.map(|at| {
            let others = [&parts[..at], &parts[at + 1..]].concat().join(" && ");
            with(&|group| group.expression = Some(others.clone()))
        }));
        let selector = group.selector.clone().unwrap_or_default();
        all.extend(
            selector
                .match_labels
                .keys()
                .map(|key| with(&|group| drop(group.selector.as_mut().unwrap().match_labels.remove(key)))),
        );
        all.extend(
            (0..selector.match_expressions.len())
                .map(|at| with(&|group| drop(group.selector.as_mut().unwrap().match_expressions.remove(at)))),
        );
        all
    }
    let Some(of) = &rule.match_ else { return Vec::new() };
    let mut mutants = Vec::new();
    for conditions in of_group(&of.conditions) {
        let mut mutant = rule.clone();
        mutant.match_.as_mut().unwrap().conditions = conditions;
        mutants.push(mutant);
    }
    for (at, group) in of.any_of.iter().flatten().enumerate() {
        for conditions in of_group(group) {
            let mut mutant = rule.clone();
            let any = &mut mutant.match_.as_mut().unwrap().any_of;
            match conditions == ConditionsSpec::default() {
                true => *any = None,
                false => any.as_mut().unwrap()[at] = conditions,
            }
            mutants.push(mutant);
        }
    }
    mutants
}

/// Asserts that the files are as they should be, that all cases pass, and that one fails if a condition or a rule is missing.
/// Returns the number of mutants.
fn assert_sound(translation: &Translation) -> usize {
    let yaml = translation.policy_yaml("fleet", "nodepolicy.schema.json").unwrap();
    let mut errors = Vec::new();
    let documents = PolicyDocument::parse_all(&Origin::File("policy.yaml".to_owned()), &yaml, &mut errors);
    assert!(errors.is_empty(), "{errors:#?}\n{yaml}");
    let set = PolicySet::compile(&documents).unwrap_or_else(|errors| panic!("{errors:#?}\n{yaml}"));
    let test = translation.test_yaml("policy.yaml", "policytest.schema.json").unwrap();
    let (mut trees, mut faults) = (parse_documents(&test).unwrap(), Vec::new());
    check(&mut trees[0], &schema_of::<PolicyTest>(), &FieldPath::root(), &mut faults);
    assert!(faults.is_empty(), "{faults:#?}\n{test}");
    for case in &translation.cases {
        let differences = run_case(&set, case, node_of(case).unwrap().unwrap()).unwrap();
        assert!(differences.is_empty(), "{}: {differences:?}\n{yaml}", case.name);
    }
    let rules = rules_of(translation);
    let mut count = 0;
    for (at, rule) in rules.iter().enumerate() {
        let mut nothing = rule.clone();
        (nothing.annotations, nothing.taints) = Default::default();
        nothing.labels = [("example.com/something-else".to_owned(), "x".to_owned())].into();
        for mutant in mutants(rule).into_iter().chain([nothing]) {
            let mut others = rules.clone();
            others[at] = mutant.clone();
            let set = set_of(others);
            assert!(translation.cases.iter().any(|case| !passes(&set, case)), "no case notices {mutant:#?}\n{test}");
            count += 1;
        }
    }
    count
}

/// The rules of the policy as YAML.
fn yaml(translation: &Translation) -> String {
    let yaml = translation.policy_yaml("fleet", "s.json").unwrap();
    yaml.split_once("  rules:\n").map(|(_, rules)| rules.to_owned()).unwrap_or_default()
}

/// Asserts that the rules of the policy's file are these.
fn assert_rules(translation: &Translation, expected: &str) {
    let text = format!("rules:\n{expected}");
    let parsed = |text: &str| parse_documents(text).unwrap_or_else(|error| panic!("{error}\n{text}"))[0].to_json();
    let found = format!("rules:\n{}", yaml(translation));
    assert_eq!(parsed(&found), parsed(&text), "{found}");
}

/// Asserts that nothing is translated, and that one of the reasons contains this text.
fn assert_left_out(translation: &Translation, reason: &str, of: &str) {
    assert!(translation.translated.is_empty(), "{of}\n{}", yaml(translation));
    let mut reasons = translation.left_out.iter().flat_map(|one| &one.reasons);
    assert!(reasons.any(|one| one.text.contains(reason)), "{of}\nexpected {reason:?} in {:#?}", translation.left_out);
}

#[test]
fn whatever_is_no_file_of_the_program_is_an_error_with_its_line() {
    let faults = |program, text: &str| {
        let error = translate(program, &[("f.yaml".to_owned(), text.to_owned())]).unwrap_err();
        let TranslateError::Files(errors) = error else { panic!("{error}") };
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    for program in [Program::Kyverno, Program::Nfd] {
        for (text, expected) in [
            ("# nothing\n", "f.yaml: the file has no object"),
            ("apiVersion: v1\r\nkind: ConfigMap\r\n", "f.yaml:2:7: kind: this is a ConfigMap of \"v1\"; pass "),
            ("a: 1\n---\nspec: {rules: []}\n", "f.yaml:3:1: kind: the object has no kind"),
            (
                "apiVersion: v1\nkind: List\nitems:\n  - {apiVersion: v1, kind: Node}\n",
                "f.yaml:4:28: kind: this is a Node",
            ),
            ("kind: [\n", "f.yaml:"),
            ("spec: 1\nspec: 2\n", "f.yaml:2:1"),
            ("- 1\n", "f.yaml:1:1"),
        ] {
            let found = faults(program, text);
            assert!(found.contains(expected), "{text:?}: {found}");
        }
    }
    let other = faults(Program::Kyverno, "apiVersion: kyverno.io/v9\nkind: ClusterPolicy\n");
    assert!(other.contains("this is a ClusterPolicy of \"kyverno.io/v9\""), "{other}");
}
