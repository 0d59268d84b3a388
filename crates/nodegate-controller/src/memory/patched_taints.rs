//! Detects taints that were set by a webhook's patch, to tell nodegate's taints from those that people set.
//!
//! A taint has no claim of its own: a field manager that writes taints claims all of them, and nobody claims a
//! webhook's patch. So if a taint is present in one version of a node but not in the version before, and the claims
//! on taints are the same in both, a webhook's patch added it. If a version was missed, or claims are unknown,
//! nothing is concluded.

use std::collections::BTreeSet;

use crate::memory::version::Version;

/// Taints of a node that a webhook's patch added, that are still present, and that have not been recorded since.
#[derive(Debug, Default)]
pub(crate) struct PatchedTaints(BTreeSet<String>);

impl PatchedTaints {
    /// Records a version of the node after the one before, if it is known, in the order of the watch.
    pub(crate) fn note(&mut self, before: Option<&Version<'_>>, after: &Version<'_>) {
        let patched = std::mem::take(&mut self.0);
        let Some(before) = before else { return };
        let (claimed_before, claimed) = (before.claims.taints_claimed(), after.claims.taints_claimed());
        let same_claims = claimed_before.is_some() && claimed_before == claimed;
        let (taints_before, taints) = (taints_of(before), taints_of(after));
        let new = taints.difference(&taints_before).filter(|_| same_claims).cloned();
        self.0 = patched.intersection(&taints).cloned().chain(new).collect();
    }

    /// The taints (`key:Effect`) that a patch added.
    pub(crate) fn patched(&self) -> &BTreeSet<String> {
        &self.0
    }

    /// The last version of the node is recorded: each taint that it has is now either owned or foreign.
    pub(crate) fn recorded(&mut self) {
        self.0.clear();
    }
}

fn taints_of(version: &Version<'_>) -> BTreeSet<String> {
    version.facts.taints().iter().map(|taint| format!("{}:{}", &*taint.key, &*taint.effect)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use crate::memory::history::Sight;
    use crate::memory::node::{NodeMemory, Shared};
    use crate::node::NodeObject;

    fn memory() -> NodeMemory {
        let (unrecorded_nodes, counted_keys) = (Default::default(), Default::default());
        NodeMemory::new("u1", &Shared { records_last_change: false, unrecorded_nodes, counted_keys })
    }

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
        let mut known = memory();
        versions.iter().for_each(|node| known.sees(node, Timestamp::UNIX_EPOCH, Sight::Next));
        known.patched_taints.patched().iter().cloned().collect()
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
        let mut known = memory();
        [&before, &after].into_iter().for_each(|node| known.sees(node, Timestamp::UNIX_EPOCH, Sight::Next));
        known.recorded(&before);
        assert_eq!(known.patched_taints.patched().len(), 1, "another version was recorded");
        known.recorded(&after);
        assert!(known.patched_taints.patched().is_empty());
        assert!(patched(&[before, after, node("3", &[], json!([]))]).is_empty());
    }
}
