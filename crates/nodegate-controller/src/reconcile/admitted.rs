//! What admission has seen of a node, by when it was created.

use std::sync::Arc;

use jiff::Timestamp;

use super::Reconciler;
use crate::node::NodeObject;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::{Evidence, NodeFacts};

impl Reconciler {
    /// When the mutating webhook was registered; `None` if it is not. Creation times have whole seconds: a node of
    /// the same second may be older.
    pub fn registered(&self, since: Option<Timestamp>) {
        self.registered_at.store(Arc::new(since));
    }

    /// From when on the API server admits only true evidence for pools; `None` if it does not. Returns whether that is news.
    pub(crate) fn evidence_guarded(&self, since: Option<Timestamp>) -> bool {
        *self.evidence_guarded.swap(Arc::new(since)) != since
    }

    /// The evidence for the pools of a node.
    pub(crate) fn evidence(
        &self,
        node: &NodeObject,
        facts: &NodeFacts<'_>,
        saved: &SavedState,
    ) -> Option<Evidence<'static>> {
        Evidence::of_stored(facts, saved, is_younger(node, **self.evidence_guarded.load()))
    }

    /// Whether a node was created while the mutating webhook was registered.
    pub(crate) fn was_admitted(&self, node: &NodeObject) -> bool {
        is_younger(node, **self.registered_at.load())
    }
}

/// Whether a node was created after something that is there.
fn is_younger(node: &NodeObject, since: Option<Timestamp>) -> bool {
    since.zip(node.created()).is_some_and(|(since, created)| created > since)
}
