//! The rules of a first policy: one for all labels and taints that the same nodes have.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::Value;
use super::names::FleetNames;
use crate::api::policy::{ConditionsSpec, MatchSpec, RuleSpec, TaintSpec};

/// A rule, and the nodes that it matches.
pub(super) struct Rule {
    pub(super) spec: RuleSpec,
    pub(super) nodes: Vec<usize>,
}

/// The rules, those that match the most nodes first.
pub(super) fn rules(names: &FleetNames<'_>, assigned: &BTreeMap<Value<'_>, Vec<usize>>) -> Vec<Rule> {
    let mut by_nodes: BTreeMap<&[usize], Vec<&Value<'_>>> = BTreeMap::new();
    for (value, nodes) in assigned {
        by_nodes.entry(nodes).or_default().push(value);
    }
    let mut groups: Vec<(&[usize], Vec<&Value<'_>>)> = by_nodes.into_iter().collect();
    groups.sort_by_key(|(nodes, _)| (Reverse(nodes.len()), *nodes));
    let mut taken = BTreeSet::new();
    let rule = |(nodes, values): (&[usize], Vec<&Value<'_>>)| {
        let folded = names.fold(nodes);
        let name = unique(rule_name(&folded), &mut taken);
        Rule { spec: spec(name, folded, &values), nodes: nodes.to_vec() }
    };
    groups.into_iter().map(rule).collect()
}

fn spec(name: String, names: Vec<String>, values: &[&Value<'_>]) -> RuleSpec {
    let conditions = ConditionsSpec { names: Some(names), ..ConditionsSpec::default() };
    let mut spec =
        RuleSpec { name, match_: Some(MatchSpec { conditions, ..MatchSpec::default() }), ..RuleSpec::default() };
    for value in values {
        match value {
            Value::Label { key, value } => drop(spec.labels.insert((*key).to_owned(), (*value).to_owned())),
            Value::Taint { id, value } => spec.taints.push(TaintSpec {
                key: id.key.to_string(),
                value: (*value).to_owned(),
                effect: id.effect.to_string(),
            }),
        }
    }
    spec
}

/// A name for the rule of these names and globs: `gpu` for `gpu-*`, `cpu-and-gpu`, `cpu-and-2-more`.
fn rule_name(folded: &[String]) -> String {
    let stem = |name: &String| {
        let host = name.split_once('*').map_or(name.as_str(), |(prefix, suffix)| match prefix {
            "" => suffix.trim_start_matches('.'),
            prefix => prefix.trim_end_matches('-'),
        });
        host.to_owned()
    };
    match folded {
        [] => "nodes".to_owned(),
        [only] => stem(only),
        [one, other] => format!("{}-and-{}", stem(one), stem(other)),
        [first, more @ ..] => format!("{}-and-{}-more", stem(first), more.len()),
    }
}

/// The name, with a number if another rule has it.
fn unique(name: String, taken: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let free = std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains(name));
    let free = free.unwrap_or(name);
    taken.insert(free.clone());
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(folded: &[&str]) -> String {
        rule_name(&folded.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_rule_is_named_after_its_nodes() {
        assert_eq!(name(&["gpu-*"]), "gpu");
        assert_eq!(name(&["pgmac*", "thinkpad01"]), "pgmac-and-thinkpad01");
        assert_eq!(name(&["cpu-*", "gpu-*", "x"]), "cpu-and-2-more");
        assert_eq!(name(&["*.east.example"]), "east.example");
        assert_eq!(name(&["gpu-*.east.example"]), "gpu");
    }

    #[test]
    fn names_of_rules_are_unique() {
        let mut taken = BTreeSet::new();
        let names: Vec<String> = ["gpu", "gpu", "gpu-2", "gpu"].map(|name| unique(name.to_owned(), &mut taken)).into();
        assert_eq!(names, ["gpu", "gpu-2", "gpu-2-2", "gpu-3"]);
    }
}
