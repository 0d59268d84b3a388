//! Saved state under a name whose nodes were of different pools: what was saved of a node of one pool is restored to no node of another.

use std::collections::BTreeSet;

use crate::api::state::{SavedOfPool, SavedState};
use crate::facts::bootstrap::Bootstrapper;
use crate::facts::evidence::Evidence;
use crate::set::PolicySet;

impl PolicySet {
    /// The saved state for a new node, if that is not what was saved last: nothing, or what was saved of an earlier node of the same pool.
    /// What was saved of another pool is kept in it, the latest only.
    ///
    /// A name alone proves no pool here, because both nodes have it.
    pub(crate) fn saved_of_same_pool(
        &self,
        saved: &SavedState,
        name: &str,
        evidence: Option<&Evidence<'_>>,
    ) -> Option<SavedState> {
        if !self.asks_for_evidence() {
            return None;
        }
        let now = self.proven_pools(name, evidence);
        let of = |authenticated_as: Option<&str>| {
            let evidence = authenticated_as.and_then(|text| Evidence::read(text, &saved.node_name));
            let known = evidence.map(|known| known.bootstrapped(|one| Bootstrapper::recorded(saved, one)));
            self.proven_pools(&saved.node_name, known.as_ref())
        };
        let last = of(saved.authenticated_as.as_deref());
        if last.iter().any(|pool| now.contains(pool)) {
            return None;
        }
        let earlier = saved.of_another_pool.as_ref();
        let is_of_earlier =
            |earlier: &&SavedOfPool| of(earlier.authenticated_as.as_deref()).iter().any(|pool| now.contains(pool));
        let of_same_pool = earlier.filter(is_of_earlier);
        // Nothing is known of either, as in a cluster without pools.
        if last.is_empty() && of_same_pool.is_none() && (earlier.is_none() || now.is_empty()) {
            return None;
        }
        let SavedOfPool { labels, taints, .. } = of_same_pool.cloned().unwrap_or_default();
        let of_another_pool = match (last.is_empty(), of_same_pool) {
            (false, _) => {
                let (labels, taints) = (saved.labels.clone(), saved.taints.clone());
                Some(SavedOfPool { authenticated_as: saved.authenticated_as.clone(), labels, taints })
            }
            (true, None) => saved.of_another_pool.clone(),
            (true, Some(_)) => None,
        };
        // Another token is made for it, so admission leaves none.
        Some(SavedState { labels, taints, of_another_pool, restore_token: None, ..saved.clone() })
    }

    /// The pools that something else than its name proves.
    fn proven_pools(&self, name: &str, evidence: Option<&Evidence<'_>>) -> BTreeSet<&str> {
        let found = self.pools().of_node(&self.name_groups(name), evidence);
        found.proven_by_more_than_its_name().collect()
    }
}
