//! The values that default rules give.

use std::collections::{BTreeMap, HashMap};

use crate::api::names::TaintEffect;
use crate::set::rule::{Rule, Strength};

/// Values, each with the rank of the weakest default rule that gives it.
type Values = BTreeMap<Box<str>, u32>;

/// The fixed values that default rules give, by key.
///
/// A default rule sees neither what it gives itself nor what weaker ones give to its keys ([`Rule::overlooks`]). After a write the
/// object has these values, and nothing tells them from those of others, so the rule does not see them there either. Otherwise a
/// second review of the same write would decide otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenByDefault {
    labels: HashMap<Box<str>, Values>,
    taints: HashMap<Box<str>, BTreeMap<TaintEffect, Values>>,
}

impl GivenByDefault {
    pub(crate) fn of(rules: &[Rule]) -> Self {
        let mut given = Self::default();
        for rule in rules.iter().filter(|rule| rule.strength == Strength::Default) {
            for (key, value) in &rule.assigns.labels {
                add(given.labels.entry(key.as_str().into()).or_default(), value.as_str(), rule.rank);
            }
            for taint in &rule.assigns.taints {
                let effects = given.taints.entry(taint.id.key.as_str().into()).or_default();
                add(effects.entry(taint.id.effect).or_default(), taint.value.as_str(), rule.rank);
            }
        }
        given
    }

    /// Whether a default rule does not see this value of a label on the object: it sets the label, and it or a weaker one may have
    /// given the value.
    pub(crate) fn hides_label(&self, rule: &Rule, key: &str, value: &str) -> bool {
        let of_label = || self.labels.get(key).is_some_and(|values| hides(values, rule, value));
        rule.writes_label(key) && of_label()
    }

    /// The values of a label that a default rule does not see on the object, sorted.
    pub(crate) fn hidden_labels<'g>(&'g self, rule: &'g Rule, key: &str) -> impl Iterator<Item = &'g str> {
        let values = self.labels.get(key).filter(|_| rule.writes_label(key));
        values.into_iter().flat_map(|values| hidden(values, rule))
    }

    /// As [`Self::hides_label`], of a taint.
    pub(crate) fn hides_taint(&self, rule: &Rule, key: &str, effect: TaintEffect, value: &str) -> bool {
        self.of_taint(rule, key, effect).is_some_and(|values| hides(values, rule, value))
    }

    /// As [`Self::hidden_labels`], of a taint.
    pub(crate) fn hidden_taints<'g>(
        &'g self,
        rule: &'g Rule,
        key: &str,
        effect: TaintEffect,
    ) -> impl Iterator<Item = &'g str> {
        self.of_taint(rule, key, effect).into_iter().flat_map(|values| hidden(values, rule))
    }

    fn of_taint(&self, rule: &Rule, key: &str, effect: TaintEffect) -> Option<&Values> {
        self.taints.get(key).filter(|_| rule.writes_taint(key, effect))?.get(&effect)
    }
}

fn add(values: &mut Values, value: &str, rank: u32) {
    let weakest = values.entry(value.into()).or_insert(rank);
    *weakest = rank.max(*weakest);
}

fn hides(values: &Values, rule: &Rule, value: &str) -> bool {
    rule.strength == Strength::Default && values.get(value).is_some_and(|weakest| *weakest >= rule.rank)
}

fn hidden<'g>(values: &'g Values, rule: &'g Rule) -> impl Iterator<Item = &'g str> {
    values.keys().map(|value| &**value).filter(|value| hides(values, rule, value))
}
