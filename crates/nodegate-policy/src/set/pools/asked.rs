//! What the pools of a set ask about a node, and whether the evidence answers it.

use std::collections::BTreeSet;

use crate::api::pools::MachineKind;
use crate::api::state::SavedState;
use crate::facts::proof::bootstrap::Bootstrapper;
use crate::facts::proof::evidence::Evidence;
use crate::set::PolicySet;
use crate::set::pools::ProofSource;

impl PolicySet {
    /// Whether pools or inventories ask for what the API server authenticated about kubelets.
    pub fn asks_for_evidence(&self) -> bool {
        self.pools().asked_of_requester().is_some()
    }

    /// Whether pools ask who requested the certificates of kubelets.
    pub fn asks_for_bootstrap(&self) -> bool {
        self.pools().asks_for_bootstrap()
    }

    /// Whether pools ask for the objects that provisioners make for machines.
    pub fn asks_for_machines(&self) -> bool {
        !self.machine_kinds().is_empty()
    }

    /// The kinds of those objects, each once.
    pub fn machine_kinds(&self) -> &[MachineKind] {
        self.pools().machine_kinds()
    }

    /// The labels of those objects that are asked for, each once.
    pub fn machine_labels(&self) -> BTreeSet<&str> {
        self.pools().machine_labels()
    }

    /// Whether expressions read the devices of nodes.
    pub fn reads_devices(&self) -> bool {
        self.reads_devices
    }

    /// The instances as which a kubelet was authenticated; `None` if that is not known.
    pub fn instances<'e>(&self, evidence: &'e Evidence<'_>) -> Option<Vec<&'e str>> {
        evidence.instances(self.pools().instance_keys())
    }

    /// The instance as which a kubelet was authenticated; `None` if it was not, or if that is not known.
    pub(crate) fn instance<'e>(&self, evidence: Option<&'e Evidence<'_>>) -> Option<&'e str> {
        self.instances(evidence?)?.first().copied()
    }

    /// Whether it is known as which instance a kubelet was authenticated, if as one. Where nothing asks for it, none is said.
    pub(crate) fn knows_instance(&self, evidence: Option<&Evidence<'_>>) -> bool {
        self.pools().instance_keys().is_empty() || evidence.is_some_and(|evidence| self.instances(evidence).is_some())
    }

    /// Whether a node's pools depend on what may still become known: who asked for its kubelet's certificate, or, while no pool
    /// is proven, the provisioner's object for its machine. Where something may be restored to the node, or pools remember, a pool that
    /// only its name proves does not count; where that was saved of a machine with an object, only the object does.
    pub fn awaits_proof(&self, node: &str, saved: Option<&SavedState>, evidence: Option<&Evidence<'_>>) -> bool {
        let Some(known) = evidence else { return false };
        let awaits_bootstrap =
            self.asks_for_bootstrap() && known.certificate().is_some() && known.bootstrapper().is_none();
        let awaits_machine = || {
            let pools = self.pools().of_node(node, &self.name_groups(node), evidence);
            let restores = self.may_give_back(saved);
            let was_provisioned = saved.is_some_and(SavedState::was_provisioned);
            let is_proven = |(_, proof): &(&str, ProofSource)| match proof {
                ProofSource::Machine => true,
                ProofSource::Requester | ProofSource::Bootstrap | ProofSource::Administrator => !was_provisioned,
                ProofSource::Name => !restores,
            };
            pools.may_have_object && !pools.proven.iter().any(is_proven)
        };
        awaits_bootstrap || (self.asks_for_machines() && awaits_machine())
    }

    /// Whether a node that joins may get what its record or its pools remember.
    pub fn may_give_back(&self, saved: Option<&SavedState>) -> bool {
        self.pools_remember() || saved.is_some_and(SavedState::restores)
    }

    /// The pools of the kubelets whose first certificates this user asked for.
    pub fn bootstrapped_pools<'s>(&'s self, bootstrapper: &'s Bootstrapper) -> BTreeSet<&'s str> {
        self.pools().of_bootstrapper(bootstrapper)
    }
}
