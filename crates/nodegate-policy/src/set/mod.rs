//! The compiled policies: immutable, shared, swapped as a whole.

pub(crate) mod defaults;
pub(crate) mod gates;
pub(crate) mod governance;
pub(crate) mod index;
pub(crate) mod inventory;
pub(crate) mod kleene;
pub(crate) mod matcher;
pub(crate) mod migration;
pub(crate) mod node_info;
pub(crate) mod pools;
pub(crate) mod rule;
pub(crate) mod uses;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::api::document::PolicyDocument;
use crate::api::names::LabelKey;
use crate::api::policy::{MigrationPhase, NodePolicySpec, PersistScope};
use crate::api::presets::document_name;
use crate::cel::{Paths, ReadPaths, SharedPaths};
use crate::facts::publishers::Publisher;
use crate::keys::pattern::KeySet;
use crate::keys::restriction::is_restricted;
use crate::keys::{Field, programs};
use crate::set::defaults::GivenByDefault;
use crate::set::gates::{AwaitedLabel, Gate, GateLabels};
use crate::set::governance::Governance;
use crate::set::index::{NameIndex, RuleFinder, RuleIndex};
use crate::set::inventory::Inventory;
use crate::set::matcher::NameGroup;
use crate::set::migration::{Migration, MigrationInForce};
use crate::set::pools::Pools;
use crate::set::rule::{Rule, RuleId, Saved, Strength};

/// How long saved state is kept after its node is deleted, if a persist section does not say it.
pub(crate) const DEFAULT_RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);

/// All policies in force, compiled. Deciding and judging read it and nothing else. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PolicySet {
    parts: Arc<SetParts>,
    has_expressions: bool,
    reads_devices: bool,
    node_paths: SharedPaths,
    object_paths: SharedPaths,
    stored_paths: Arc<Paths>,
    persisting: Vec<RuleIndex>,
    migrating: Vec<RuleIndex>,
    inventories: Vec<RuleIndex>,
    given_by_default: Arc<GivenByDefault>,
    given_of_publishers: Arc<KeySet>,
}

/// The parts of a set.
#[derive(Debug, Default)]
pub(crate) struct SetParts {
    /// In the order of evaluation.
    pub(crate) rules: Vec<Rule>,
    pub(crate) finder: RuleFinder,
    pub(crate) names: NameIndex,
    pub(crate) protected: KeySet,
    pub(crate) governance: Governance,
    pub(crate) pools: Pools,
    pub(crate) gates: Vec<Gate>,
    /// The documents that it was compiled from, including presets, sorted by name.
    pub(crate) documents: Vec<PolicyDocument>,
}

/// The labels of publishers that rules may give. What a record gives back is none of them, and a migration gives none while their
/// publisher is away.
fn given_of_publishers(rules: &[Rule]) -> KeySet {
    let mut given = KeySet::default();
    let gives = |rule: &&Rule| rule.strength != Strength::Saved && rule.assigns.migration.is_none();
    for rule in rules.iter().filter(gives) {
        for key in rule.written_labels().filter(|key| Publisher::of(key.as_str()).is_some()) {
            given.insert(key);
        }
        rule.written_label_sets().for_each(|keys| given.extend(keys));
    }
    given
}

impl PolicySet {
    pub(crate) fn from_parts(parts: SetParts) -> Self {
        let of_gates = || parts.gates.iter().flat_map(|gate| gate.matcher.expressions());
        let has_expressions = parts.rules.iter().any(|rule| rule.expressions().next().is_some())
            || of_gates().next().is_some()
            || parts.governance.has_expressions();
        let persisting =
            (0..).zip(&parts.rules).filter(|(_, rule)| rule.assigns.saved.is_some()).map(|(index, _)| index);
        let persisting = persisting.collect();
        let migrating = (0..).zip(&parts.rules).filter(|(_, rule)| rule.assigns.migration.is_some());
        let migrating = migrating.map(|(index, _)| index).collect();
        let mut inventories: Vec<RuleIndex> =
            (0..).zip(&parts.rules).filter(|(_, rule)| rule.assigns.inventory.is_some()).map(|(at, _)| at).collect();
        inventories.sort_by_key(|at| parts.rules[*at as usize].rank);
        let expressions = parts.rules.iter().flat_map(Rule::expressions).chain(of_gates());
        let expressions = expressions.chain(parts.governance.expressions());
        let read: Vec<&ReadPaths> = expressions.map(|expression| expression.paths()).collect();
        let node_paths = SharedPaths::of(&read.iter().map(|paths| &paths.node).collect::<Vec<_>>());
        let object_paths = SharedPaths::of(&read.iter().map(|paths| &paths.written).collect::<Vec<_>>());
        let reads_devices = read.iter().any(|paths| paths.devices != Paths::default());
        let mut stored_paths = Paths::default();
        // `written` has what is read of `object` and `oldObject`.
        for ReadPaths { node, written, object: _, old_object: _, request: _, devices: _, item: _, key: _ } in read {
            [node, written].into_iter().for_each(|paths| stored_paths.merge(paths));
        }
        let given_by_default = Arc::new(GivenByDefault::of(&parts.rules));
        let given_of_publishers = Arc::new(given_of_publishers(&parts.rules));
        Self {
            parts: Arc::new(parts),
            has_expressions,
            reads_devices,
            node_paths,
            object_paths,
            stored_paths: Arc::new(stored_paths),
            persisting,
            migrating,
            inventories,
            given_by_default,
            given_of_publishers,
        }
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

    /// The pools.
    pub(crate) fn pools(&self) -> &Pools {
        &self.parts.pools
    }

    /// Whether policies name pools, so that what a node gets, and what is allowed on it, may depend on its record.
    pub fn has_pools(&self) -> bool {
        !self.pools().is_empty()
    }

    /// The labels that gates wait for, and that programs on the nodes themselves publish.
    pub fn awaited_of_publishers(&self) -> Vec<AwaitedLabel> {
        self.gates().iter().flat_map(Gate::published_on_nodes).collect()
    }

    /// The longest that a gate makes a node wait after its creation; `None` without gates.
    pub fn longest_gate(&self) -> Option<Duration> {
        self.gates().iter().map(|gate| gate.timeout).max()
    }

    /// What nodes wait for, in the order of the documents.
    pub fn gate_labels(&self) -> impl Iterator<Item = GateLabels<'_>> {
        self.gates().iter().map(|Gate { id, labels, is_topology, .. }| GateLabels {
            id,
            labels,
            is_topology: *is_topology,
        })
    }

    /// The gates, also those of topologies, in the order of the documents.
    pub(crate) fn gates(&self) -> &[Gate] {
        &self.parts.gates
    }

    /// The labels that a kubelet may not set on its own node.
    pub(crate) fn protected(&self) -> &KeySet {
        &self.parts.protected
    }

    pub(crate) fn governance(&self) -> &Governance {
        &self.parts.governance
    }

    /// Whether a kubelet may not set this label on its own node.
    pub fn is_protected(&self, key: &str) -> bool {
        self.parts.protected.contains(key)
    }

    /// The same, or the API server refuses it to kubelets anyway. Only what a field manager claims of other keys can be
    /// believed: a kubelet can write any claim into its node, and remove any.
    pub(crate) fn is_beyond_kubelets(&self, key: &str) -> bool {
        self.is_protected(key) || is_restricted(key)
    }

    /// The values that default rules give.
    pub(crate) fn given_by_default(&self) -> &GivenByDefault {
        &self.given_by_default
    }

    /// Whether a label says nothing about the publisher that it is of, because a rule may give it as well: nothing on the object
    /// tells which of them did. A rule whose label map or inventory may give all keys does not count, because no publisher could be
    /// told then.
    pub(crate) fn gives_publishers(&self, key: &str) -> bool {
        self.given_of_publishers.names(key)
    }

    /// The paths that expressions read of `node`.
    pub(crate) fn node_paths(&self) -> &SharedPaths {
        &self.node_paths
    }

    /// What expressions may read of a stored node. Facts need a few parts as well ([`needed_by_facts`](crate::needed_by_facts)).
    pub fn stored_paths(&self) -> &Arc<Paths> {
        &self.stored_paths
    }

    /// The paths that expressions read of `object` and `oldObject`. Expressions over `object` are also evaluated for the
    /// node before a write.
    pub(crate) fn object_paths(&self) -> &SharedPaths {
        &self.object_paths
    }

    /// Whether deciding or judging may evaluate CEL. Such sets may need their own thread.
    pub fn has_expressions(&self) -> bool {
        self.has_expressions
    }

    /// All rules, in the order of evaluation.
    pub(crate) fn rules(&self) -> &[Rule] {
        &self.parts.rules
    }

    /// The persist sections.
    pub(crate) fn persisting_rules(&self) -> impl Iterator<Item = &Rule> {
        self.persisting.iter().map(|index| self.rule(*index))
    }

    /// The persist sections of this scope, with what each saves.
    pub(crate) fn saving_rules(&self, scope: PersistScope) -> impl Iterator<Item = (RuleIndex, &Rule, &Saved)> {
        let rules = self.persisting.iter().map(|index| (*index, self.rule(*index)));
        let rules = rules.filter_map(|(index, rule)| Some((index, rule, rule.assigns.saved.as_deref()?)));
        rules.filter(move |(_, _, saved)| saved.scope == scope)
    }

    /// Whether a persist section is about pools.
    pub fn pools_remember(&self) -> bool {
        self.saving_rules(PersistScope::Pool).next().is_some()
    }

    /// The rules of migrations, with the migration of each.
    pub(crate) fn migrating_rules(&self) -> impl Iterator<Item = (&Rule, &Migration)> {
        let rules = self.migrating.iter().map(|index| self.rule(*index));
        rules.filter_map(|rule| Some((rule, rule.assigns.migration.as_ref()?)))
    }

    /// The migrations, sorted by their old keys.
    pub fn migrations(&self) -> Vec<MigrationInForce<'_>> {
        let all = self.migrating_rules().map(|(rule, migration)| MigrationInForce {
            policy: &rule.id.policy,
            from: migration.from.as_str(),
            to: migration.to.as_str(),
            phase: migration.phase,
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|migration| migration.from);
        all
    }

    /// The migration whose old key this is, if it is cut over: then nobody may set the key.
    pub(crate) fn replaced(&self, key: &str) -> Option<(&Rule, &Migration)> {
        self.migrating_rules().find(|(_, migration)| migration.is_cut_over() && migration.from.as_str() == key)
    }

    /// The migration whose new key this is, if it is cut over.
    pub(crate) fn replacement(&self, key: &str) -> Option<&Migration> {
        let mut all = self.migrating_rules().map(|(_, migration)| migration);
        all.find(|migration| migration.is_cut_over() && migration.to.as_str() == key)
    }

    /// The migration whose old or new key this is, and its other key.
    pub(crate) fn moved(&self, key: &str) -> Option<(&Migration, &LabelKey)> {
        self.migrating_rules().find_map(|(_, migration)| Some((migration, migration.other(key)?)))
    }

    /// Whether this is the old key of a migration in the phase `dualWrite`: the key that counts.
    pub(crate) fn counts_still(&self, key: &str) -> bool {
        self.migrating_rules().any(|(_, migration)| !migration.is_cut_over() && migration.from.as_str() == key)
    }

    /// Whether this is the old key of a migration that is done: then no node keeps it.
    pub(crate) fn is_retired(&self, key: &str) -> bool {
        self.replaced(key).is_some_and(|(_, migration)| migration.phase == MigrationPhase::Done)
    }

    /// The inventories, the one with the highest precedence first.
    pub fn inventories(&self) -> impl Iterator<Item = &Arc<Inventory>> {
        self.inventories.iter().filter_map(|index| self.rule(*index).assigns.inventory.as_ref())
    }

    /// Whether a persist section names this label, whichever nodes it matches.
    pub(crate) fn names_persisted(&self, key: &str) -> bool {
        let mut sections = self.persisting_rules().filter_map(|rule| rule.assigns.saved.as_ref());
        programs::never_persisted(Field::Label, key, None).is_none() && sections.any(|saved| saved.labels.contains(key))
    }

    /// Whether a persist section names a key, or a key of this domain (`domain/*`), by itself, by its domain or by `*`.
    pub(crate) fn names_persisted_pattern(&self, pattern: &str) -> bool {
        let mut sections = self.persisting_rules().filter_map(|rule| rule.assigns.saved.as_ref());
        sections.any(|saved| saved.labels.contains(pattern))
    }

    /// How long saved state is kept after its node is deleted: the maximum of all persist sections; `None` if there is none,
    /// because then nothing tells how long what an earlier one saved is of use.
    pub fn retention(&self) -> Option<Duration> {
        let saved = self.persisting_rules().filter_map(|rule| rule.assigns.saved.as_ref());
        saved.map(|saved| saved.retention.unwrap_or(DEFAULT_RETENTION)).max()
    }

    /// The persist sections, as `policy/rule`.
    pub fn persist_sections(&self) -> impl Iterator<Item = String> {
        self.persisting_rules().map(|rule| rule.id.to_string())
    }

    /// The persist sections without a retention, for which [`DEFAULT_RETENTION`] holds, as `policy/rule`.
    pub fn without_retention(&self) -> impl Iterator<Item = String> {
        let unset = |rule: &&Rule| rule.assigns.saved.as_ref().is_some_and(|saved| saved.retention.is_none());
        self.persisting_rules().filter(unset).map(|rule| rule.id.to_string())
    }

    /// The names of all policies, including presets, sorted.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.parts.documents.iter().map(|document| document.name.as_str())
    }

    /// The documents that it was compiled from, including presets, sorted by name.
    pub fn documents(&self) -> &[PolicyDocument] {
        &self.parts.documents
    }

    /// Policies with a section `protect`, `persist` or `topologies`, of their own or of a preset that they name, whose keys the guard has to
    /// know.
    pub fn guarding(&self) -> impl Iterator<Item = &str> {
        let names_keys = |document: &PolicyDocument| {
            let NodePolicySpec { protect, persist, topologies, .. } = &*document.spec;
            protect.is_some() || persist.is_some() || !topologies.is_empty()
        };
        let documents = &self.parts.documents;
        let is_with_keys =
            move |preset: &String| documents.iter().any(|of| of.name == document_name(preset) && names_keys(of));
        let guarding = documents
            .iter()
            .filter(move |document| names_keys(document) || document.spec.presets.iter().any(is_with_keys));
        guarding.map(|document| document.name.as_str())
    }

    /// The number of rules, including derived labels, persist sections and migrations.
    pub fn rule_count(&self) -> usize {
        self.parts.rules.len()
    }

    /// The number of governance entries of a policy. `protect` counts as one if it names keys.
    pub fn entry_count(&self, policy: &str) -> usize {
        self.parts.governance.ids().filter(|id| *id.policy == *policy).count()
    }

    /// Rules with `trustKubelet: true`, as `policy/rule`.
    pub fn trusting_rules(&self) -> impl Iterator<Item = String> {
        self.parts
            .rules
            .iter()
            .filter(|rule| rule.trust_kubelet && rule.assigns.saved.is_none())
            .map(|rule| rule.id.to_string())
    }

    /// Whether annotations other than nodegate's own are governed.
    pub fn governs_annotations(&self) -> bool {
        !self.entries_on_annotations().is_empty()
    }

    /// The governance entries that a change of annotations alone can violate, other than of nodegate's own, sorted.
    pub fn entries_on_annotations(&self) -> BTreeSet<&RuleId> {
        self.parts.governance.entries_on_annotations()
    }

    /// Users and service accounts that may override a policy.
    pub fn break_glass_people(&self) -> Vec<String> {
        self.parts.governance.break_glass_people()
    }

    /// Groups that may override a policy, for `render webhooks`.
    pub fn break_glass_groups(&self) -> Vec<String> {
        self.parts.governance.break_glass_groups()
    }
}
