//! The tests of a translation: a node that each rule matches, and nodes that differ in one condition.

use serde_json::json;

use super::rule::{Condition, Group, Rule, Test, Witness, conditions, witness};
use crate::api::case::{Case, Expectation};
use crate::api::policy::TaintSpec;
use crate::simulate::taint_text;

/// The cases of all rules.
pub(super) fn of(rules: &[Rule]) -> Vec<Case> {
    rules.iter().flat_map(|rule| of_rule(rule, rules)).collect()
}

fn of_rule(rule: &Rule, rules: &[Rule]) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for groups in rule.ways() {
        cases.extend(witness(&groups, None).map(|node| positive(rule, &node)));
        for condition in conditions(&groups) {
            let other = witness(&groups, Some(condition)).filter(|node| !rule.matches(node));
            cases.extend(other.and_then(|node| negative(rule, rules, &node, &difference(&groups, condition))));
        }
    }
    cases.dedup_by(|one, other| (&one.node, &one.expect) == (&other.node, &other.expect));
    cases
}

/// A node that the rule matches gets what it sets.
pub(super) fn positive(rule: &Rule, node: &Witness) -> Case {
    let expect = Expectation {
        labels: rule.sets.labels.clone(),
        annotations: rule.sets.annotations.clone(),
        taints: rule.sets.taints.iter().map(text).collect(),
        deferred: Some(Vec::new()),
        ..Expectation::default()
    };
    case(format!("{}: {} gets what the rule sets", rule.name, node.name), node, expect)
}

/// A node that differs in one condition gets nothing of the rule. `None` if nothing would show it.
fn negative(rule: &Rule, rules: &[Rule], node: &Witness, difference: &str) -> Option<Case> {
    let others: Vec<&Rule> = rules.iter().filter(|other| other.matches(node)).collect();
    // The node may have a label with the key of a taint.
    let is_there =
        |key: &str| node.labels.contains_key(key) || others.iter().any(|other| keys(other).any(|of| of == key));
    let absent: Vec<String> = keys(rule).filter(|key| !is_there(key)).cloned().collect();
    let expect = match others.is_empty() {
        true => Expectation { patch: Some(false), ..Expectation::default() },
        false if absent.is_empty() => return None,
        false => Expectation { absent, ..Expectation::default() },
    };
    Some(case(format!("{}: nothing for {}, {difference}", rule.name, node.name), node, expect))
}

/// The keys that a rule sets.
fn keys(rule: &Rule) -> impl Iterator<Item = &String> {
    let sets = &rule.sets;
    sets.labels.keys().chain(sets.annotations.keys()).chain(sets.taints.iter().map(|taint| &taint.key))
}

fn difference(groups: &[&Group], condition: Condition) -> String {
    match condition {
        Condition::Names(_) => "which has another name".to_owned(),
        Condition::Label(group, label) => {
            let (key, test) = &groups[group].labels[label];
            match test {
                Test::Exists => format!("which lacks the label {key}"),
                Test::Absent => format!("which has the label {key}"),
                Test::In(_) | Test::NotIn(_) | Test::Above(_) | Test::Below(_) => {
                    format!("whose label {key} has another value")
                }
            }
        }
    }
}

fn case(name: String, node: &Witness, expect: Expectation) -> Case {
    let mut written = json!({"name": node.name});
    if !node.labels.is_empty() {
        written["labels"] = json!(node.labels);
    }
    Case { name, node: Some(written), requester: Some("admin".to_owned()), expect, ..Case::default() }
}

fn text(taint: &TaintSpec) -> String {
    taint_text(&json!({"key": taint.key, "value": taint.value, "effect": taint.effect}))
}
