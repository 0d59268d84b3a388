//! Who the node is: its pools, and what contradicts their proof. What is known of it is evidence, so nothing that rules assign changes it.

use super::View;
use crate::cel::{IdentityVariables, Reads};
use crate::facts::proof::asserted::Contradiction;
use crate::set::pools::PoolsOfNode;

impl<'a> View<'a> {
    /// The pools of the node. What is known of it is evidence for its kubelet, so nothing that rules assign changes them.
    pub(crate) fn pools(&self) -> &PoolsOfNode<'a> {
        self.pools.get_or_init(|| self.set.pools().of_node(&self.facts.name, &self.name_groups, self.evidence))
    }

    /// The instance as which the node's kubelet was authenticated.
    pub(crate) fn instance(&self) -> Option<&'a str> {
        self.set.instance(self.evidence)
    }

    /// What is asserted about the node and contradicts its proof.
    pub(crate) fn contradictions(&self) -> &[Contradiction] {
        let find = || self.evidence.map(|evidence| self.set.contradictions(self.facts, evidence)).unwrap_or_default();
        self.contradictions.get_or_init(find)
    }

    /// What is known of the identity of the node, for CEL, as far as an expression reads it.
    pub(super) fn identity_variables(&self, reads: &Reads) -> IdentityVariables<'_> {
        let pools = self.pools();
        let strongest = pools.strongest().map(|(pool, proof)| (pool, proof.as_str()));
        let found = if reads.contradictions { self.contradictions() } else { &[] };
        let mut contradictions: Vec<&str> = found.iter().map(|one| one.assertion.as_str()).collect();
        contradictions.dedup();
        IdentityVariables {
            strongest,
            pools: pools.proven.iter().map(|(name, _)| *name).collect(),
            instance: self.instance(),
            contradictions,
        }
    }
}
