//! The pools of a node, and what proves them.

use std::collections::BTreeMap;

use super::document::{NodeIdentity, PoolProof, ProofSource};
use crate::facts::NodeFacts;
use crate::facts::evidence::Evidence;
use crate::set::PolicySet;
use crate::set::pools::Proof;

/// The pools of a node; `None` if no policy has pools. `evidence`: of [`Evidence::of_stored`].
pub fn identity(set: &PolicySet, node: &NodeFacts<'_>, evidence: Option<&Evidence<'_>>) -> Option<NodeIdentity> {
    if set.pools().names().is_empty() {
        return None;
    }
    let pools = set.pools().of_node(&set.name_groups(&node.name), evidence);
    let strongest = pools.proven.iter().map(|(_, proof)| *proof).min();
    let proof = strongest.map(|proof| match proof {
        Proof::Requester => {
            PoolProof { source: ProofSource::Requester, evidence: evidence.map(Evidence::by_name).unwrap_or_default() }
        }
        Proof::Name => {
            let evidence = BTreeMap::from([("name".to_owned(), vec![node.name.to_string()])]);
            PoolProof { source: ProofSource::Name, evidence }
        }
    });
    Some(NodeIdentity {
        pools: pools.proven.iter().map(|(name, _)| (*name).to_owned()).collect(),
        unknown: pools.unknown.iter().map(|name| (*name).to_owned()).collect(),
        proof,
    })
}
