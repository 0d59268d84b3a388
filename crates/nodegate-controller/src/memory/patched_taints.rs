//! Detects taints that were set by a webhook's patch, to tell nodegate's taints from those that people set.
//!
//! A taint has no claim of its own: a field manager that writes taints claims all of them, and nobody claims a
//! webhook's patch. So if a taint is present in one version of a node but not in the version before, and the claims
//! on taints are the same in both, a webhook's patch added it. If a version was missed, or claims are unknown,
//! nothing is concluded.

use std::collections::BTreeSet;

use crate::node::NodeObject;

/// The last known version of a node.
#[derive(Debug)]
struct Known {
    node: NodeObject,
    /// Taints that a patch added and that have not been recorded since.
    patched: BTreeSet<String>,
}

/// Taints of a node that a webhook's patch added and that are still present.
#[derive(Debug, Default)]
pub(crate) struct PatchedTaints(Option<Known>);

impl PatchedTaints {
    /// Records a version of the node, in the order of the watch.
    pub(crate) fn note(&mut self, node: &NodeObject) {
        let Some(taints) = taints_of(node) else { return };
        let patched = self.0.take().map_or_else(BTreeSet::new, |before| {
            let (claimed_before, claimed) = (before.node.claims().taints_claimed(), node.claims().taints_claimed());
            let same_claims = claimed_before.is_some() && claimed_before == claimed;
            let taints_before = taints_of(&before.node).unwrap_or_default();
            let new = taints.difference(&taints_before).filter(|_| same_claims).cloned();
            before.patched.intersection(&taints).cloned().chain(new).collect()
        });
        self.0 = Some(Known { node: node.clone(), patched });
    }

    /// The taints (`key:Effect`) that a patch added.
    pub(crate) fn patched(&self) -> BTreeSet<String> {
        self.0.as_ref().map(|known| known.patched.clone()).unwrap_or_default()
    }

    /// Marks a version of the node as recorded: each taint that it has is now either owned or foreign.
    pub(crate) fn recorded(&mut self, node: &NodeObject) {
        if let Some(known) = self.0.as_mut().filter(|known| known.node.resource_version() == node.resource_version()) {
            known.patched.clear();
        }
    }
}

/// The taints of a node; nothing if they cannot be read.
fn taints_of(node: &NodeObject) -> Option<BTreeSet<String>> {
    let text = node.text();
    let facts = text.facts().ok()?;
    Some(facts.taints().iter().map(|taint| format!("{}:{}", &*taint.key, &*taint.effect)).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(version: &str, taints: &[&str], managed_fields: Value) -> NodeObject {
        let taints: Vec<Value> = taints.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
        let text = json!({"metadata": {"name": "n1", "uid": "u1", "resourceVersion": version, "managedFields": managed_fields},
            "spec": {"taints": taints}});
        NodeObject::read(&text.to_string()).unwrap()
    }

    fn claimed(manager: &str, time: &str) -> Value {
        json!([{"manager": manager, "time": time, "fieldsV1": {"f:spec": {"f:taints": {}}}},
               {"manager": "labeller", "time": "2026-01-01T00:00:09Z", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}}])
    }

    fn patched(versions: &[NodeObject]) -> Vec<String> {
        let mut patched_taints = PatchedTaints::default();
        versions.iter().for_each(|node| patched_taints.note(node));
        patched_taints.patched().into_iter().collect()
    }

    #[test]
    fn a_taint_that_comes_without_a_new_claim_came_by_a_patch() {
        let before = || node("1", &["old"], claimed("kubectl", "2026-01-01T00:00:00Z"));
        let after = |claims| node("2", &["old", "new"], claims);
        assert_eq!(patched(&[before(), after(claimed("kubectl", "2026-01-01T00:00:00Z"))]), ["new:NoSchedule"]);
        assert!(
            patched(&[before(), after(claimed("kubectl", "2026-01-01T00:00:01Z"))]).is_empty(),
            "the claim is newer"
        );
        assert!(
            patched(&[before(), after(claimed("kubectl-taint", "2026-01-01T00:00:00Z"))]).is_empty(),
            "another manager claims it"
        );
        assert!(patched(&[before(), after(json!("unreadable"))]).is_empty(), "the claims are unknown");
        assert!(patched(&[after(json!([]))]).is_empty(), "it was present in the first version");
    }

    #[test]
    fn taints_that_were_recorded_or_removed_are_not_reported_again() {
        let (before, after) = (node("1", &[], json!([])), node("2", &["new"], json!([])));
        let mut patched_taints = PatchedTaints::default();
        patched_taints.note(&before);
        patched_taints.note(&after);
        patched_taints.recorded(&before);
        assert_eq!(patched_taints.patched().len(), 1, "another version was recorded");
        patched_taints.recorded(&after);
        assert!(patched_taints.patched().is_empty());
        assert!(patched(&[before, after, node("3", &[], json!([]))]).is_empty());
    }
}
