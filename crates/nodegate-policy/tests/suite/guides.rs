//! The policies of the guide about pools, with the cases in `tests/guides/pools.yaml`.

use std::collections::BTreeMap;
use std::fs;

use nodegate_policy::api::case::{Case, PolicyTest, VerdictCase};
use nodegate_policy::api::source::parse_documents;
use serde_json::Value as Json;

use crate::cases::{path_of, tests_of};

const GUIDE: &str = "docs/guides/pools.md";
const CASES: &str = "tests/guides/pools.yaml";

/// The policies of the guide, by their names.
fn policies() -> BTreeMap<String, Json> {
    let text = fs::read_to_string(path_of(GUIDE)).unwrap();
    let blocks = text.split("\n```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    let mut found = BTreeMap::new();
    for block in blocks {
        let trees = parse_documents(block).unwrap();
        let [tree] = trees.as_slice() else { panic!("{GUIDE}: a block with several documents:\n{block}") };
        let policy = tree.to_json();
        let name = policy["metadata"]["name"].as_str().unwrap_or_else(|| panic!("{GUIDE}: no name:\n{block}"));
        assert_eq!(policy["kind"], "NodePolicy", "{GUIDE}: {name}");
        assert!(found.insert(name.to_owned(), policy.clone()).is_none(), "{GUIDE} has two policies named {name}");
    }
    let written = text.matches("```yaml").count();
    assert_eq!(found.len(), written, "{GUIDE}: {written} blocks of YAML, but only these whole policies: {found:?}");
    found
}

/// Each test of the guide, with the names of its policies.
fn named_tests() -> Vec<(Vec<String>, PolicyTest)> {
    let policies = policies();
    let with_policies = |mut test: PolicyTest| {
        let names = std::mem::take(&mut test.policies);
        let policy = |name| policies.get(name).unwrap_or_else(|| panic!("{CASES}: {GUIDE} has no policy {name:?}"));
        test.policy = Some(names.iter().map(policy).cloned().collect());
        (names, test)
    };
    tests_of(&path_of(CASES)).into_iter().map(with_policies).collect()
}

/// Each test of the guide, with its file.
pub(crate) fn tests() -> Vec<(String, PolicyTest)> {
    named_tests().into_iter().map(|(_, test)| (CASES.to_owned(), test)).collect()
}

/// The labels that the rules of a policy set.
fn labels(policy: &Json) -> Vec<&String> {
    let rules = policy["spec"]["rules"].as_array().into_iter().flatten();
    rules.filter_map(|rule| rule["labels"].as_object()).flat_map(|labels| labels.keys()).collect()
}

/// Whether a node of the pool gets the labels of the policy.
fn is_honest(case: &Case, labels: &[&String]) -> bool {
    let deferred = case.expect.deferred.as_deref().unwrap_or_default();
    labels.iter().all(|label| deferred.contains(label) || case.expect.labels.contains_key(*label))
}

/// Whether somebody says or does something for which there is no proof, and gets nothing by it.
fn is_attack(case: &Case) -> bool {
    let node = case.node.as_ref();
    let says =
        ["labels", "annotations", "providerID"].iter().any(|field| node.is_some_and(|node| !node[*field].is_null()));
    let gets_nothing = case.expect.deferred.as_ref().is_some_and(Vec::is_empty) && case.expect.labels.is_empty();
    (says && gets_nothing) || (case.change.is_some() && case.expect.verdict == Some(VerdictCase::Deny))
}

/// `every_table_case_passes` runs the cases.
#[test]
fn every_policy_of_the_guide_has_a_case_of_a_node_of_the_pool_and_one_of_an_attack() {
    let (policies, tests) = (policies(), named_tests());
    assert!(policies.len() >= 9, "{GUIDE} has only {:?}", policies.keys());
    let mut lacking = Vec::new();
    for (name, policy) in &policies {
        let labels = labels(policy);
        assert!(!labels.is_empty(), "{GUIDE}: policy {name} sets no label by which its cases are told apart");
        let own = || tests.iter().filter(|(names, _)| names.contains(name)).flat_map(|(_, test)| &test.cases);
        if !own().any(|case| is_honest(case, &labels)) {
            lacking.push(format!("{name}: no case expects {labels:?}"));
        }
        if !own().any(is_attack) {
            lacking.push(format!("{name}: no case expects `deferred: []` of a node that claims to be of the pool"));
        }
    }
    assert!(lacking.is_empty(), "{CASES}:\n{}", lacking.join("\n"));
}
