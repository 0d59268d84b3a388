//! Tells what contradicts that a node belongs to its pool: certificates for its name that somebody of another pool asked for.

use std::collections::BTreeSet;

use super::Reconciler;
use crate::memory::node::NodeMemory;
use crate::node::NodeObject;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{Bootstrapper, Evidence, PolicySet};

/// How many of them are told of one node in a term. A bootstrap token is enough to get any number of certificates.
const TOLD_MAX: usize = 16;

impl Reconciler {
    /// Tells of each certificate for the node's name whose bootstrap proves other pools than the one that created the node, once in
    /// a term. Nothing follows from it for the node, which keeps the pools that it has proven.
    pub(crate) fn tell_contradictions(
        &self,
        node: &NodeObject,
        set: &PolicySet,
        saved: &SavedState,
        evidence: Option<&Evidence<'_>>,
    ) {
        let Some(certificates) = self.certificates().filter(|_| set.asks_for_bootstrap()) else { return };
        let Some(created_by) = evidence.and_then(Evidence::bootstrapper) else { return };
        let pools = set.bootstrapped_pools(created_by);
        for other in certificates.for_node(node.name(), saved) {
            let others = set.bootstrapped_pools(&other.bootstrapper);
            if others == pools {
                continue;
            }
            let is_news = |known: &mut NodeMemory| {
                known.contradictions.len() < TOLD_MAX && known.contradictions.insert(other.certificate.as_str().into())
            };
            if self.with_memory(node, is_news) != Some(true) {
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
}

/// Who asked, and the pools that it proves.
fn described(bootstrapper: &Bootstrapper, pools: &BTreeSet<&str>) -> String {
    let user = bootstrapper.user();
    let pools: Vec<&str> = pools.iter().copied().collect();
    if pools.is_empty() { format!("{user} (no pool)") } else { format!("{user} (pool {})", pools.join(", ")) }
}
