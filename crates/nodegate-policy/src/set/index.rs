//! Finds the rules that may match, so that the cost depends on matching rules and not on all of them.
//!
//! Every group of conditions is indexed under one condition that must hold: its names, else a label with a
//! value, else a label, else a taint. Groups without any of these are always evaluated.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new condition must be handled here")]

use std::collections::BTreeSet;

use foldhash::HashMap;
use globset::{GlobSet, GlobSetBuilder};

use crate::api::policy::Operator;
use crate::api::problem::Problem;
use crate::keys::compile_budget::CompileBudget;
use crate::keys::pattern::{glob, is_glob};
use crate::set::matcher::{Conditions, NameGroup, Source};
use crate::set::rule::Rule;

/// Position of a rule in the order of evaluation.
pub(crate) type RuleIndex = u32;

/// All node names and name globs of a set: exact ones and prefixes in hash maps, the rest in one automaton.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameIndex {
    exact: HashMap<Box<str>, Vec<NameGroup>>,
    /// `prefix*`, the most common glob: found by the prefixes of a name with the existing lengths.
    prefixes: HashMap<Box<str>, Vec<NameGroup>>,
    prefix_lengths: BTreeSet<usize>,
    globs: GlobSet,
    glob_groups: Vec<NameGroup>,
    /// The names of each group as written.
    written: Vec<Box<[Box<str>]>>,
}

/// A [`NameIndex`] under construction.
#[derive(Default)]
pub(crate) struct NameIndexBuilder {
    index: NameIndex,
    globs: Vec<globset::Glob>,
}

impl NameIndexBuilder {
    /// Adds a group of names. Calls `fault` with the index and a message for each invalid glob.
    pub(crate) fn add(
        &mut self,
        names: &[String],
        budget: &CompileBudget,
        mut fault: impl FnMut(usize, Problem),
    ) -> NameGroup {
        let group = NameGroup(u32::try_from(self.index.written.len()).unwrap_or(u32::MAX));
        self.index.written.push(names.iter().map(|name| name.as_str().into()).collect());
        for (at, name) in names.iter().enumerate() {
            if !is_glob(name) {
                self.index.exact.entry(name.as_str().into()).or_default().push(group);
                continue;
            }
            if let Some(prefix) = name.strip_suffix('*').filter(|prefix| !is_glob(prefix) && !prefix.contains('\\')) {
                self.index.prefixes.entry(prefix.into()).or_default().push(group);
                self.index.prefix_lengths.insert(prefix.len());
                continue;
            }
            if budget.is_exceeded() {
                break;
            }
            match glob(name, budget) {
                Ok(compiled) => {
                    self.globs.push(compiled);
                    self.index.glob_groups.push(group);
                }
                Err(message) => fault(at, message),
            }
        }
        group
    }

    /// The index.
    ///
    /// # Errors
    /// Returns an error if the globs are too large for one automaton.
    pub(crate) fn build(mut self) -> Result<NameIndex, globset::Error> {
        let mut builder = GlobSetBuilder::new();
        for glob in self.globs {
            builder.add(glob);
        }
        self.index.globs = builder.build()?;
        Ok(self.index)
    }
}

impl NameIndex {
    /// The names of a group as written.
    pub(crate) fn written(&self, group: NameGroup) -> impl Iterator<Item = &str> {
        self.written.get(group.0 as usize).into_iter().flatten().map(|name| &**name)
    }

    /// The groups that contain `name`, sorted.
    pub(crate) fn groups(&self, name: &str) -> Vec<NameGroup> {
        let mut groups: Vec<NameGroup> = self.exact.get(name).into_iter().flatten().copied().collect();
        for length in self.prefix_lengths.range(..=name.len()) {
            let found = name.get(..*length).and_then(|prefix| self.prefixes.get(prefix));
            groups.extend(found.into_iter().flatten());
        }
        if !self.globs.is_empty() {
            groups.extend(self.globs.matches(name).into_iter().map(|at| self.glob_groups[at]));
        }
        groups.sort_unstable();
        groups.dedup();
        groups
    }
}

/// Rules by the condition that they are indexed under.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleFinder {
    always: Vec<RuleIndex>,
    names: HashMap<NameGroup, Vec<RuleIndex>>,
    labels: HashMap<Box<str>, LabelAnchors>,
    taints: HashMap<Box<str>, Vec<RuleIndex>>,
}

#[derive(Clone, Debug, Default)]
struct LabelAnchors {
    present: Vec<RuleIndex>,
    values: HashMap<Box<str>, Vec<RuleIndex>>,
}

enum Anchor<'a> {
    Names(NameGroup),
    Label(&'a str, &'a [Box<str>]),
    Taints(Vec<&'a str>),
}

/// The condition to index a group under: the one that the fewest nodes satisfy, judging by its kind.
fn anchor(conditions: &Conditions) -> Option<Anchor<'_>> {
    let usable = conditions.iter().filter_map(|condition| match condition.source() {
        Source::Name(group) => Some((0, Anchor::Names(group))),
        Source::Label(requirement) => match requirement.operator {
            Operator::In => Some((1, Anchor::Label(&requirement.key, &requirement.values))),
            Operator::Exists => Some((2, Anchor::Label(&requirement.key, &[]))),
            Operator::NotIn | Operator::DoesNotExist => None,
        },
        Source::Taints(patterns) => Some((3, Anchor::Taints(patterns.iter().map(|pattern| &*pattern.key).collect()))),
        Source::Pools | Source::Reported(_) | Source::Gpu | Source::Expression(_) => None,
    });
    usable.min_by_key(|(rank, _)| *rank).map(|(_, anchor)| anchor)
}

impl RuleFinder {
    /// Indexes all rules; a rule's position in `rules` is its index.
    pub(crate) fn build(rules: &[Rule]) -> Self {
        let mut finder = Self::default();
        for (at, rule) in (0..).zip(rules) {
            match anchor(&rule.matcher.all) {
                Some(anchor) => finder.enter(at, anchor),
                None => finder.enter_alternatives(at, rule),
            }
        }
        finder
    }

    fn enter_alternatives(&mut self, at: RuleIndex, rule: &Rule) {
        let anchors: Option<Vec<Anchor<'_>>> =
            rule.matcher.any_of.as_ref().and_then(|alternatives| alternatives.iter().map(anchor).collect());
        match anchors {
            Some(anchors) => anchors.into_iter().for_each(|anchor| self.enter(at, anchor)),
            None => self.always.push(at),
        }
    }

    fn enter(&mut self, at: RuleIndex, anchor: Anchor<'_>) {
        match anchor {
            Anchor::Names(group) => self.names.entry(group).or_default().push(at),
            Anchor::Label(key, []) => self.labels.entry(key.into()).or_default().present.push(at),
            Anchor::Label(key, values) => {
                let anchors = self.labels.entry(key.into()).or_default();
                for value in values {
                    anchors.values.entry(value.clone()).or_default().push(at);
                }
            }
            Anchor::Taints(keys) => {
                for key in keys {
                    self.taints.entry(key.into()).or_default().push(at);
                }
            }
        }
    }

    /// Adds the rules that are evaluated for every node, and those of its name groups.
    pub(crate) fn for_names(&self, groups: &[NameGroup], found: &mut BTreeSet<RuleIndex>) {
        found.extend(&self.always);
        for group in groups {
            found.extend(self.names.get(group).into_iter().flatten());
        }
    }

    /// Adds the rules that are indexed under this label.
    pub(crate) fn for_label(&self, key: &str, value: &str, found: &mut BTreeSet<RuleIndex>) {
        if let Some(anchors) = self.labels.get(key) {
            found.extend(&anchors.present);
            found.extend(anchors.values.get(value).into_iter().flatten());
        }
    }

    /// Adds the rules that are indexed under this taint.
    pub(crate) fn for_taint(&self, key: &str, found: &mut BTreeSet<RuleIndex>) {
        found.extend(self.taints.get(key).into_iter().flatten());
    }
}
