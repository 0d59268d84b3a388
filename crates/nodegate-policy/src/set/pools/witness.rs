//! What is known of a node's proof from elsewhere than its review and its record.

use std::sync::Arc;

use crate::api::pools::MachineKind;
use crate::api::state::SavedState;
use crate::facts::NodeFacts;
use crate::facts::proof::asserted::Assertions;
use crate::facts::proof::bootstrap::Bootstrapper;
use crate::facts::proof::evidence::Evidence;
use crate::facts::proof::machines::MachinesOfNode;
use crate::set::PolicySet;

/// Knows what neither the review nor the record of a node says of it.
pub trait Witness {
    /// Who asked for the first certificate that the one with this fingerprint descends from. `saved`: the record of its node.
    fn bootstrapper(&self, certificate: &str, saved: Option<&SavedState>) -> Option<Arc<Bootstrapper>>;

    /// The provisioners' objects of these kinds that stand for the machine of the node with this name, whose kubelet was
    /// authenticated as these instances. `None`: as which is not known; an empty list: as none.
    fn machines(&self, kinds: &[MachineKind], node: &str, instances: Option<&[&str]>) -> MachinesOfNode;

    /// What may be asserted about the node with this name, which has this provider ID.
    fn assertions(&self, node: &str, provider_id: Option<&str>, saved: Option<&SavedState>) -> Assertions;
}

impl Evidence<'_> {
    /// Adds what a witness knows, as far as the policies ask for it.
    pub fn witnessed(
        evidence: Option<Self>,
        set: &PolicySet,
        node: &NodeFacts<'_>,
        saved: Option<&SavedState>,
        witness: &(impl Witness + ?Sized),
    ) -> Option<Self> {
        let known = evidence.map(|known| known.bootstrapped(|certificate| witness.bootstrapper(certificate, saved)));
        if !set.asks_for_machines() {
            return known;
        }
        let known = known.unwrap_or_default();
        let instances = set.instances(&known);
        let found = witness.machines(set.machine_kinds(), &node.name, instances.as_deref());
        Some(known.with_machines(found))
    }

    /// Adds what a witness knows of what is asserted about the node, as far as the policies ask for it.
    #[must_use]
    pub fn contradicted(
        self,
        set: &PolicySet,
        node: &NodeFacts<'_>,
        saved: Option<&SavedState>,
        witness: &(impl Witness + ?Sized),
    ) -> Self {
        if !set.asks_for_machines() && !set.asks_for_bootstrap() {
            return self;
        }
        let now = witness.assertions(&node.name, node.provider_id.as_deref(), saved);
        let known = self.asserted().clone();
        let asserted = known.with(set, now, self.machines(), self.bootstrapper().map(AsRef::as_ref));
        self.with_asserted(asserted)
    }
}
