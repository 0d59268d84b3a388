//! Whether a node that joins gets the pending taint.

use crate::decide::decision::Note;
use crate::decide::{DecisionBuilder, answers};
use crate::facts::request::DecideContext;

impl DecisionBuilder<'_> {
    /// Sets the pending taint on a joining node if something is deferred, if a required inventory has not answered, if it has not passed
    /// a gate, or if its pools depend on what may still become known. If the taint may not be set, notes what is missing.
    pub(super) fn mark_pending(&mut self, context: &DecideContext<'_>) {
        let awaited = answers::required(self.set, context.inventory);
        let deferred = self.decision.deferred.as_ref();
        let awaits_proof = self.set.awaits_proof(&self.write.node.name, context.saved, self.write.evidence.as_ref());
        let gates: Vec<String> = self.decision.gates.iter().map(|gate| gate.id.to_string()).collect();
        if deferred.is_none() && awaited.is_empty() && gates.is_empty() && !awaits_proof {
            return;
        }
        if context.sets_pending {
            self.decision.pending = true;
            let missing = context.pending_taints.missing_on(&self.write.node);
            self.change.taints.extend(missing.map(|taint| (taint.clone(), Some(String::new()))));
            return;
        }
        let keys = deferred.map(|deferred| deferred.labels().keys().cloned().collect());
        let notes = &mut self.decision.notes;
        notes.extend(keys.map(|keys| Note::DeferredUnmarked { keys }));
        notes.extend((!awaited.is_empty()).then_some(Note::AwaitedUnmarked { inventories: awaited }));
        notes.extend((!gates.is_empty()).then_some(Note::GatesUnmarked { gates }));
    }
}
