//! What the nodes say about their pools, by which policies.

use std::sync::{Arc, Weak};

use nodegate_policy::{PolicySet, PoolShare};

use crate::memory::are;

/// What a node said when it was last processed, and by which policies.
#[derive(Debug)]
pub(crate) struct Share {
    policies: Weak<PolicySet>,
    said: Option<Arc<PoolShare>>,
}

impl Share {
    /// Takes up what a node says now. Returns whether that is news.
    pub(crate) fn note(known: &mut Option<Self>, policies: &Arc<PolicySet>, said: Option<PoolShare>) -> bool {
        let is_same = |known: &Self| are(&known.policies, policies) && known.said.as_deref() == said.as_ref();
        let is_news = !known.as_ref().is_some_and(is_same);
        *known = Some(Self { policies: Arc::downgrade(policies), said: said.map(Arc::new) });
        is_news
    }
}

/// What all nodes say; `None` if some have not been asked by these policies. A node that was never processed says nothing.
pub(crate) fn of_all<'m>(
    nodes: impl Iterator<Item = &'m Option<Share>>,
    policies: &Arc<PolicySet>,
) -> Option<Vec<Arc<PoolShare>>> {
    let mut shares = Vec::new();
    for share in nodes.flatten() {
        if !are(&share.policies, policies) {
            return None;
        }
        shares.extend(share.said.clone());
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_follows_from_what_nodes_said_by_other_policies() {
        let (now, before): (Arc<PolicySet>, Arc<PolicySet>) = (Arc::default(), Arc::default());
        let (mut first, mut second) = (None, None);
        let count = |shares: [&Option<Share>; 2]| {
            of_all(shares.into_iter(), &now).map(|shares: Vec<Arc<PoolShare>>| shares.len())
        };
        assert!(Share::note(&mut first, &now, Some(PoolShare::default())), "it was not asked before");
        assert!(!Share::note(&mut first, &now, Some(PoolShare::default())));
        assert_eq!(count([&first, &second]), Some(1), "one was not asked");
        assert!(Share::note(&mut second, &before, None));
        assert_eq!(count([&first, &second]), None);
        assert!(Share::note(&mut second, &now, None), "the same, by other policies");
        assert_eq!(count([&first, &second]), Some(1));
        assert!(Share::note(&mut first, &now, None));
    }
}
