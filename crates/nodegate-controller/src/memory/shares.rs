//! What the nodes say about their pools, by which policies.

use std::sync::{Arc, Weak};

use nodegate_policy::{PolicySet, PoolShare};

/// What a node said when it was last processed, and by which policies.
#[derive(Debug)]
pub(crate) struct Said {
    policies: Weak<PolicySet>,
    share: Option<Box<PoolShare>>,
}

impl Said {
    fn is_by(&self, policies: &Arc<PolicySet>) -> bool {
        std::ptr::eq(self.policies.as_ptr(), Arc::as_ptr(policies))
    }

    /// Takes up what a node says now. Returns whether that is news.
    pub(crate) fn note(known: &mut Option<Self>, policies: &Arc<PolicySet>, share: Option<PoolShare>) -> bool {
        let is_news =
            known.as_ref().is_none_or(|known| !known.is_by(policies) || known.share.as_deref() != share.as_ref());
        *known = Some(Self { policies: Arc::downgrade(policies), share: share.map(Box::new) });
        is_news
    }
}

/// What all nodes say; `None` if some have not been asked by these policies. A node that was never processed says nothing.
pub(crate) fn of_all<'m>(
    nodes: impl Iterator<Item = &'m Option<Said>>,
    policies: &Arc<PolicySet>,
) -> Option<Vec<&'m PoolShare>> {
    let mut shares = Vec::new();
    for said in nodes.flatten() {
        if !said.is_by(policies) {
            return None;
        }
        shares.extend(said.share.as_deref());
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
        assert!(Said::note(&mut first, &now, Some(PoolShare::default())), "it was not asked before");
        assert!(!Said::note(&mut first, &now, Some(PoolShare::default())));
        assert_eq!(
            of_all([&first, &second].into_iter(), &now).map(|shares| shares.len()),
            Some(1),
            "one was not asked"
        );
        assert!(Said::note(&mut second, &before, None));
        assert!(of_all([&first, &second].into_iter(), &now).is_none());
        assert!(Said::note(&mut second, &now, None), "the same, by other policies");
        assert_eq!(of_all([&first, &second].into_iter(), &now).map(|shares| shares.len()), Some(1));
        assert!(Said::note(&mut first, &now, None));
    }
}
