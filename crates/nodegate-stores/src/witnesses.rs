//! What is known of nodes beside their reviews and records, in one place for admission and for the controller.

use std::sync::Arc;

use crate::certificates::KubeletCertificates;
use crate::machines::MachineObjects;
use nodegate_policy::api::pools::MachineKind;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{Assertions, Bootstrapper, MachinesOfNode, Witness};

/// Who asked for the certificates of kubelets, and the objects that provisioners make for machines.
#[derive(Debug, Default)]
pub struct Witnesses {
    /// Who asked for the certificates of kubelets.
    pub certificates: KubeletCertificates,
    /// The objects that provisioners make for machines.
    pub machines: MachineObjects,
}

impl Witness for Witnesses {
    fn bootstrapper(&self, certificate: &str, saved: Option<&SavedState>) -> Option<Arc<Bootstrapper>> {
        self.certificates.bootstrapper(certificate, saved)
    }

    fn machines(&self, kinds: &[MachineKind], node: &str, instances: Option<&[&str]>) -> MachinesOfNode {
        self.machines.of_node(kinds, node, instances)
    }

    fn assertions(&self, node: &str, provider_id: Option<&str>, saved: Option<&SavedState>) -> Assertions {
        let with_id = |id: &str| self.machines.with_provider_id(id, node);
        Assertions {
            machines: provider_id.map(with_id).unwrap_or_default(),
            certificates: self.certificates.for_node(node, saved),
        }
    }
}
