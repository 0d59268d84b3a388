//! Tells what contradicts that a node belongs to its pool: certificates for its name that somebody of another pool asked for, and a
//! provider ID of another machine.

use std::collections::BTreeSet;

use super::Reconciler;
use crate::memory::node::NodeMemory;
use crate::node::NodeObject;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{Bootstrapper, Evidence, NodeFacts, PolicySet, instance_of};
use nodegate_stores::certificates::ForNode;
use nodegate_stores::machines::MachineObjects;

/// The most contradictions that are told of one node in a term. With a bootstrap token one can get any number of certificates.
const TOLD_MAX: usize = 16;

impl Reconciler {
    /// Tells of each contradiction once in a term. Nothing follows from it for the node, which keeps the pools that it has proven.
    pub(crate) fn tell_contradictions(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        set: &PolicySet,
        saved: &SavedState,
        evidence: Option<&Evidence<'_>>,
    ) {
        let Some((witnesses, evidence)) = self.witnesses().zip(evidence) else { return };
        if let Some(created_by) = evidence.bootstrapper().filter(|_| set.asks_for_bootstrap()) {
            self.tell_certificates(node, set, created_by, &witnesses.certificates.for_node(node.name(), saved));
        }
        if set.asks_for_machines() {
            self.tell_claimed_machine(node, facts, set, evidence, &witnesses.machines);
        }
    }

    /// Whether a contradiction is to be told, because it has not been in this term.
    fn is_news(&self, node: &NodeObject, contradiction: &str) -> bool {
        let is_news = |known: &mut NodeMemory| {
            known.contradictions.len() < TOLD_MAX && known.contradictions.insert(contradiction.into())
        };
        self.with_memory(node, is_news) == Some(true)
    }

    /// Tells of certificates for the node's name whose bootstrap proves other pools than the one that created the node.
    fn tell_certificates(
        &self,
        node: &NodeObject,
        set: &PolicySet,
        created_by: &Bootstrapper,
        certificates: &[ForNode],
    ) {
        let pools = set.bootstrapped_pools(created_by);
        for other in certificates {
            let others = set.bootstrapped_pools(&other.bootstrapper);
            if others == pools || !self.is_news(node, &other.certificate) {
                continue;
            }
            let (asked, created) = (described(&other.bootstrapper, &others), described(created_by, &pools));
            self.metrics().controller.contradictions.inc();
            tracing::warn!(
                node = node.name(),
                certificate = other.certificate,
                asked,
                created,
                "a certificate for the node's name was issued to another pool than the one that created the node"
            );
            let note = format!(
                "a certificate for the name of this node was issued to {asked}, but the node was created by {created}. It keeps \
                 its pool. If another machine replaces it, delete the node. Otherwise somebody who can join one pool acts as a node \
                 of another: revoke the bootstrap token, and find out which machine has the certificate (SHA-256 {})",
                other.certificate
            );
            self.events().later(node, "CertificateOfAnotherPool", note);
        }
    }

    /// Tells if a node has the provider ID of another machine than the one that it is proven to be. Provisioners believe it, and give the
    /// node what belongs to that machine.
    fn tell_claimed_machine(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        set: &PolicySet,
        evidence: &Evidence<'_>,
        objects: &MachineObjects,
    ) {
        let Some(claimed) = facts.provider_id.as_deref().filter(|id| !id.is_empty()) else { return };
        let machines = evidence.machines();
        if machines.found.iter().any(|object| object.provider_id == claimed) {
            return;
        }
        let instances = set.instances(evidence);
        let own = machines.found.iter().find(|object| !object.provider_id.is_empty());
        let proven = match (own, instances.as_deref()) {
            (Some(own), _) => format!("it is the machine {} of {} {}", own.provider_id, own.kind, own.name),
            (None, Some([instance, ..])) if *instance != instance_of(claimed) && objects.has_provider_id(claimed) => {
                format!("its kubelet was authenticated as instance {instance}")
            }
            (None, Some([])) => {
                let Some(other) = objects.of_another(claimed, node.name()) else { return };
                format!("that is the machine of {} {}, whose node has another name", other.kind, other.name)
            }
            (None, _) => return,
        };
        if !self.is_news(node, claimed) {
            return;
        }
        self.metrics().controller.provider_id_contradictions.inc();
        tracing::warn!(node = node.name(), claimed, proven, "the provider ID of a node is not that of its machine");
        let note = format!(
            "the node has the provider ID {claimed}, but {proven}. It belongs to the pools that are proven, but a provisioner may give it \
             the labels and taints of that machine. Unless the ID was corrected by hand, somebody who can join one pool acts as a machine \
             of another: find out what runs on this machine, and delete the node"
        );
        self.events().later(node, "ProviderIDOfAnotherMachine", note);
    }
}

/// Who asked, and the pools that it proves.
fn described(bootstrapper: &Bootstrapper, pools: &BTreeSet<&str>) -> String {
    let user = bootstrapper.user();
    let pools: Vec<&str> = pools.iter().copied().collect();
    if pools.is_empty() { format!("{user} (no pool)") } else { format!("{user} (pool {})", pools.join(", ")) }
}
