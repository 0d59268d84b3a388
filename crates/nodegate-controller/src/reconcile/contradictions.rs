//! Tells what contradicts that a node belongs to its pool: certificates for its name that somebody of another pool asked for, and a
//! provider ID of another machine.

use super::Reconciler;
use crate::memory::node::NodeMemory;
use crate::node::NodeObject;
use nodegate_policy::{Assertion, Contradiction, Evidence, NodeFacts, PolicySet};

/// Maximum number of contradictions that are told of one node in a term. A record bounds them too, but a node may have none, and whoever
/// has a bootstrap token can get any number of certificates.
const TOLD_MAX: usize = 16;

impl Reconciler {
    /// Tells of each contradiction once in a term. Only what policies say of `identity.contradictions` follows from it for the node, which
    /// keeps the pools that it has proven.
    pub(crate) fn tell_contradictions(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        set: &PolicySet,
        evidence: Option<&Evidence<'_>>,
    ) {
        let contradictions = evidence.map(|evidence| set.contradictions(facts, evidence)).unwrap_or_default();
        for contradiction in contradictions {
            let is_news = |known: &mut NodeMemory| {
                known.contradictions.len() < TOLD_MAX
                    && known.contradictions.insert(contradiction.asserted.as_str().into())
            };
            if self.with_memory(node, is_news) == Some(true) {
                self.tell_contradiction(node, &contradiction);
            }
        }
    }

    fn tell_contradiction(&self, node: &NodeObject, contradiction: &Contradiction) {
        let (what, asserted) = (contradiction.in_words(), &contradiction.asserted);
        let (reason, counter, and_now) = match contradiction.assertion {
            Assertion::Certificate => (
                "CertificateOfAnotherPool",
                &self.metrics().controller.contradictions,
                format!(
                    "It keeps its pool. If another machine replaces it, delete the node. Otherwise somebody who can join one pool acts as \
                     a node of another: revoke the bootstrap token, and find out which machine has the certificate (SHA-256 {asserted})"
                ),
            ),
            Assertion::ProviderId => (
                "ProviderIDOfAnotherMachine",
                &self.metrics().controller.provider_id_contradictions,
                "It belongs to the pools that are proven, but a provisioner may give it the labels and taints of that machine. Unless \
                 the ID was corrected by hand, somebody who can join one pool acts as a machine of another: find out what runs on this \
                 machine, and delete the node"
                    .to_owned(),
            ),
        };
        counter.inc();
        tracing::warn!(
            node = node.name(),
            asserted,
            what,
            "an assertion about a node contradicts what is proven of it"
        );
        self.events().later(node, reason, format!("{what}. {and_now}"));
    }
}
