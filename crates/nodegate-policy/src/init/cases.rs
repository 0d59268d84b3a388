//! The tests of a first policy: what a node of each rule gets when it joins.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::names::FleetNames;
use super::rules::Rule;
use crate::api::case::{Case, Expectation, VerdictCase};
use crate::api::policy::TaintSpec;
use crate::keys::restriction::is_restricted;
use crate::simulate::taint_text;

/// Maximum number of absent keys that one case lists, so that a person can read it.
const ABSENT_MAX: usize = 20;

/// What the rules give one node.
struct Given<'a> {
    name: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    taints: Vec<&'a TaintSpec>,
}

/// The cases: for one node of each rule, and for one node that no rule matches.
pub(super) fn cases(names: &FleetNames<'_>, rules: &[Rule]) -> Vec<Case> {
    let mut given: BTreeMap<usize, Given<'_>> = BTreeMap::new();
    let chosen: BTreeSet<usize> = rules.iter().filter_map(|rule| rule.nodes.first().copied()).collect();
    for rule in rules {
        for node in rule.nodes.iter().filter(|node| chosen.contains(node)) {
            let name = names.0[*node];
            let of = given.entry(*node).or_insert(Given { name, labels: BTreeMap::new(), taints: Vec::new() });
            of.labels.extend(rule.spec.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())));
            of.taints.extend(&rule.spec.taints);
        }
    }
    let keys: BTreeSet<&str> = rules
        .iter()
        .flat_map(|rule| {
            rule.spec.labels.keys().map(String::as_str).chain(rule.spec.taints.iter().map(|taint| taint.key.as_str()))
        })
        .collect();
    let matched: BTreeSet<usize> = rules.iter().flat_map(|rule| rule.nodes.iter().copied()).collect();
    let unmatched = (0..names.0.len()).find(|node| !matched.contains(node)).map(|node| unmatched(names.0[node]));
    given.values().flat_map(|given| of_node(given, &keys)).chain(unmatched).collect()
}

/// The join of a node, and the write of an administrator that may carry what the join may not.
fn of_node(given: &Given<'_>, keys: &BTreeSet<&str>) -> Vec<Case> {
    let Given { name, labels, taints } = given;
    let (deferred, carried): (BTreeMap<&str, &str>, BTreeMap<&str, &str>) =
        labels.iter().map(|(key, value)| (*key, *value)).partition(|(key, _)| is_restricted(key));
    let owned = |labels: &BTreeMap<&str, &str>| {
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let absent =
        keys.iter().filter(|key| !labels.contains_key(**key) && !taints.iter().any(|taint| taint.key == **key));
    let join = Case {
        name: format!("{name} joins with {}", what(!carried.is_empty(), !taints.is_empty())),
        node: Some(json!({"name": name})),
        expect: Expectation {
            labels: owned(&carried),
            taints: taints.iter().map(|taint| text(taint)).collect(),
            absent: absent.take(ABSENT_MAX).map(|key| (*key).to_owned()).collect(),
            deferred: Some(deferred.keys().map(|key| (*key).to_owned()).collect()),
            verdict: Some(VerdictCase::Allow),
            ..Expectation::default()
        },
        ..Case::default()
    };
    let later = Case {
        name: format!("{name} gets the labels that a kubelet may not set from anyone else"),
        node: Some(json!({"name": name})),
        requester: Some("admin".to_owned()),
        expect: Expectation { labels: owned(&deferred), deferred: Some(Vec::new()), ..Expectation::default() },
        ..Case::default()
    };
    std::iter::once(join).chain((!deferred.is_empty()).then_some(later)).collect()
}

fn what(labels: bool, taints: bool) -> &'static str {
    match (labels, taints) {
        (true, true) => "its labels and taints",
        (true, false) => "its labels",
        (false, true) => "its taints",
        (false, false) => "labels that are deferred",
    }
}

fn text(taint: &TaintSpec) -> String {
    taint_text(&json!({"key": taint.key, "value": taint.value, "effect": taint.effect}))
}

/// A node that no rule matches gets nothing.
fn unmatched(name: &str) -> Case {
    Case {
        name: format!("{name}, which no rule matches, gets nothing"),
        node: Some(json!({"name": name})),
        expect: Expectation { patch: Some(false), ..Expectation::default() },
        ..Case::default()
    }
}
