//! The rules of a first policy: one for all labels and taints that the same nodes have.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::assigned::{Assigned, Value};
use super::names::FleetNames;
use super::{FirstRule, RuleGroups};
use crate::api::policy::{ConditionsSpec, MatchSpec, RuleSpec, TaintSpec};
use crate::keys::Field;

/// A rule, and the nodes that it matches.
pub(super) struct Rule {
    pub(super) spec: RuleSpec,
    pub(super) nodes: Vec<usize>,
    /// What it matches, if it does not match names.
    pub(super) groups: Option<RuleGroups>,
    /// Whether its names say nothing about nodes that join later.
    say_nothing: bool,
    /// Whether its names are too many.
    pub(super) is_unbounded: bool,
}

impl Rule {
    /// A rule that matches something else than names.
    pub(super) fn of_groups(spec: RuleSpec, nodes: Vec<usize>, groups: RuleGroups) -> Self {
        Self { spec, nodes, groups: Some(groups), say_nothing: false, is_unbounded: false }
    }

    pub(super) fn first(self) -> FirstRule {
        FirstRule { nodes: self.nodes.len(), rule: self.spec, groups: self.groups }
    }

    /// The keys that it gives.
    pub(super) fn keys(&self) -> impl Iterator<Item = (Field, &str)> {
        let labels = self.spec.labels.keys().map(|key| (Field::Label, key.as_str()));
        labels.chain(self.spec.taints.iter().map(|taint| (Field::Taint, taint.key.as_str())))
    }
}

/// Whether the names of most nodes that these rules match say nothing about nodes that join later.
pub(super) fn say_nothing(rules: &[Rule]) -> bool {
    let nodes = |of: &dyn Fn(&&Rule) -> bool| rules.iter().filter(of).map(|rule| rule.nodes.len()).sum::<usize>();
    nodes(&|rule| rule.say_nothing) > nodes(&|rule| !rule.say_nothing)
}

/// The rules by names, those that match the most nodes first.
pub(super) fn rules(names: &FleetNames<'_>, assigned: &Assigned<'_>) -> Vec<Rule> {
    let mut by_nodes: BTreeMap<&[usize], Vec<&Value<'_>>> = BTreeMap::new();
    for (value, nodes) in assigned {
        by_nodes.entry(nodes).or_default().push(value);
    }
    let mut groups: Vec<(&[usize], Vec<&Value<'_>>)> = by_nodes.into_iter().collect();
    groups.sort_by_key(|(nodes, _)| (Reverse(nodes.len()), *nodes));
    let mut taken = BTreeSet::new();
    let rule = |(nodes, values): (&[usize], Vec<&Value<'_>>)| {
        let folded = names.fold(nodes);
        let name = unique(rule_name(&folded.names), &mut taken);
        let (say_nothing, is_unbounded) = (folded.say_nothing(), folded.is_unbounded());
        let conditions = ConditionsSpec { names: Some(folded.names), ..ConditionsSpec::default() };
        Rule { spec: spec(name, conditions, &values), nodes: nodes.to_vec(), groups: None, say_nothing, is_unbounded }
    };
    groups.into_iter().map(rule).collect()
}

/// The rule that gives these values where these conditions hold.
pub(super) fn spec(name: String, conditions: ConditionsSpec, values: &[&Value<'_>]) -> RuleSpec {
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
pub(super) fn rule_name(folded: &[String]) -> String {
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
pub(crate) fn unique(name: String, taken: &mut BTreeSet<String>) -> String {
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
