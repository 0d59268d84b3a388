//! What holds the controller back: grace, brake, fights, refusals, and what one node may cost.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::change::{Revert, sets};
use super::fights::Ground;
use super::limit::Overdrawn;
use super::node::NodeObject;
use super::reconcile::Reconciler;
use crate::policy::{Field, Keep, NodeChange, PolicySet};

/// How soon a node is looked at again whose removals are held back.
const BRAKED: Duration = Duration::from_secs(5);

impl Reconciler {
    /// The change that grace, brake, fights and refusals leave over, and when to look again.
    pub(super) fn admissible(
        &self,
        node: &NodeObject,
        set: &PolicySet,
        keep: &Keep,
        reverts: &[Revert],
    ) -> (Option<NodeChange>, Option<Duration>) {
        let now = Instant::now();
        let mut memory = self.memory();
        let (due, mut again) = memory.removals.due(node.uid(), &keep.removals, now);
        if !keep.removals.is_empty() && due.is_empty() {
            again = Some(again.map_or(BRAKED, |again| again.min(BRAKED)));
        }
        memory.fights.make_room(node.uid(), now);
        let reverted: HashSet<&Ground> = reverts.iter().map(|revert| &revert.ground).collect();
        let uncounted = reverts.iter().any(|revert| memory.fights.is_uncounted(node.uid(), &revert.ground));
        if uncounted && memory.fights.tell_uncounted(node.uid()) {
            let note = "so many keys of this node are undone again and again that no more are counted; others that are \
                        undone are left alone meanwhile";
            tracing::warn!(node = node.name(), "{note}");
            self.metrics().controller.keys_left_alone.inc();
            self.events().later(node, "LeftAlone", note.to_owned());
        }
        let memory = &*memory;
        let left_alone = |field, key: &str| {
            let ground = (field, key.to_owned());
            let fought = memory.fights.is_left_alone(node.uid(), &ground, reverted.contains(&ground));
            let refused = field == Field::Annotation && memory.refusals.holds(node.uid(), key, now);
            (fought && !set.is_protected(key)) || refused
        };
        (keep.change(|removal| due.contains(removal), left_alone), again)
    }

    /// Counts what was undone by somebody and has been done again; after a while that key is left alone.
    pub(super) fn count_reverts(&self, node: &NodeObject, keep: &Keep, reverts: &[Revert], change: &NodeChange) {
        let set = self.policies();
        for Revert { ground, writer } in reverts {
            let (field, key) = ground;
            if set.is_protected(key) || !sets(change, ground) {
                continue;
            }
            let rule = keep.giver(*field, key);
            let policy = rule.map(|rule| &*rule.policy).unwrap_or_default();
            let ended = self.memory().fights.reverted(node.uid(), ground.clone(), writer, policy, Instant::now());
            let Some(writers) = ended else { continue };
            let rule = rule.map(ToString::to_string).unwrap_or_default();
            tracing::warn!(node = node.name(), %field, key, writers, rule, "left alone: it was undone again and again");
            self.metrics().controller.keys_left_alone.inc();
            let note = format!(
                "{field} {key}: what rule {rule} gives was undone five times in ten minutes, last by {writers}; it is \
                 left alone until the policies change"
            );
            self.events().later(node, "LeftAlone", note);
        }
    }

    /// Whether a node's own budget has room for so many writes; if not, how long until it has.
    pub(super) fn afford(&self, node: &NodeObject, writes: u32) -> Result<(), Duration> {
        let taken = self.memory().budgets.take(node.uid(), writes, tokio::time::Instant::now());
        let Err(Overdrawn { wait, first }) = taken else { return Ok(()) };
        self.metrics().controller.keeping.writes_put_off.inc();
        if first {
            tracing::warn!(node = node.name(), "its writes are put off: it has used up its write budget");
            let note = "this node needs more writes than one node may cost (20 at once, then 20 a minute); repairs and \
                        records of it are put off. Something keeps changing its labels or taints";
            self.events().later(node, "WriteBudgetSpent", note.to_owned());
        }
        Err(wait)
    }
}
