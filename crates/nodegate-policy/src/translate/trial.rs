//! Tries of a translation, before anything is written: each rule by itself, and all of them as they would be read.

use super::rule::{self, Rule};
use super::{Translation, cases, spec};
use crate::api::case::{Case, TestFile};
use crate::api::document::{Origin, PolicyDocument, PolicyError};
use crate::simulate::{SimulationError, faulty_nodes, node_of, run_case};
use crate::{LintName, PolicySet};

/// Maximum number of problems that are named.
const PROBLEMS_MAX: usize = 3;

/// Whether the rule compiles by itself, and gives a node that it matches what it sets.
pub(super) fn alone(rule: &Rule) -> Result<(), String> {
    let set = PolicySet::compile(&[PolicyDocument::new("translated", Origin::Object, spec(vec![rule.spec()]))]);
    let set = set.map_err(|errors| format!("nodegate refuses the rule: {}", problems(&errors)))?;
    for way in rule.ways() {
        let Some(node) = rule::witness(&way, None) else {
            return Err("nodegate found no node that fits its conditions".to_owned());
        };
        let case = cases::positive(rule, &node);
        let differences = run(&set, &case).map_err(|error| error.to_string())?;
        if !differences.is_empty() {
            return Err(format!("nodegate does not give a node what the rule sets: {}", differences.join("; ")));
        }
    }
    Ok(())
}

/// Whether the files that would be written can be read, the policy compiles and may be applied, and all tests pass.
pub(super) fn together(translation: &Translation) -> Result<(), String> {
    if translation.translated.is_empty() {
        return Ok(());
    }
    let (policy, mut errors) = ("policy.yaml", Vec::new());
    let text = |text: Result<String, serde_saphyr::ser::Error>| text.map_err(|error| error.to_string());
    let (policy_yaml, test_yaml) =
        (text(translation.policy_yaml("translated", ""))?, text(translation.test_yaml(policy, ""))?);
    let documents = PolicyDocument::parse_all(&Origin::File(policy.to_owned()), &policy_yaml, &mut errors);
    let tests = TestFile::parse_all("test.yaml", &test_yaml, &mut errors);
    tests.iter().for_each(|file| faulty_nodes(file, &mut errors));
    let set = PolicySet::compile(&documents).map_err(|more| errors.extend(more));
    // Whatever only files may have is refused where the policy is applied.
    let lints = set.iter().flat_map(PolicySet::lints).filter(|lint| lint.name == LintName::OnlyInFiles);
    errors.extend(lints.map(|lint| lint.fault));
    let (true, Ok(set)) = (errors.is_empty(), set) else { return Err(problems(&errors)) };
    for case in tests.iter().flat_map(|file| &file.test.cases) {
        let differences = run(&set, case).map_err(|error| error.to_string())?;
        if !differences.is_empty() {
            return Err(format!("the test {:?} fails: {}", case.name, differences.join("; ")));
        }
    }
    Ok(())
}

fn run(set: &PolicySet, case: &Case) -> Result<Vec<String>, SimulationError> {
    run_case(set, case, node_of(case)?.unwrap_or_default())
}

fn problems(errors: &[PolicyError]) -> String {
    let problems: Vec<String> = errors.iter().take(PROBLEMS_MAX).map(|error| error.problem.to_string()).collect();
    problems.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::rule::Sets;
    use crate::translate::{Place, Program, Translated};

    fn translation(rules: usize) -> Translation {
        let rule = |number: usize| {
            let sets = Sets { labels: [(format!("l{number}"), "x".to_owned())].into(), ..Sets::default() };
            Rule { name: format!("r{number}"), sets, ..Rule::default() }
        };
        let rules: Vec<Rule> = (0..rules).map(rule).collect();
        let of = |rule: &Rule| Translated { place: Place::default(), rule: rule.spec() };
        let translated = rules.iter().map(of).collect();
        Translation { program: Program::Nfd, translated, left_out: Vec::new(), cases: cases::of(&rules) }
    }

    #[test]
    fn what_cannot_be_applied_or_fails_its_tests_is_a_problem() {
        assert_eq!(together(&translation(0)), Ok(()));
        assert_eq!(together(&translation(2)), Ok(()));
        let many = together(&translation(2001));
        assert!(many.as_ref().is_err_and(|problem| problem.contains("more than 2000 rules")), "{many:?}");
        let mut wrong = translation(2);
        wrong.cases[1].expect.labels.insert("l1".to_owned(), "y".to_owned());
        let fails = together(&wrong);
        assert!(fails.as_ref().is_err_and(|problem| problem.contains("the test \"r1: ")), "{fails:?}");
        let mut refused = translation(2);
        refused.translated[1].rule.labels.insert("l2".to_owned(), "not a value".to_owned());
        assert!(together(&refused).is_err_and(|problem| problem.contains("not a value")));
    }
}
