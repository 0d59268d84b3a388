//! The pools of a node, and what proves them.

use std::collections::BTreeMap;

use super::document::{NodeIdentity, PoolProof, ProofSource};
use crate::decide::view::View;
use crate::set::PolicySet;
use crate::set::pools::Proof;

/// The pools of a node; `None` if no policy has pools.
pub(super) fn of_node(set: &PolicySet, view: &View<'_>) -> Option<NodeIdentity> {
    if set.pools().names().is_empty() {
        return None;
    }
    let pools = view.pools();
    let strongest = pools.proven.iter().map(|(_, proof)| *proof).min();
    let proof = strongest.map(|proof| match proof {
        Proof::Requester => PoolProof {
            source: ProofSource::Requester,
            evidence: view.evidence().map(|evidence| evidence.by_name()).unwrap_or_default(),
        },
        Proof::Name => {
            let name = vec![view.facts().name.to_string()];
            PoolProof { source: ProofSource::Name, evidence: BTreeMap::from([("name".to_owned(), name)]) }
        }
    });
    Some(NodeIdentity {
        pools: pools.proven.iter().map(|(name, _)| (*name).to_owned()).collect(),
        unknown: pools.unknown.iter().map(|name| (*name).to_owned()).collect(),
        proof,
    })
}
