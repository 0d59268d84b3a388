//! The tests of a first policy: what a node of each rule gets when it joins.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use super::FleetNode;
use super::groups::Groups;
use super::names::FleetNames;
use super::platforms;
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
    let keys: BTreeSet<&str> = rules.iter().flat_map(Rule::keys).map(|(_, key)| key).collect();
    let matched: BTreeSet<usize> = rules.iter().flat_map(|rule| rule.nodes.iter().copied()).collect();
    let unmatched = (0..names.0.len()).find(|node| !matched.contains(node)).map(|node| unmatched(names.0[node]));
    given.values().flat_map(|given| of_node(given, &keys)).chain(unmatched).collect()
}

/// The cases of rules by groups: for a node of one group of each rule, and for one that is in no group.
pub(super) fn of_groups(fleet: &[&FleetNode], groups: &Groups<'_>, rules: &[Rule]) -> Vec<Case> {
    let keys: BTreeSet<&str> = rules.iter().flat_map(Rule::keys).map(|(_, key)| key).collect();
    let mut cases = Vec::new();
    for rule in rules {
        let Some((of, group)) = rule.groups.as_ref().and_then(|of| Some((of, of.names.first()?))) else { continue };
        let is_in = |node: &&usize| match &of.key {
            Some(key) => fleet[**node].labels.get(key) == Some(group),
            None => platforms::pool_of(fleet[**node]).is_some_and(|(_, pool)| pool == group),
        };
        let Some(first) = rule.nodes.iter().find(is_in).map(|node| fleet[*node]) else { continue };
        let mut absent = keys.clone();
        // The node has the label that the rule matches, and a taint may have the same key.
        for key in rule.keys().map(|(_, key)| key).chain(of.key.as_deref()) {
            absent.remove(key);
        }
        let withheld = of.withheld.iter().filter_map(|label| label.split_once('=')).map(|(key, _)| key);
        let absent: Vec<String> = withheld.chain(absent).take(ABSENT_MAX).map(str::to_owned).collect();
        match &of.key {
            Some(key) => cases.extend(of_label(first, key, group, rule, absent)),
            None => cases.extend(of_pool(first, rule, absent)),
        }
    }
    if let (Some(node), false) = (fleet.first(), groups.keys(None).is_empty() || cases.is_empty()) {
        cases.push(Case {
            name: format!("a node without the label {} gets nothing", groups.keys(None).join(" or ")),
            node: Some(json!({"name": node.name})),
            expect: Expectation { patch: Some(false), ..Expectation::default() },
            ..Case::default()
        });
    }
    cases
}

/// The cases of a node with a label.
fn of_label(first: &FleetNode, key: &str, group: &str, rule: &Rule, absent: Vec<String>) -> Vec<Case> {
    let node = json!({"name": first.name, "labels": {key: group}});
    let title = format!("a node with {key}={group}");
    if is_restricted(key) {
        // A kubelet's own node cannot have the label when it joins.
        let name = format!("{title} gets its labels and taints from anyone but its kubelet");
        return vec![of_admin(name, node, rule.spec.labels.clone(), taints(rule))];
    }
    joining(&title, &node, rule.spec.labels.clone(), taints(rule), absent)
}

/// The join of a node that proves its pool, and of one that only says that it is of this pool.
fn of_pool(first: &FleetNode, rule: &Rule, absent: Vec<String>) -> Vec<Case> {
    let Some((platform, pool)) = platforms::pool_of(first) else { return Vec::new() };
    let (name, expect) = joined(&format!("a node of pool {pool}"), rule.spec.labels.clone(), taints(rule), absent);
    let join = Case { name, expect, ..platform.joining(first, pool) };
    let keys = rule.keys().map(|(_, key)| key.to_owned()).take(ABSENT_MAX);
    let claim = Case {
        name: format!("a node that only says it is of pool {pool} gets nothing of it"),
        expect: Expectation { absent: keys.collect(), deferred: Some(Vec::new()), ..Expectation::default() },
        ..platform.claiming(pool)
    };
    vec![join, claim]
}

fn taints(rule: &Rule) -> Vec<String> {
    rule.spec.taints.iter().map(text).collect()
}

/// The join of a node that is to get all this, and the write of an administrator that may carry what the join may not.
fn joining(
    title: &str,
    node: &Json,
    labels: BTreeMap<String, String>,
    taints: Vec<String>,
    absent: Vec<String>,
) -> Vec<Case> {
    let mut deferred = labels.clone();
    deferred.retain(|key, _| is_restricted(key));
    let (name, expect) = joined(title, labels, taints, absent);
    let join = Case { name, node: Some(node.clone()), expect, ..Case::default() };
    let name = format!("{title} gets the labels that a kubelet may not set from anyone else");
    let later = (!deferred.is_empty()).then(|| of_admin(name, node.clone(), deferred, Vec::new()));
    std::iter::once(join).chain(later).collect()
}

/// The name of the case in which a node joins that is to get all this, and what is expected of it.
fn joined(
    title: &str,
    labels: BTreeMap<String, String>,
    taints: Vec<String>,
    absent: Vec<String>,
) -> (String, Expectation) {
    let (deferred, labels): (BTreeMap<String, String>, _) = labels.into_iter().partition(|(key, _)| is_restricted(key));
    let name = format!("{title} joins with {}", what(!labels.is_empty(), !taints.is_empty()));
    let deferred = Some(deferred.into_keys().collect());
    let verdict = Some(VerdictCase::Allow);
    (name, Expectation { labels, taints, absent, deferred, verdict, ..Expectation::default() })
}

/// A write of an administrator with which a node gets all this.
fn of_admin(name: String, node: Json, labels: BTreeMap<String, String>, taints: Vec<String>) -> Case {
    let expect = Expectation { labels, taints, deferred: Some(Vec::new()), ..Expectation::default() };
    Case { name, node: Some(node), requester: Some("admin".to_owned()), expect, ..Case::default() }
}

/// The cases of a node that rules match by name.
fn of_node(given: &Given<'_>, keys: &BTreeSet<&str>) -> Vec<Case> {
    let Given { name, labels, taints } = given;
    let absent =
        keys.iter().filter(|key| !labels.contains_key(**key) && !taints.iter().any(|taint| taint.key == **key));
    let absent = absent.take(ABSENT_MAX).map(|key| (*key).to_owned()).collect();
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    joining(name, &json!({"name": name}), labels, taints.iter().map(|taint| text(taint)).collect(), absent)
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
