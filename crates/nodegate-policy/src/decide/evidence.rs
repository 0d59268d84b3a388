//! The evidence for a node's pools: which write gives it, and that admission leaves it on a node that joins.

use crate::api::state::SavedState;
use crate::decide::{DecisionBuilder, PatchScope};
use crate::facts::NodeFacts;
use crate::facts::proof::evidence::{AUTHENTICATED_AS, Evidence};
use crate::facts::request::{Operation, Write};
use crate::set::PolicySet;
use crate::set::pools::witness::Witness;

impl Write<'_> {
    /// Finds the evidence for the node's pools, if the policies ask for any.
    ///
    /// At a kubelet's CREATE it is what the API server authenticated; at an UPDATE, what is recorded of the node object; with what
    /// the `witness` knows beside that.
    pub fn prove(&mut self, set: &PolicySet, saved: Option<&SavedState>, witness: &(impl Witness + ?Sized)) {
        let Some(keys) = set.pools().asked_of_requester() else { return };
        let name = &*self.node.name;
        let evidence = match &self.old {
            None if self.requester.is_kubelet_of(name) => Evidence::of(&self.requester, keys),
            None => None,
            Some(old) => saved.and_then(|saved| Evidence::of_stored(old, saved, false)),
        };
        let is_recorded = |old: &NodeFacts<'_>| saved.is_some_and(|saved| saved.is_of_object(old.uid.as_deref()));
        let is_settled = match &self.old {
            None => false,
            // What the leader has recorded, it has waited for.
            Some(old) if is_recorded(old) => true,
            // As what the kubelet was authenticated is not known here until then.
            Some(_) => return,
        };
        let evidence = Evidence::witnessed(evidence, set, &self.node, saved, witness);
        // What is asserted about a node that is there, the leader has recorded.
        let joins = self.old.is_none();
        let evidence =
            evidence.map(|known| if joins { known.contradicted(set, &self.node, saved, witness) } else { known });
        let is_settled = is_settled || !set.awaits_proof(name, saved, evidence.as_ref());
        self.evidence = if is_settled { evidence.map(Evidence::settled) } else { evidence };
    }
}

impl DecisionBuilder<'_> {
    /// Leaves the evidence on a node that joins, for the controller, and takes away any other. The guard may have written it before.
    pub(crate) fn leave_evidence(&mut self) {
        if self.write.operation != Operation::Create {
            return;
        }
        let joins = self.scope == PatchScope::KubeletCreate;
        let evidence = self.write.evidence.as_ref().filter(|_| joins);
        let sent = self.write.node.annotation(AUTHENTICATED_AS);
        let is_guards = joins && self.is_sent_evidence_true();
        let wanted = evidence.and_then(|evidence| {
            let is_same = |text: &&str| evidence.has_lines_of(text);
            evidence.authenticated_as().map(|own| sent.filter(is_same).unwrap_or(own))
        });
        self.leave(AUTHENTICATED_AS, wanted.map(str::to_owned), is_guards);
    }

    /// Whether the object has evidence, and it is true of the requester, as what the guard writes.
    pub(crate) fn is_sent_evidence_true(&self) -> bool {
        let is_ours = |text: &str| self.write.evidence.as_ref().is_some_and(|evidence| evidence.has_lines_of(text));
        let is_true = |text: &str| is_ours(text) || Evidence::is_true(text, &self.write.requester);
        self.write.node.annotation(AUTHENTICATED_AS).is_some_and(is_true)
    }
}
