//! The labels and taints to save for a node: the persisted ones, as the node has them, within limits.

use std::collections::{BTreeMap, BTreeSet};

use super::Planner;
use crate::api::names::TaintId;
use crate::api::policy::PersistScope;
use crate::api::state::{SavedState, SavedTaint, TextMap};
use crate::decide::decision::Decision;
use crate::facts::managed_fields::Claim;
use crate::facts::pool_memory::PoolShare;
use crate::keys::{Field, programs};
use crate::set::kleene::Kleene;
use crate::set::rule::Strength;

/// Maximum number of labels that are saved for one node. Kubernetes limits keys and values, so they take up to 200 KB.
pub const SAVED_LABELS_MAX: usize = 512;
/// Maximum number of taints that are saved for one node.
pub const SAVED_TAINTS_MAX: usize = 64;

/// Persisted keys to record.
#[derive(Clone, Debug, Default)]
pub(super) struct Captured {
    pub(super) labels: TextMap,
    pub(super) taints: Vec<SavedTaint>,
    /// The number of keys beyond the limits.
    pub(super) left_out: usize,
}

impl Captured {
    /// Applies the limits: keys that were saved before take precedence, so that new keys cannot displace them, then the
    /// others in the order of the keys. What is beyond them becomes no shared text.
    fn within_limits(labels: BTreeMap<&str, &str>, taints: BTreeSet<SavedTaint>, before: &SavedState) -> Self {
        let all = labels.len() + taints.len();
        let (known, new): (Vec<_>, Vec<_>) = labels.into_iter().partition(|(key, _)| before.labels.contains_key(key));
        let labels: TextMap = known.into_iter().chain(new).take(SAVED_LABELS_MAX).collect();
        let was = |taint: &SavedTaint| {
            before.taints.iter().any(|known| (&known.key, &known.effect) == (&taint.key, &taint.effect))
        };
        let mut taints: Vec<SavedTaint> = taints.into_iter().collect();
        taints.sort_by_cached_key(|taint| !was(taint));
        taints.truncate(SAVED_TAINTS_MAX);
        taints.sort_unstable();
        Self { left_out: all - labels.len() - taints.len(), labels, taints }
    }
}

/// Whether a label is saved if a section names it: no rule keeps its value, and it is not a program's for this one machine.
fn is_saved(decision: &Decision, key: &str, value: &str) -> bool {
    let is_kept = decision.labels.get(key).is_some_and(|desired| desired.strength.is_kept());
    !is_kept && programs::never_persisted(Field::Label, key, Some(value)).is_none()
}

impl Planner<'_> {
    /// The node's persisted keys with their values.
    pub(super) fn captured(&mut self) -> Captured {
        let (node, saved) = (self.stored.node, self.stored.saved);
        let mut labels = BTreeMap::new();
        let mut unknown = Vec::new();
        let mut known = Vec::new();
        for (_, rule, saved) in self.set.saving_rules(PersistScope::Node) {
            match rule.matcher.evaluate(&self.evaluation.view) {
                Kleene::True => known.push(saved),
                Kleene::Unknown => unknown.push(saved),
                Kleene::False => {}
            }
        }
        self.evaluation.view.take_failures();
        let decision = &self.builder.decision;
        let label = |key: &str, value: &str| is_saved(decision, key, value);
        // While labels are being restored, saved ones that are not present yet are kept.
        let restoring = |key: &str| decision.labels.get(key).is_some_and(|d| d.strength == Strength::Saved);
        let captured_from_node = |(key, value): &(&str, &str)| {
            label(key, value) && self.suspects.binary_search(key).is_err() && !self.is_retired(key)
        };
        for (key, value) in node.labels().filter(captured_from_node) {
            if known.iter().any(|persist| persist.labels.contains(key)) && !restoring(key) {
                let before = saved.labels.get(key);
                // A kubelet that bypassed admission must not decide what is restored on the next machine.
                let value = if self.is_forged(key, value) { before } else { Some(value) };
                labels.extend(value.map(|value| (key, value)));
            }
        }
        for (key, value) in saved.labels.iter().filter(|(key, value)| label(key, value)) {
            if restoring(key) || unknown.iter().any(|persist| persist.labels.contains(key)) {
                labels.insert(key, value);
            }
        }
        let taint = |id: &TaintId, value: &str| {
            let enforced = decision.taints.get(id).is_some_and(|d| d.strength == Strength::Enforced);
            let never = programs::never_persisted(Field::Taint, id.key.as_str(), Some(value));
            !enforced && never.is_none() && !self.stored.pending.all().contains(id)
        };
        let restoring = |id: &TaintId| decision.taints.get(id).is_some_and(|d| d.strength == Strength::Saved);
        let mut taints = BTreeSet::new();
        for fact in node.taints() {
            let (Ok(key), Some(effect)) = (fact.key.parse(), fact.effect()) else { continue };
            let id = TaintId { key, effect };
            if taint(&id, fact.value())
                && !restoring(&id)
                && known.iter().any(|persist| persist.taints.contains(&fact.key))
            {
                taints.insert(SavedTaint::new(&id, fact.value()));
            }
        }
        for saved in &saved.taints {
            let Ok(id) = saved.id() else { continue };
            let kept = restoring(&id) || unknown.iter().any(|persist| persist.taints.contains(&saved.key));
            if taint(&id, &saved.value) && kept {
                taints.insert(saved.clone());
            }
        }
        Captured::within_limits(labels, taints, saved)
    }

    /// What a node that is recorded says about its pools; nothing while it is not known which sections match it. Labels that its kubelet
    /// has written do not count: whoever has one node must not decide for the pool. Where kubelets may not write a label, the value is
    /// not theirs, although one that sent it when it joined has the claim.
    pub(super) fn share(&mut self) -> Option<PoolShare> {
        if self.first_sight || !self.set.pools_remember() {
            return None;
        }
        let proven = &self.evaluation.view.pools().proven;
        let pools: Vec<String> = proven.iter().map(|(name, _)| (*name).to_owned()).collect();
        if pools.is_empty() {
            return None;
        }
        let mut sections = Vec::new();
        for (index, rule, saved) in self.set.saving_rules(PersistScope::Pool) {
            match rule.matcher.evaluate(&self.evaluation.view) {
                Kleene::True => sections.push((index, saved)),
                Kleene::False => {}
                Kleene::Unknown => {
                    self.evaluation.view.take_failures();
                    return None;
                }
            }
        }
        if sections.is_empty() {
            return None;
        }
        let counts = |(key, value): &(&str, &str)| {
            sections.iter().any(|(_, saved)| saved.labels.contains(key))
                && is_saved(&self.builder.decision, key, value)
                && !self.is_retired(key)
                && (self.set.is_beyond_kubelets(key)
                    || !self.stored.claims.label_writer(key).is_some_and(Claim::is_kubelets))
        };
        let labels = self.stored.node.labels().filter(counts).take(SAVED_LABELS_MAX);
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Some(PoolShare { pools, labels, sections: sections.into_iter().map(|(index, _)| index).collect() })
    }

    /// Whether the node's kubelet changed a persisted label after the node was created, as far as claims show it.
    fn is_forged(&self, key: &str, value: &str) -> bool {
        let is_new = self.stored.saved.labels.get(key).is_none_or(|saved| saved != value);
        !self.first_sight && is_new && self.stored.claims.label_writer(key).is_some_and(Claim::is_kubelets)
    }
}
