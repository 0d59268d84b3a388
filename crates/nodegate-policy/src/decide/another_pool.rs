//! Saved state under a name whose nodes were of different pools: what was saved of a node of one pool is restored to no node of another.

use std::collections::BTreeSet;

use crate::api::state::{ProvisionedBy, SavedOfPool, SavedState};
use crate::facts::proof::evidence::Evidence;
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
        let of = |one: &SavedOfPool| self.proven_pools(&saved.node_name, Evidence::of_saved(saved, one).as_ref());
        let of_last = saved.of_last_pool();
        let last = of(&of_last);
        // An object whose label was not asked for then may have been of any pool.
        let is_unasked =
            |object: &ProvisionedBy| self.machine_labels().iter().any(|key| object.labels().get(key).is_none());
        let was_of_some = !last.is_empty() || saved.machines().iter().any(is_unasked);
        if last.iter().any(|pool| now.contains(pool)) {
            return None;
        }
        let earlier = saved.of_another_pool.as_deref();
        let is_of_earlier = |earlier: &&SavedOfPool| of(earlier).iter().any(|pool| now.contains(pool));
        let of_same_pool = earlier.filter(is_of_earlier);
        // Nothing is known of either, as in a cluster without pools.
        if !was_of_some && of_same_pool.is_none() && (earlier.is_none() || now.is_empty()) {
            return None;
        }
        let SavedOfPool { labels, taints, .. } = of_same_pool.cloned().unwrap_or_default();
        let of_another_pool = match (was_of_some, of_same_pool) {
            (true, _) => Some(Box::new(of_last)),
            (false, None) => saved.of_another_pool.clone(),
            (false, Some(_)) => None,
        };
        // Another token is made for it, so admission leaves none.
        Some(SavedState { labels, taints, of_another_pool, restore_token: None, ..saved.clone() })
    }

    /// The pools that something else than its name proves.
    fn proven_pools(&self, name: &str, evidence: Option<&Evidence<'_>>) -> BTreeSet<String> {
        let found = self.pools().of_node(name, &self.name_groups(name), evidence);
        found.proven_by_more_than_its_name().map(str::to_owned).collect()
    }
}
