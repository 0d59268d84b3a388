//! Rules for groups of nodes: those with a value of a label, or those of a pool.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::assigned::{Assigned, LeftOuts, Value};
use super::choices::{self, Choice, GROUP_KEYS};
use super::platforms::{self, Platform};
use super::rules::{Rule, rule_name, spec, unique};
use super::{FleetNode, RuleGroups, values};
use crate::api::policy::{ConditionsSpec, Operator, RequirementSpec, SelectorSpec};
use crate::keys::Field;
use crate::keys::restriction::is_restricted;

/// What groups have in common.
enum Basis {
    /// The keys of labels, in the order in which they decide.
    Labels(Vec<String>),
    Pools,
}

/// Nodes with one value of a label, or of one pool.
struct Group<'a> {
    /// The position of the label's key; 0 for pools.
    key: usize,
    name: &'a str,
    nodes: Vec<usize>,
}

/// The groups of a fleet. A node is in at most one.
pub(super) struct Groups<'a> {
    basis: Basis,
    groups: Vec<Group<'a>>,
}

/// The rules for groups.
pub(super) struct Grouped {
    pub(super) rules: Vec<Rule>,
    /// Groups without a rule.
    pub(super) withheld: Vec<RuleGroups>,
}

/// What a rule gives, and what it does not give although its nodes have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Content<'v, 'a> {
    given: Vec<&'v Value<'a>>,
    withheld: Vec<&'v Value<'a>>,
}

impl<'a> Groups<'a> {
    /// The groups by the first of these labels that a node has.
    pub(super) fn by_labels(fleet: &[&'a FleetNode], keys: &[String]) -> Self {
        let of = |node: &'a FleetNode| {
            // A key with a value that no policy can name decides too: the node is in no group.
            let key = keys.iter().position(|key| node.labels.contains_key(key))?;
            Some((key, choices::group_of(node, &keys[key])?))
        };
        Self { basis: Basis::Labels(keys.to_vec()), groups: Self::collect(fleet, of) }
    }

    /// The groups by those labels of node groups that nodes have, if they cover at least half of the nodes that carry a value.
    pub(super) fn by_node_groups(fleet: &[&'a FleetNode], assigned: &Assigned<'_>) -> Option<Self> {
        let carrying: BTreeSet<usize> = assigned.values().flatten().copied().collect();
        let mut left = carrying.clone();
        let mut keys = Vec::new();
        for key in GROUP_KEYS {
            let Choice { groups, nodes, .. } = choices::of_key(fleet, key);
            let before = left.len();
            if values::groups(groups, nodes) {
                left.retain(|node| choices::group_of(fleet[*node], key).is_none());
            }
            if left.len() < before {
                keys.push(key.to_owned());
            }
        }
        (!keys.is_empty() && left.len() * 2 <= carrying.len()).then(|| Self::by_labels(fleet, &keys))
    }

    /// The pools that the nodes show, if there are any.
    pub(super) fn by_pools(fleet: &[&'a FleetNode]) -> Option<Self> {
        let groups = Self::collect(fleet, |node| platforms::pool_of(node).map(|(_, pool)| (0, pool)));
        (!groups.is_empty()).then_some(Self { basis: Basis::Pools, groups })
    }

    fn collect(fleet: &[&'a FleetNode], of: impl Fn(&'a FleetNode) -> Option<(usize, &'a str)>) -> Vec<Group<'a>> {
        let mut groups: BTreeMap<(usize, &str), Vec<usize>> = BTreeMap::new();
        for (at, node) in fleet.iter().copied().enumerate() {
            if let Some(group) = of(node) {
                groups.entry(group).or_default().push(at);
            }
        }
        groups.into_iter().map(|((key, name), nodes)| Group { key, name, nodes }).collect()
    }

    /// The groups with what people call them.
    pub(super) fn named(&self) -> Vec<(String, Vec<usize>)> {
        self.groups.iter().map(|group| (self.name(group).to_owned(), group.nodes.clone())).collect()
    }

    /// The platforms of the pools.
    pub(super) fn platforms(&self, fleet: &[&FleetNode]) -> Vec<Platform> {
        let pools =
            matches!(self.basis, Basis::Pools).then(|| fleet.iter().filter_map(|node| platforms::pool_of(node)));
        let platforms: BTreeSet<Platform> = pools.into_iter().flatten().map(|(platform, _)| platform).collect();
        platforms.into_iter().collect()
    }

    /// The keys of the labels that the groups are made by, up to that of a group.
    pub(super) fn keys(&self, of: Option<&str>) -> &[String] {
        match &self.basis {
            Basis::Labels(keys) => {
                let end = keys.iter().position(|key| Some(key.as_str()) == of).map_or(keys.len(), |at| at + 1);
                &keys[..end]
            }
            Basis::Pools => &[],
        }
    }

    /// The name of a group; that of the label's key if the value is empty.
    fn name<'s>(&'s self, group: &Group<'s>) -> &'s str {
        match &self.basis {
            Basis::Labels(keys) if group.name.is_empty() => keys[group.key].rsplit('/').next().unwrap_or_default(),
            _ => group.name,
        }
    }

    /// The rules, those that match the most nodes first: one for all groups of a key whose nodes have the same.
    pub(super) fn rules(
        &self,
        fleet: &[&FleetNode],
        assigned: &Assigned<'_>,
        trust: bool,
        left_out: &mut LeftOuts,
    ) -> Grouped {
        let contents = self.contents(fleet, assigned, trust, left_out);
        let mut same: BTreeMap<(usize, &Content<'_, '_>), Vec<&Group<'_>>> = BTreeMap::new();
        for (group, content) in self.groups.iter().zip(&contents) {
            same.entry((group.key, content)).or_default().push(group);
        }
        let mut same: Vec<_> = same.into_iter().map(|((_, content), groups)| (content, groups)).collect();
        let nodes = |groups: &[&Group<'_>]| groups.iter().map(|group| group.nodes.len()).sum::<usize>();
        same.sort_by_key(|(_, groups)| (Reverse(nodes(groups)), groups[0].key, groups[0].name));
        let mut grouped = Grouped { rules: Vec::new(), withheld: Vec::new() };
        let mut taken = BTreeSet::new();
        for (content, groups) in same {
            let of = self.rule_groups(&groups, content);
            if content.given.is_empty() {
                grouped.withheld.extend(Some(of).filter(|of| !of.withheld.is_empty()));
                continue;
            }
            let names: Vec<String> = groups.iter().map(|group| self.name(group).to_owned()).collect();
            let name = unique(rule_name(&names), &mut taken);
            let mut rule = spec(name, self.conditions(&of), &content.given);
            let guarded = rule.labels.keys().any(|key| is_restricted(key));
            rule.trust_kubelet = (guarded && self.needs_trust(groups[0])).then_some(true);
            let mut nodes: Vec<usize> = groups.iter().flat_map(|group| group.nodes.iter().copied()).collect();
            nodes.sort_unstable();
            grouped.rules.push(Rule::of_groups(rule, nodes, of));
        }
        grouped
    }

    /// What each group has: what all its nodes have. The rest is left out.
    fn contents<'v, 'f>(
        &self,
        fleet: &[&FleetNode],
        assigned: &'v Assigned<'f>,
        trust: bool,
        left_out: &mut LeftOuts,
    ) -> Vec<Content<'v, 'f>> {
        let mut group_of: Vec<Option<usize>> = vec![None; fleet.len()];
        for (at, group) in self.groups.iter().enumerate() {
            group.nodes.iter().for_each(|node| group_of[*node] = Some(at));
        }
        let mut contents = vec![Content::default(); self.groups.len()];
        for (value, nodes) in assigned {
            let (field, key) = (value.field(), value.key());
            if field == Field::Label && self.keys(None).iter().any(|of| of == key) {
                left_out.add(field, key, "the rules match on it".to_owned(), nodes.iter().copied());
                continue;
            }
            let mut having: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
            for node in nodes {
                having.entry(group_of[*node]).or_default().push(*node);
            }
            for (group, nodes) in having {
                let Some((at, group)) = group.map(|at| (at, &self.groups[at])) else {
                    left_out.add(field, key, self.no_group(), nodes);
                    continue;
                };
                if nodes.len() < group.nodes.len() {
                    left_out.add(field, key, "not all nodes of its group have it".to_owned(), nodes);
                } else if field == Field::Label && is_restricted(key) && !trust && self.needs_trust(group) {
                    let reason = "kubelets may not set it, but they choose the label that the rules match on; use --trust-kubelet or --by pool";
                    left_out.add(field, key, reason.to_owned(), nodes);
                    contents[at].withheld.push(value);
                } else {
                    contents[at].given.push(value);
                }
            }
        }
        contents
    }

    fn no_group(&self) -> String {
        match &self.basis {
            Basis::Labels(keys) => format!("the node is in no group: it has no label {}", keys.join(" or ")),
            Basis::Pools => "the node does not show its pool".to_owned(),
        }
    }

    /// Whether kubelets choose if a rule for this group matches.
    fn needs_trust(&self, group: &Group<'_>) -> bool {
        match &self.basis {
            Basis::Labels(keys) => keys[..=group.key].iter().any(|key| !is_restricted(key)),
            Basis::Pools => false,
        }
    }

    fn rule_groups(&self, groups: &[&Group<'_>], content: &Content<'_, '_>) -> RuleGroups {
        let key = match &self.basis {
            Basis::Labels(keys) => Some(keys[groups[0].key].clone()),
            Basis::Pools => None,
        };
        let names = groups.iter().map(|group| group.name.to_owned()).collect();
        RuleGroups { key, names, withheld: content.withheld.iter().map(|value| value.text()).collect() }
    }

    /// What holds for the nodes of these groups, and for no node of another.
    fn conditions(&self, of: &RuleGroups) -> ConditionsSpec {
        let Some(key) = &of.key else {
            return ConditionsSpec { pools: Some(of.names.clone()), ..ConditionsSpec::default() };
        };
        let mut selector = SelectorSpec::default();
        let before = self.keys(Some(key)).iter().filter(|other| *other != key);
        let requirement = |key: &String, operator, values| RequirementSpec { key: key.clone(), operator, values };
        selector.match_expressions.extend(before.map(|key| requirement(key, Operator::DoesNotExist, Vec::new())));
        match of.names.as_slice() {
            [only] => drop(selector.match_labels.insert(key.clone(), only.clone())),
            several => selector.match_expressions.push(requirement(key, Operator::In, several.to_vec())),
        }
        ConditionsSpec { selector: Some(selector), ..ConditionsSpec::default() }
    }
}
