//! A rule of another program as nodegate can say it, and nodes that tell its conditions apart.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashSet;

use crate::api::names::is_dns_subdomain;
use crate::api::policy::{
    ConditionsSpec, MatchSpec, Operator, RequirementSpec, RuleMode, RuleSpec, SelectorSpec, TaintSpec,
};
use crate::keys::Field;
use crate::keys::overlap::may_overlap;
use crate::keys::pattern::is_glob;

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
        let number = value.filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
        let number = number.and_then(|value| value.parse::<i64>().ok());
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

    /// The values that it names.
    fn values(&self) -> &[String] {
        match self {
            Self::In(values) | Self::NotIn(values) => values,
            Self::Exists | Self::Absent | Self::Above(_) | Self::Below(_) => &[],
        }
    }

    /// The number with which it compares.
    pub(super) fn bound(&self) -> Option<i64> {
        match self {
            Self::Above(bound) | Self::Below(bound) => Some(*bound),
            Self::In(_) | Self::NotIn(_) | Self::Exists | Self::Absent => None,
        }
    }
}

impl Group {
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.labels.is_empty()
    }

    fn spec(&self) -> ConditionsSpec {
        let (mut selector, mut comparisons) = (SelectorSpec::default(), Vec::new());
        // Without these guards, a label that is absent or no number makes a comparison unknown, and nothing is removed.
        let mut compare = |key: &str, operator: char, bound: i64| {
            let label = format!("node.metadata.labels['{key}']");
            let guards = [format!("'{key}' in node.metadata.labels"), format!("{label}.matches('^[0-9]+$')")];
            if !comparisons.contains(&guards[0]) {
                comparisons.extend(guards);
            }
            comparisons.push(format!("int({label}) {operator} {bound}"));
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

/// Whether a name fits one of these.
fn has_name(names: &[String], name: &str) -> bool {
    names.iter().any(|one| if is_glob(one) { may_overlap(one, name) } else { one == name })
}

/// Whether certainly no name fits one of each list.
fn are_apart(one: &[String], other: &[String]) -> bool {
    let exact: HashSet<&str> = one.iter().map(String::as_str).filter(|name| !is_glob(name)).collect();
    !other.iter().any(|theirs| {
        let mut mine = one.iter().filter(|mine| is_glob(mine) || is_glob(theirs));
        exact.contains(theirs.as_str()) || mine.any(|mine| may_overlap(mine, theirs))
    })
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
    let lists: Vec<&Vec<String>> = groups.iter().map(|group| &group.names).filter(|names| !names.is_empty()).collect();
    let mut pairs = lists.iter().enumerate().flat_map(|(at, one)| lists[..at].iter().map(move |other| (one, other)));
    by_label || pairs.any(|(one, other)| are_apart(one, other))
}

/// The conditions of groups.
pub(super) fn conditions(groups: &[&Group]) -> Vec<Condition> {
    let of = |(number, group): (usize, &&Group)| {
        let names = (!group.names.is_empty()).then_some(Condition::Names(number));
        names.into_iter().chain((0..group.labels.len()).map(move |label| Condition::Label(number, label)))
    };
    groups.iter().enumerate().flat_map(of).collect()
}

/// A node for which all conditions of these groups hold but for one, if one is given; `None` if none is found, because few names
/// are tried.
pub(super) fn witness(groups: &[&Group], but: Option<Condition>) -> Option<Witness> {
    let mut names = OTHER_NAMES.map(str::to_owned).to_vec();
    // Where a name is almost too long, only nothing is in the place of `*`.
    let filled = |name: &String| [name.replace(['*', '?'], "1"), name.replace('*', "").replace('?', "1")];
    names.extend(groups.iter().flat_map(|group| &group.names).flat_map(filled));
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
    let named: Vec<&String> = tests.iter().flat_map(|(_, test)| test.values()).collect();
    // If any number beyond a bound fits, so does one of the nearest, because only those that are named may not.
    let near = |bound: i64| {
        let steps = (0..).take(named.len() + 2);
        let numbers = steps.flat_map(move |step| [bound.checked_add(step), bound.checked_sub(step)]);
        numbers.flatten().filter(|number| *number >= 0).map(|number| number.to_string())
    };
    let numbers = tests.iter().filter_map(|(_, test)| test.bound()).flat_map(|bound| near(bound.max(0)));
    let other = std::iter::once(OTHER.to_owned()).chain((1..).map(|n| format!("{OTHER}-{n}")));
    let other = other.into_iter().find(|one| !named.contains(&one));
    let values = named.iter().map(|value| (*value).clone());
    let mut candidates: Vec<Option<String>> = values.chain(numbers).chain(other).map(Some).collect();
    // A node without the label is the simplest one that matches, and the last one that does not.
    candidates.insert(if but.is_none() { 0 } else { candidates.len() }, None);
    let fits = |value: &Option<String>| {
        tests.iter().all(|(condition, test)| test.holds(value.as_deref()) != (but == Some(*condition)))
    };
    candidates.into_iter().find(fits)
}
