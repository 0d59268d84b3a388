//! Taints that came by a webhook's patch: what tells our own from those that people set.
//!
//! A taint carries no claim of its own; who writes taints claims all of them at once, and a webhook's patch is claimed by
//! nobody. So a taint that is there in one version of a node and was not in the version before, while the claims on taints
//! are the same in both, came by a webhook's patch. Wherever a version was missed, or claims are not known, nothing is said.

use std::collections::{BTreeSet, HashMap};

use super::node::NodeObject;
use crate::policy::TaintsClaimed;

/// What was last seen of a node's taints.
#[derive(Debug)]
struct Known {
    uid: String,
    version: String,
    taints: BTreeSet<String>,
    claimed: Option<TaintsClaimed>,
    /// Taints that came by a patch and have not been recorded since.
    patched: BTreeSet<String>,
}

/// Taints of all nodes that came by a webhook's patch and are still there.
#[derive(Debug, Default)]
pub(super) struct Arrivals(HashMap<String, Known>);

impl Arrivals {
    /// Notes a version of a node, as the watch shows them one after the other.
    pub(super) fn note(&mut self, node: &NodeObject) {
        let Ok(facts) = node.facts() else { return };
        let taints: BTreeSet<String> =
            facts.taints().iter().map(|taint| format!("{}:{}", &*taint.key, &*taint.effect)).collect();
        let claimed = node.claims.taints_claimed();
        let before = self.0.remove(node.name()).filter(|before| before.uid == node.uid());
        let patched = before.map_or_else(BTreeSet::new, |before| {
            let same_claims = before.claimed.is_some() && before.claimed == claimed;
            let new = taints.difference(&before.taints).filter(|_| same_claims).cloned();
            before.patched.intersection(&taints).cloned().chain(new).collect()
        });
        let (uid, version) = (node.uid().to_owned(), node.resource_version().to_owned());
        self.0.insert(node.name().to_owned(), Known { uid, version, taints, claimed, patched });
    }

    /// The taints (`key:Effect`) of this node that came by a patch.
    pub(super) fn patched(&self, node: &NodeObject) -> BTreeSet<String> {
        let known = self.0.get(node.name()).filter(|known| known.uid == node.uid());
        known.map(|known| known.patched.clone()).unwrap_or_default()
    }

    /// A version of a node has been recorded: what came until then is owned, or was not wanted and stays foreign.
    pub(super) fn recorded(&mut self, node: &NodeObject) {
        if let Some(known) = self.0.get_mut(node.name()).filter(|known| known.version == node.resource_version()) {
            known.patched.clear();
        }
    }

    /// A node is gone.
    pub(super) fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }
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
        let mut arrivals = Arrivals::default();
        versions.iter().for_each(|node| arrivals.note(node));
        arrivals.patched(versions.last().unwrap()).into_iter().collect()
    }

    #[test]
    fn a_taint_that_comes_without_a_new_claim_came_by_a_patch() {
        let before = || node("1", &["old"], claimed("kubectl", "2026-01-01T00:00:00Z"));
        let after = |claims| node("2", &["old", "new"], claims);
        assert_eq!(patched(&[before(), after(claimed("kubectl", "2026-01-01T00:00:00Z"))]), ["new:NoSchedule"]);
        assert!(
            patched(&[before(), after(claimed("kubectl", "2026-01-01T00:00:01Z"))]).is_empty(),
            "it was set just then"
        );
        assert!(patched(&[before(), after(claimed("kubectl-taint", "2026-01-01T00:00:00Z"))]).is_empty(), "by another");
        assert!(patched(&[before(), after(json!("unreadable"))]).is_empty(), "nobody knows");
        assert!(patched(&[after(json!([]))]).is_empty(), "it was there at first sight");
    }

    #[test]
    fn what_was_recorded_or_has_gone_is_not_said_again() {
        let (before, after) = (node("1", &[], json!([])), node("2", &["new"], json!([])));
        let mut arrivals = Arrivals::default();
        arrivals.note(&before);
        arrivals.note(&after);
        arrivals.recorded(&before);
        assert_eq!(arrivals.patched(&after).len(), 1, "another version was recorded");
        arrivals.recorded(&after);
        assert!(arrivals.patched(&after).is_empty());
        assert!(patched(&[before, after, node("3", &[], json!([]))]).is_empty());
    }
}
