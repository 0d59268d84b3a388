//! What admission did when the node joined, as far as the stored node shows it.

use super::{Planner, ReconcilePlan, StoredNode};
use crate::api::state::SavedState;
use crate::decide::forbidden::forbidding;
use crate::decide::marks::admission::AdmissionMark;
use crate::facts::managed_fields::Claim;
use crate::facts::proof::evidence::Evidence;
use crate::keys::Field;
use crate::keys::restriction::is_restricted;
use crate::set::rule::RuleId;

/// A claim of a joining kubelet that was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedClaim {
    /// The part of the node; `None` for its owners, `metadata.ownerReferences`, and for [`ReconcilePlan::rejected_unnamed`].
    pub field: Option<Field>,
    /// The key of the label; of a taint `key:Effect`; of owners [`OWNERS`].
    pub key: String,
    /// The value that the kubelet asserted; empty without a field.
    pub asserted: String,
    /// The rule that sets another value, or the `protect` section that names the key.
    pub by: RuleId,
}

/// What stands for the key where a kubelet named owners of its node.
const OWNERS: &str = "metadata.ownerReferences";

impl std::fmt::Display for RejectedClaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { field, key, asserted, by } = self;
        match field {
            None => write!(f, "{key} ({by})"),
            Some(Field::Taint) => write!(f, "taint {key} with {asserted:?} ({by})"),
            Some(Field::Label | Field::Annotation) => write!(f, "{key}={asserted:?} ({by})"),
        }
    }
}

impl ReconcilePlan {
    /// The claims of which only the number is known, as one claim with the number for its key, such as `17 more keys`. `None` if
    /// there are none.
    pub fn rejected_unnamed(&self) -> Option<RejectedClaim> {
        let (more, keys) =
            (if self.rejected.is_empty() { "" } else { "more " }, if self.rejected_more == 1 { "key" } else { "keys" });
        (self.rejected_more > 0).then(|| RejectedClaim {
            field: None,
            key: format!("{} {more}{keys}", self.rejected_more),
            asserted: String::new(),
            by: RuleId::own("unnamed"),
        })
    }
}

/// What admission did when the node joined.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    mark: AdmissionMark,
    /// The saved keys without those that others have changed or removed since admission restored them, if it did.
    left: Option<SavedState>,
}

impl Admitted {
    /// What the mark on the node says. What is left to restore matters at first sight only.
    pub(super) fn of(stored: &StoredNode<'_>, first_sight: bool) -> Self {
        let mut mark = AdmissionMark::read(stored.node).unwrap_or_default();
        mark.own = mark.own.saturating_add(usize::from(Evidence::is_replacement(stored.node)));
        let is_proven = first_sight && mark.restored.is_some() && mark.restored == stored.saved.restore_token;
        let left = is_proven.then(|| {
            let mut left = stored.saved.clone();
            left.labels.retain(|key, value| is_left(stored, key, value));
            left.taints.retain(|taint| {
                taint.id().is_ok_and(|id| stored.node.taint(&taint.key, id.effect) == Some(&taint.value))
            });
            left
        });
        Self { mark, left }
    }

    /// Whether nodegate's webhook saw the CREATE for certain: the node has the token of its saved state, which nobody else
    /// can know.
    pub(super) fn is_proven(&self) -> bool {
        self.left.is_some()
    }

    /// The saved state to restore. What admission has restored, others have changed since, and the living node wins.
    pub(super) fn left_to_restore<'a>(&'a self, stored: &StoredNode<'a>) -> &'a SavedState {
        self.left.as_ref().unwrap_or(stored.saved)
    }
}

/// Whether a node whose CREATE carried its saved labels is still to have this one: it has it, it is a restricted one, which no
/// kubelet may carry, that nobody has set, or the kubelet has changed it since.
fn is_left(stored: &StoredNode<'_>, key: &str, saved: &str) -> bool {
    match stored.node.label(key) {
        None => is_restricted(key),
        Some(value) => value == saved || stored.claims.label_writer(key).is_some_and(Claim::is_kubelets),
    }
}

impl Planner<'_> {
    /// The kubelet's claims that were rejected: by admission, or now that they are corrected; and how many more there were.
    pub(super) fn rejected(&self) -> (Vec<RejectedClaim>, usize) {
        let (node, decision, mark) = (self.stored.node, &self.builder.decision, &self.admitted.mark);
        let by = |key: &str| {
            let rule = decision.labels.get(key).filter(|desired| desired.strength.is_kept());
            rule.map(|desired| desired.by.clone()).or_else(|| forbidding(self.set, key))
        };
        let by_admission = mark.rejected.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let now = self.suspects.iter().filter_map(|key| {
            let value = node.label(key)?;
            (decision.label(key) != Some(value)).then_some((*key, value))
        });
        let claim = |field, key: &str, asserted: &str, by| RejectedClaim {
            field,
            key: key.to_owned(),
            asserted: asserted.to_owned(),
            by,
        };
        // What no policy is about any more nobody needs to know.
        let labels = by_admission.chain(now);
        let labels = labels.filter_map(|(key, asserted)| Some(claim(Some(Field::Label), key, asserted, by(key)?)));
        let taints = mark.rejected_taints.iter().filter_map(|(id, asserted)| {
            let (_, desired) = decision.taints.iter().find(|(ours, _)| ours.to_string() == *id)?;
            Some(claim(Some(Field::Taint), id, asserted, desired.by.clone()))
        });
        let owners = mark.owners.then(|| claim(None, OWNERS, "", RuleId::own("owners")));
        (labels.chain(taints).chain(owners).collect(), mark.more.saturating_add(mark.own))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::facts::managed_fields::Claims;
    use crate::reconcile::tests::scene::Scene;

    /// A node whose CREATE carried its saved labels and taints, and what became of them. The record has the token `t`.
    fn scene(mark: &Json) -> Scene {
        let mut scene = Scene::new(json!({
            "a/unchanged": "saved",
            "a/changed-by-a-user": "new",
            "a/changed-by-the-kubelet": "new",
            "node-restriction.kubernetes.io/changed": "new",
        }))
        .saved(json!({
            "a/unchanged": "saved",
            "a/removed": "saved",
            "a/changed-by-a-user": "saved",
            "a/changed-by-the-kubelet": "saved",
            "node-restriction.kubernetes.io/absent": "saved",
            "node-restriction.kubernetes.io/changed": "saved",
        }))
        .tainted(json!([
            {"key": "unchanged", "value": "saved", "effect": "NoSchedule"},
            {"key": "changed", "value": "new", "effect": "NoSchedule"},
            {"key": "other-effect", "effect": "NoExecute"},
        ]));
        let saved = json!([
            {"key": "unchanged", "value": "saved", "effect": "NoSchedule"},
            {"key": "changed", "value": "saved", "effect": "NoSchedule"},
            {"key": "other-effect", "effect": "NoSchedule"},
            {"key": "removed", "effect": "NoSchedule"},
        ]);
        scene.saved.taints = serde_json::from_value(saved).unwrap();
        scene.saved.restore_token = Some("t".to_owned());
        let claim = |manager: &str, key: &str| {
            let labels = json!({format!("f:{key}"): {}});
            json!({"manager": manager, "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:metadata": {"f:labels": labels}}})
        };
        let claims = json!([
            claim("kubectl-label", "a/changed-by-a-user"),
            claim("kubelet", "a/changed-by-the-kubelet"),
            claim("kubectl-label", "node-restriction.kubernetes.io/changed"),
        ]);
        scene.claims = Claims::parse(&claims.to_string());
        scene.node["metadata"]["annotations"] = json!({"nodegate.dev/admission": mark.to_string()});
        scene
    }

    #[test]
    fn what_others_changed_or_removed_since_admission_restored_it_is_not_left_to_restore() {
        scene(&json!({"restored": "t"})).with_stored(|stored| {
            let admitted = Admitted::of(stored, true);
            assert!(admitted.is_proven());
            let left = admitted.left_to_restore(stored);
            let labels: Vec<&str> = left.labels.keys().collect();
            assert_eq!(
                labels,
                ["a/changed-by-the-kubelet", "a/unchanged", "node-restriction.kubernetes.io/absent"],
                "what the kubelet changed is set back, and what its CREATE may not carry is still to come"
            );
            let taints: Vec<&str> = left.taints.iter().map(|taint| &*taint.key).collect();
            assert_eq!(taints, ["unchanged"]);
        });
    }

    #[test]
    fn without_proof_that_admission_restored_it_everything_is_left_to_restore() {
        for (mark, first_sight) in
            [(json!({"restored": "t"}), false), (json!({"restored": "of an earlier record"}), true), (json!({}), true)]
        {
            scene(&mark).with_stored(|stored| {
                let admitted = Admitted::of(stored, first_sight);
                assert!(!admitted.is_proven(), "{mark}");
                assert_eq!(admitted.left_to_restore(stored), stored.saved, "{mark}");
            });
        }
        let mut unmarked = scene(&json!({}));
        unmarked.saved.restore_token = None;
        unmarked.with_stored(|stored| assert!(!Admitted::of(stored, true).is_proven(), "neither has a token"));
    }
}
