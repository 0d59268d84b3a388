//! What policies do with a label that is to move to another key.

use super::PolicySet;
use crate::keys::pattern::KeySet;
use crate::set::rule::{Rule, RuleId};

/// How a policy uses a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyUse {
    /// A condition or an expression reads it.
    Reads,
    /// A rule or an inventory may set it.
    Sets,
    /// It is saved.
    Persists,
    /// Governance is about it.
    Governs,
}

impl PolicySet {
    /// The rules and governance entries that name this label, sorted. Migrations are no users of their own keys.
    ///
    /// What is meant to be written for both keys of a migration is no use of the old one if it names the new key as well:
    /// persisted keys, and entries that do nothing on a node without the label.
    pub fn uses_of_label(&self, key: &str) -> Vec<(&RuleId, PolicyUse)> {
        let other = self.moved(key).map(|(_, other)| other.as_str());
        let rules = || self.parts.rules.iter().filter(|rule| rule.assigns.migration.is_none());
        let reads = rules().filter(|rule| rule.sources().any(|source| source.names_label(key))).map(|rule| &rule.id);
        let waits = self.parts.gates.iter().filter(|gate| gate.names_label(key)).map(|gate| &gate.id);
        let reads = reads.chain(self.parts.governance.readers_of_label(key)).chain(waits);
        let reads = reads.map(|id| (id, PolicyUse::Reads));
        let sets = rules().filter(|rule| may_set(rule, key)).map(|rule| (&rule.id, PolicyUse::Sets));
        let persists = self.persisting_rules().filter(|rule| self.persists_only(&rule.id, key, other));
        let persists = persists.map(|rule| (&rule.id, PolicyUse::Persists));
        let governs = self.parts.governance.about_label(key, other).into_iter().map(|id| (id, PolicyUse::Governs));
        let mut found: Vec<(&RuleId, PolicyUse)> = reads.chain(sets).chain(persists).chain(governs).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Whether a persist section, as written, names the key and not the other one.
    fn persists_only(&self, id: &RuleId, key: &str, other: Option<&str>) -> bool {
        let document = self.parts.documents.iter().find(|document| *document.name == *id.policy);
        let Some(persist) = document.and_then(|document| document.spec.persist.as_ref()) else { return false };
        let written = KeySet::compile(persist.labels.iter().map(String::as_str), |_, _| {});
        written.names(key) && !other.is_some_and(|other| written.contains(other))
    }
}

/// Whether a rule or an inventory sets the label, or names it among the keys that it may set.
fn may_set(rule: &Rule, key: &str) -> bool {
    let map = rule.assigns.label_map.as_deref().into_iter().map(|(keys, _)| keys);
    let mut named = map.chain(rule.assigns.inventory.iter().map(|inventory| &inventory.allow));
    rule.written_labels().any(|written| written.as_str() == key)
        || named.any(|keys| keys.written().any(|written| written == key))
}
