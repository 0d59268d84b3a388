//! What of a node is saved across its deletion: persisted labels and taints, as the node has them, within bounds.

use std::collections::{BTreeMap, BTreeSet};

use super::Keeper;
use crate::api::names::TaintId;
use crate::api::state::SavedTaint;
use crate::policy::claims::Claim;
use crate::policy::decision::Strength;
use crate::policy::never_persisted;
use crate::policy::tri::Tri;

/// Most labels that are saved of one node. Keys and values are short by Kubernetes' rules: some 200 KB at the most.
pub const SAVED_LABELS_MAX: usize = 512;
/// Most taints that are saved of one node.
pub const SAVED_TAINTS_MAX: usize = 64;

/// Persisted keys as they are to be recorded.
#[derive(Clone, Debug, Default)]
pub(super) struct Captured {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) taints: Vec<SavedTaint>,
    /// How many there are beyond the bounds.
    pub(super) left_out: usize,
}

impl Captured {
    /// Keeps as much as may be saved: what was saved before comes first, so that nobody can displace it by adding more,
    /// then the rest in the order of the keys.
    fn bound(&mut self, labels_before: &BTreeMap<String, String>, taints_before: &[SavedTaint]) {
        let before = self.labels.len() + self.taints.len();
        if self.labels.len() > SAVED_LABELS_MAX {
            let (known, new): (BTreeMap<_, _>, BTreeMap<_, _>) =
                std::mem::take(&mut self.labels).into_iter().partition(|(key, _)| labels_before.contains_key(key));
            self.labels = known.into_iter().chain(new).take(SAVED_LABELS_MAX).collect();
        }
        if self.taints.len() > SAVED_TAINTS_MAX {
            let was = |taint: &SavedTaint| {
                taints_before.iter().any(|known| (&known.key, &known.effect) == (&taint.key, &taint.effect))
            };
            self.taints.sort_by_cached_key(|taint| !was(taint));
            self.taints.truncate(SAVED_TAINTS_MAX);
            self.taints.sort_unstable();
        }
        self.left_out = before - self.labels.len() - self.taints.len();
    }
}

impl Keeper<'_> {
    /// What of the node's keys is persisted, as the node has them.
    pub(super) fn captured(&mut self) -> Captured {
        let (node, saved) = (self.living.node, self.living.saved);
        let mut captured = Captured::default();
        let mut unknown = Vec::new();
        let mut known = Vec::new();
        for rule in self.set.persisting_rules() {
            match rule.matcher.evaluate(&self.evaluation.view) {
                Tri::True => known.extend(rule.gives.saved.as_ref()),
                Tri::Unknown => unknown.extend(rule.gives.saved.as_ref()),
                Tri::False => {}
            }
        }
        self.evaluation.view.take_failures();
        let decision = &self.split.decision;
        let enforced = |key: &str| decision.labels.get(key).is_some_and(|d| d.strength == Strength::Enforced);
        let label = |key: &str| !enforced(key) && never_persisted::label(key).is_none();
        // While a node's labels are being restored, what is saved and not there yet is kept.
        let restoring = |key: &str| decision.labels.get(key).is_some_and(|d| d.strength == Strength::Saved);
        for (key, value) in node.labels().filter(|(key, _)| label(key) && self.suspects.binary_search(key).is_err()) {
            if known.iter().any(|persist| persist.labels.contains(key)) && !restoring(key) {
                let before = saved.labels.get(key).map(String::as_str);
                // A kubelet that got past admission does not decide what comes back on the next machine.
                let value = if self.is_forged(key, value) { before } else { Some(value) };
                captured.labels.extend(value.map(|value| (key.to_owned(), value.to_owned())));
            }
        }
        for (key, value) in saved.labels.iter().filter(|(key, _)| label(key)) {
            if restoring(key) || unknown.iter().any(|persist| persist.labels.contains(key)) {
                captured.labels.insert(key.clone(), value.clone());
            }
        }
        let taint = |id: &TaintId| {
            let enforced = decision.taints.get(id).is_some_and(|d| d.strength == Strength::Enforced);
            !enforced && never_persisted::taint(id.key.as_str()).is_none() && !self.living.pending.contains(id)
        };
        let restoring = |id: &TaintId| decision.taints.get(id).is_some_and(|d| d.strength == Strength::Saved);
        let mut taints = BTreeSet::new();
        for fact in node.taints() {
            let saved = SavedTaint {
                key: fact.key.to_string(),
                value: fact.value().to_owned(),
                effect: fact.effect.to_string(),
            };
            let Ok(id) = saved.id() else { continue };
            if taint(&id) && !restoring(&id) && known.iter().any(|persist| persist.taints.contains(&saved.key)) {
                taints.insert(saved);
            }
        }
        for saved in &saved.taints {
            let Ok(id) = saved.id() else { continue };
            let kept = restoring(&id) || unknown.iter().any(|persist| persist.taints.contains(&saved.key));
            if taint(&id) && kept {
                taints.insert(saved.clone());
            }
        }
        captured.taints = taints.into_iter().collect();
        captured.bound(&saved.labels, &saved.taints);
        captured
    }

    /// Whether a persisted label has a value that its kubelet gave it on the living node, as far as it can be known.
    fn is_forged(&self, key: &str, value: &str) -> bool {
        let is_new = self.living.saved.labels.get(key).is_none_or(|saved| saved != value);
        !self.first_sight && is_new && self.living.claims.label_writer(key).is_some_and(Claim::is_kubelets)
    }
}
