//! What the controller does not write yet: because of a grace period, the removal limit, repeated reverts, refusals,
//! or the write budget of a node.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::memory::reverts::RevertKey;
use crate::node::NodeObject;
use crate::node::limit::Overdrawn;
use crate::reconcile::Reconciler;
use crate::reconcile::change::{Revert, sets};
use nodegate_policy::{Field, NodeChange, PolicySet, ReconcilePlan};

/// How soon a node is checked again if its removals are held back.
const BRAKED: Duration = Duration::from_secs(5);

impl Reconciler {
    /// The part of the change that may be written now, and when to check again; nothing if the node is gone.
    pub(crate) fn admissible(
        &self,
        node: &NodeObject,
        set: &PolicySet,
        plan: &ReconcilePlan,
        reverts: &[Revert],
    ) -> Option<(Option<NodeChange>, Option<Duration>)> {
        let now = Instant::now();
        let mut memory = self.memory();
        let (due, mut again) = memory.due(node, &plan.removals, now);
        if !plan.removals.is_empty() && due.is_empty() {
            again = Some(again.map_or(BRAKED, |again| again.min(BRAKED)));
        }
        memory.make_room(node, now);
        let known = memory.living(node)?;
        let reverted: HashSet<&RevertKey> = reverts.iter().map(|revert| &revert.revert_key).collect();
        let uncounted = reverts.iter().any(|revert| known.reverts.is_uncounted(&revert.revert_key));
        if uncounted && known.reverts.report_uncounted() {
            let note = "too many keys of this node are being reverted by others, so nodegate does not count further ones; \
                        meanwhile it does not repair those";
            tracing::warn!(node = node.name(), "{note}");
            self.metrics().controller.keys_left_alone.inc();
            self.events().later(node, "LeftAlone", note.to_owned());
        }
        let left_alone = |field, key: &str| {
            let revert_key = (field, key.to_owned());
            let reverted_too_often = known.reverts.is_left_alone(&revert_key, reverted.contains(&revert_key));
            let refused = field == Field::Annotation && known.refusals.holds(key, now);
            (reverted_too_often && !set.is_protected(key)) || refused
        };
        Some((plan.change(|removal| due.contains(removal), left_alone), again))
    }

    /// Counts keys that others reverted and nodegate has set again; after several reverts the key is no longer
    /// repaired.
    pub(crate) fn count_reverts(
        &self,
        node: &NodeObject,
        plan: &ReconcilePlan,
        reverts: &[Revert],
        change: &NodeChange,
    ) {
        let set = self.policies();
        for Revert { revert_key, writer } in reverts {
            let (field, key) = revert_key;
            if !sets(change, revert_key) {
                continue;
            }
            self.metrics().controller.repaired(match field {
                Field::Label => "label",
                Field::Annotation => "annotation",
                Field::Taint => "taint",
            });
            if set.is_protected(key) {
                continue;
            }
            let rule = plan.giver(*field, key);
            let policy = rule.map(|rule| &*rule.policy).unwrap_or_default();
            let mut memory = self.memory();
            let Some(known) = memory.living(node) else { return };
            let ended = known.reverts.reverted(revert_key.clone(), writer, policy, Instant::now());
            drop(memory);
            let Some(writers) = ended else { continue };
            let rule = rule.map(ToString::to_string).unwrap_or_default();
            tracing::warn!(node = node.name(), %field, key, writers, rule, "no longer repairing this key: others keep reverting it");
            self.metrics().controller.keys_left_alone.inc();
            self.news().notify_one();
            let note = format!(
                "{field} {key}: others reverted the value of rule {rule} five times in ten minutes, last {writers}; nodegate does \
                 not repair it until the policies change"
            );
            self.events().later(node, "LeftAlone", note);
        }
    }

    /// Takes writes from a node's own budget. If they exceed it, returns how long until they can be afforded.
    pub(crate) fn afford(&self, node: &NodeObject, writes: u32) -> Result<(), Duration> {
        let taken = self.with_memory(node, |known| known.budget.take(writes, tokio::time::Instant::now()));
        let Some(Err(Overdrawn { wait, first })) = taken else { return Ok(()) };
        self.metrics().controller.keeping.writes_put_off.inc();
        if first {
            tracing::warn!(node = node.name(), "delaying writes to this node: it has exhausted its write budget");
            let note = "this node exceeds the write budget of one node (20 writes at once, then 20 per minute), so its repairs \
                        and records are delayed. Find out what keeps changing its labels or taints";
            self.events().later(node, "WriteBudgetSpent", note.to_owned());
        }
        Err(wait)
    }
}
