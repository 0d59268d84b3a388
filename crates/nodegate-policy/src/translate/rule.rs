//! A rule of another program as nodegate can say it, and nodes that tell its conditions apart.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::names::is_dns_subdomain;
use crate::api::policy::{
    ConditionsSpec, MatchSpec, Operator, RequirementSpec, RuleMode, RuleSpec, SelectorSpec, TaintSpec,
};
use crate::keys::Field;
use crate::keys::compile_budget::CompileBudget;
use crate::keys::pattern::TextSet;

/// What has to hold for one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    /// A whole number above this one.
    Above(i64),
    /// A whole number below this one.
    Below(i64),
}

/// Conditions that all have to hold. Without names, every name does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    /// Names, with `*` and `?`.
    pub(super) names: Vec<String>,
    pub(super) labels: Vec<(String, Test)>,
}

/// What a rule sets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sets {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) taints: Vec<TaintSpec>,
    /// Whether keys that are there are left as they are.
    pub(super) only_absent: bool,
}

/// A rule whose meaning is the same in nodegate.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) all: Group,
    /// If there are any, one of them has to hold as well.
    pub(super) any: Vec<Group>,
    pub(super) sets: Sets,
}

/// A node as far as conditions see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
}

/// A condition of a list of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// The names of a group.
    Names(usize),
    /// A label of a group.
    Label(usize, usize),
}

/// Values that no rule is likely to name.
const OTHER: &str = "other";
const OTHER_NAMES: [&str; 3] = ["node-1", "other-node", "x"];

impl Test {
    pub(super) fn holds(&self, value: Option<&str>) -> bool {
        let number = value.and_then(|value| value.parse::<i64>().ok());
        let is_one_of = |values: &[String]| value.is_some_and(|value| values.iter().any(|one| one == value));
        match self {
            Self::In(values) => is_one_of(values),
            Self::NotIn(values) => !is_one_of(values),
            Self::Exists => value.is_some(),
            Self::Absent => value.is_none(),
            Self::Above(bound) => number.is_some_and(|number| number > *bound),
            Self::Below(bound) => number.is_some_and(|number| number < *bound),
        }
    }

    /// Whether it holds only if the label is there.
    pub(super) fn needs_label(&self) -> bool {
        !self.holds(None)
    }

    /// Values that may make it true or false.
    fn values(&self) -> Vec<String> {
        match self {
            Self::In(values) | Self::NotIn(values) => values.clone(),
            Self::Exists | Self::Absent => Vec::new(),
            Self::Above(bound) | Self::Below(bound) => [Some(*bound), bound.checked_add(1), bound.checked_sub(1)]
                .into_iter()
                .flatten()
                .map(|n| n.to_string())
                .collect(),
        }
    }
}

impl Group {
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.labels.is_empty()
    }

    fn spec(&self) -> ConditionsSpec {
        let (mut selector, mut comparisons) = (SelectorSpec::default(), Vec::new());
        // A label that is no number makes a comparison neither true nor false.
        let mut compare = |key: &str, operator: char, bound: i64| {
            let is_there = format!("'{key}' in node.metadata.labels");
            let guard = (!comparisons.contains(&is_there)).then_some(is_there);
            comparisons.extend(guard);
            comparisons.push(format!("int(node.metadata.labels['{key}']) {operator} {bound}"));
        };
        for (key, test) in &self.labels {
            let (operator, values) = match test {
                Test::In(values) if values.len() == 1 && !selector.match_labels.contains_key(key) => {
                    selector.match_labels.insert(key.clone(), values[0].clone());
                    continue;
                }
                Test::Above(bound) => {
                    compare(key, '>', *bound);
                    continue;
                }
                Test::Below(bound) => {
                    compare(key, '<', *bound);
                    continue;
                }
                Test::In(values) => (Operator::In, values.clone()),
                Test::NotIn(values) => (Operator::NotIn, values.clone()),
                Test::Exists => (Operator::Exists, Vec::new()),
                Test::Absent => (Operator::DoesNotExist, Vec::new()),
            };
            selector.match_expressions.push(RequirementSpec { key: key.clone(), operator, values });
        }
        let has_selector = selector != SelectorSpec::default();
        ConditionsSpec {
            names: Some(self.names.clone()).filter(|names| !names.is_empty()),
            selector: Some(selector).filter(|_| has_selector),
            expression: Some(comparisons.join(" && ")).filter(|text| !text.is_empty()),
            ..ConditionsSpec::default()
        }
    }

    fn holds(&self, node: &Witness) -> bool {
        let label = |(key, test): &(String, Test)| test.holds(node.labels.get(key).map(String::as_str));
        (self.names.is_empty() || has_name(&self.names, &node.name)) && self.labels.iter().all(label)
    }
}

fn has_name(names: &[String], name: &str) -> bool {
    TextSet::compile(names.iter().map(String::as_str), &CompileBudget::default(), |_, _| {}).contains(name)
}

impl Rule {
    pub(super) fn spec(&self) -> RuleSpec {
        let any_of = Some(self.any.iter().map(Group::spec).collect()).filter(|any: &Vec<_>| !any.is_empty());
        let conditions = self.all.spec();
        let has_match = conditions != ConditionsSpec::default() || any_of.is_some();
        RuleSpec {
            name: self.name.clone(),
            match_: Some(MatchSpec { conditions, any_of }).filter(|_| has_match),
            labels: self.sets.labels.clone(),
            annotations: self.sets.annotations.clone(),
            taints: self.sets.taints.clone(),
            mode: self.sets.only_absent.then_some(RuleMode::Default),
            ..RuleSpec::default()
        }
    }

    /// The labels that it reads.
    pub(super) fn reads(&self) -> impl Iterator<Item = (Field, String)> {
        let groups = std::iter::once(&self.all).chain(&self.any);
        groups.flat_map(|group| &group.labels).map(|(key, _)| (Field::Label, key.clone()))
    }

    pub(super) fn matches(&self, node: &Witness) -> bool {
        self.all.holds(node) && (self.any.is_empty() || self.any.iter().any(|group| group.holds(node)))
    }

    /// Whether certainly no node matches both.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        let ways = other.ways();
        self.ways().iter().all(|one| ways.iter().all(|other| exclude(&[one.as_slice(), other].concat())))
    }

    /// The ways to match: groups that hold together.
    pub(super) fn ways(&self) -> Vec<Vec<&Group>> {
        match self.any.is_empty() {
            true => vec![vec![&self.all]],
            false => self.any.iter().map(|group| vec![&self.all, group]).collect(),
        }
    }
}

/// Whether certainly no node fits all these groups.
fn exclude(groups: &[&Group]) -> bool {
    let tests = |key: &str| -> Vec<&Test> {
        let labels = groups.iter().flat_map(|group| &group.labels);
        labels.filter(|(of, _)| of == key).map(|(_, test)| test).collect()
    };
    let by_label = groups.iter().flat_map(|group| &group.labels).any(|(key, test)| match test {
        Test::In(values) => !values.iter().any(|value| tests(key).iter().all(|test| test.holds(Some(value)))),
        Test::Absent => !tests(key).iter().all(|test| test.holds(None)),
        _ => false,
    });
    let lists = || groups.iter().map(|group| &group.names).filter(|names| !names.is_empty());
    // Up to the first wildcard, a name has to begin with both.
    let apart = |one: &str, other: &str| {
        let begins = |name: &str| name.split(['*', '?']).next().unwrap_or_default().to_owned();
        match (one.contains(['*', '?']), other.contains(['*', '?'])) {
            (true, true) => !begins(one).starts_with(&begins(other)) && !begins(other).starts_with(&begins(one)),
            (true, false) => !has_name(&[one.to_owned()], other),
            (false, _) => !has_name(&[other.to_owned()], one),
        }
    };
    let are_apart =
        |one: &Vec<String>, other: &Vec<String>| one.iter().all(|one| other.iter().all(|other| apart(one, other)));
    by_label || lists().any(|one| lists().any(|other| are_apart(one, other)))
}

/// The conditions of groups.
pub(super) fn conditions(groups: &[&Group]) -> Vec<Condition> {
    let of = |(number, group): (usize, &&Group)| {
        let names = (!group.names.is_empty()).then_some(Condition::Names(number));
        names.into_iter().chain((0..group.labels.len()).map(move |label| Condition::Label(number, label)))
    };
    groups.iter().enumerate().flat_map(of).collect()
}

/// A node for which all conditions of these groups hold but for one, if one is given; `None` if there is none.
pub(super) fn witness(groups: &[&Group], but: Option<Condition>) -> Option<Witness> {
    let mut names = OTHER_NAMES.map(str::to_owned).to_vec();
    names.extend(groups.iter().flat_map(|group| &group.names).map(|name| name.replace(['*', '?'], "1")));
    let fits = |name: &&String| {
        let mut lists = groups.iter().enumerate().filter(|(_, group)| !group.names.is_empty());
        let as_wanted =
            |(number, group): (usize, &&Group)| has_name(&group.names, name) != (but == Some(Condition::Names(number)));
        is_dns_subdomain(name) && lists.all(as_wanted)
    };
    let name = names.iter().find(fits)?.clone();
    let mut labels = BTreeMap::new();
    let keys: BTreeSet<&str> = groups.iter().flat_map(|group| &group.labels).map(|(key, _)| key.as_str()).collect();
    for key in keys {
        if let Some(value) = value(groups, key, but)? {
            labels.insert(key.to_owned(), value);
        }
    }
    Some(Witness { name, labels })
}

/// A value, or the absence, of one label with which its conditions hold, but for one.
fn value(groups: &[&Group], key: &str, but: Option<Condition>) -> Option<Option<String>> {
    let of = |(number, group): (usize, &'_ &Group)| -> Vec<(Condition, Test)> {
        let tests = group.labels.iter().enumerate().filter(|(_, (of, _))| of == key);
        tests.map(|(label, (_, test))| (Condition::Label(number, label), test.clone())).collect()
    };
    let tests: Vec<(Condition, Test)> = groups.iter().enumerate().flat_map(of).collect();
    let values = tests.iter().flat_map(|(_, test)| test.values()).map(Some);
    let is_named = |other: &String| tests.iter().any(|(_, test)| test.values().contains(other));
    let other =
        std::iter::once(OTHER.to_owned()).chain((1..).map(|n| format!("{OTHER}-{n}"))).find(|one| !is_named(one));
    let mut candidates: Vec<Option<String>> = values.chain([other]).collect();
    // A node without the label is the simplest one that matches, and the last one that does not.
    candidates.insert(if but.is_none() { 0 } else { candidates.len() }, None);
    let fits = |value: &Option<String>| {
        tests.iter().all(|(condition, test)| test.holds(value.as_deref()) != (but == Some(*condition)))
    };
    candidates.into_iter().find(fits)
}
