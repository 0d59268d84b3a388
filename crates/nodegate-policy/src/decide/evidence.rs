//! The evidence for a node's pools: which write gives it, and that admission leaves it on a node that joins.

use std::sync::Arc;

use crate::api::state::SavedState;
use crate::decide::{DecisionBuilder, PatchScope};
use crate::facts::bootstrap::Bootstrapper;
use crate::facts::evidence::{AUTHENTICATED_AS, Evidence};
use crate::facts::request::{Operation, Write};
use crate::set::PolicySet;

impl Write<'_> {
    /// Finds the evidence for the node's pools, if the policies ask for any.
    ///
    /// At a kubelet's CREATE it is what the API server authenticated; at an UPDATE, what is recorded of the node object.
    /// `bootstrapper`: who asked for the certificate with this fingerprint, if pools ask for that.
    pub fn prove(
        &mut self,
        set: &PolicySet,
        saved: Option<&SavedState>,
        bootstrapper: impl FnOnce(&str) -> Option<Arc<Bootstrapper>>,
    ) {
        let Some(keys) = set.pools().asked_of_requester() else { return };
        let evidence = match &self.old {
            None if self.requester.is_kubelet_of(&self.node.name) => Evidence::of(&self.requester, keys),
            None => None,
            Some(old) => saved.and_then(|saved| Evidence::of_stored(old, saved, false)),
        };
        self.evidence = evidence.map(|evidence| evidence.bootstrapped(bootstrapper));
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
        let wanted =
            evidence.map(|evidence| sent.filter(|text| evidence.has_lines_of(text)).unwrap_or(evidence.as_str()));
        self.leave(AUTHENTICATED_AS, wanted.map(str::to_owned), is_guards);
    }

    /// Whether the object has evidence, and it is true of the requester, as what the guard writes.
    pub(crate) fn is_sent_evidence_true(&self) -> bool {
        let is_ours = |text: &str| self.write.evidence.as_ref().is_some_and(|evidence| evidence.has_lines_of(text));
        let is_true = |text: &str| is_ours(text) || Evidence::is_true(text, &self.write.requester);
        self.write.node.annotation(AUTHENTICATED_AS).is_some_and(is_true)
    }
}
