//! The compiled policies: immutable, shared, swapped as a whole.

use std::time::Duration;

use super::cel::{ReadPaths, SharedPaths};
use super::document::PolicyDocument;
use super::governance::Governance;
use super::index::{NameIndex, RuleFinder, RuleIndex};
use super::matcher::NameGroup;
use super::never_persisted;
use super::pattern::KeySet;
use super::rule::Rule;

/// All policies in force, compiled. Deciding and judging read it and nothing else.
#[derive(Clone, Debug, Default)]
pub struct PolicySet {
    parts: SetParts,
    has_expressions: bool,
    node_paths: SharedPaths,
    object_paths: SharedPaths,
    persisting: Vec<RuleIndex>,
}

/// What a set is made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetParts {
    /// In the order of evaluation.
    pub(crate) rules: Vec<Rule>,
    pub(crate) finder: RuleFinder,
    pub(crate) names: NameIndex,
    pub(crate) protected: KeySet,
    pub(crate) governance: Governance,
    /// What it was compiled from, presets included, sorted by name.
    pub(crate) documents: Vec<PolicyDocument>,
    pub(crate) not_acted_on: Vec<String>,
}

impl PolicySet {
    pub(crate) fn from_parts(parts: SetParts) -> Self {
        let has_expressions =
            parts.rules.iter().any(|rule| rule.expressions().next().is_some()) || parts.governance.has_expressions();
        let persisting = (0..).zip(&parts.rules).filter(|(_, rule)| rule.gives.saved.is_some()).map(|(index, _)| index);
        let persisting = persisting.collect();
        let expressions = parts.rules.iter().flat_map(Rule::expressions).chain(parts.governance.expressions());
        let read: Vec<&ReadPaths> = expressions.map(|expression| expression.paths()).collect();
        let node_paths = SharedPaths::of(&read.iter().map(|paths| &paths.node).collect::<Vec<_>>());
        let object_paths = SharedPaths::of(&read.iter().map(|paths| &paths.written).collect::<Vec<_>>());
        Self { parts, has_expressions, node_paths, object_paths, persisting }
    }

    pub(crate) fn rule(&self, index: RuleIndex) -> &Rule {
        &self.parts.rules[index as usize]
    }

    pub(crate) fn finder(&self) -> &RuleFinder {
        &self.parts.finder
    }

    pub(crate) fn name_groups(&self, name: &str) -> Vec<NameGroup> {
        self.parts.names.groups(name)
    }

    /// The names of a group as written.
    pub(crate) fn names_of(&self, group: NameGroup) -> impl Iterator<Item = &str> {
        self.parts.names.written(group)
    }

    /// What a kubelet may not assert about its own node.
    pub(crate) fn protected(&self) -> &KeySet {
        &self.parts.protected
    }

    pub(crate) fn governance(&self) -> &Governance {
        &self.parts.governance
    }

    /// Whether a kubelet may not assert this label about its own node.
    pub fn is_protected(&self, key: &str) -> bool {
        self.parts.protected.contains(key)
    }

    /// What expressions read of `node`.
    pub(crate) fn node_paths(&self) -> &SharedPaths {
        &self.node_paths
    }

    /// What expressions read of `object` and `oldObject`: the node before a write is also asked about as if it were
    /// written now.
    pub(crate) fn object_paths(&self) -> &SharedPaths {
        &self.object_paths
    }

    /// Whether deciding or judging may evaluate CEL, which has no run-time cost limit: such sets are
    /// evaluated off the reactor.
    pub fn has_expressions(&self) -> bool {
        self.has_expressions
    }

    /// All rules, in the order of evaluation.
    pub(crate) fn rules(&self) -> &[Rule] {
        &self.parts.rules
    }

    /// Persist sections.
    pub(crate) fn persisting_rules(&self) -> impl Iterator<Item = &Rule> {
        self.persisting.iter().map(|index| self.rule(*index))
    }

    /// Whether a persist section names this label, whichever nodes it is about.
    pub(crate) fn names_persisted(&self, key: &str) -> bool {
        let mut sections = self.persisting_rules().filter_map(|rule| rule.gives.saved.as_ref());
        never_persisted::label(key).is_none() && sections.any(|saved| saved.labels.contains(key))
    }

    /// How long saved state outlives its node: the longest of all persist sections; for ever when `None`.
    pub fn retention(&self) -> Option<Duration> {
        let mut longest = Duration::ZERO;
        for saved in self.persisting_rules().filter_map(|rule| rule.gives.saved.as_ref()) {
            longest = longest.max(saved.retention?);
        }
        (longest > Duration::ZERO).then_some(longest)
    }

    /// The names of all policies, presets included, sorted.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.parts.documents.iter().map(|document| document.name.as_str())
    }

    /// The documents it was compiled from, presets included, sorted by name.
    pub fn documents(&self) -> &[PolicyDocument] {
        &self.parts.documents
    }

    /// How many rules there are, derived labels and persist sections included.
    pub fn rule_count(&self) -> usize {
        self.parts.rules.len()
    }

    /// Rules that give a restricted or protected key on the kubelet's word, as `policy/rule`.
    pub fn trusting_rules(&self) -> impl Iterator<Item = String> {
        self.parts
            .rules
            .iter()
            .filter(|rule| rule.trust_kubelet && rule.gives.saved.is_none())
            .map(|rule| rule.id.to_string())
    }

    /// Sections that parse and are checked but are not acted on yet, as `policy: section`.
    pub fn not_acted_on(&self) -> &[String] {
        &self.parts.not_acted_on
    }

    /// Whether annotations are governed, beside nodegate's own.
    pub fn governs_annotations(&self) -> bool {
        self.parts.governance.governs_annotations()
    }

    /// Users and service accounts that may break glass in some policy.
    pub fn break_glass_people(&self) -> Vec<String> {
        self.parts.governance.break_glass_people()
    }

    /// Groups that may break glass in some policy, for `render webhooks`.
    pub fn break_glass_groups(&self) -> Vec<String> {
        self.parts.governance.break_glass_groups()
    }
}
