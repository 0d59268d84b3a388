//! A version of a node, for what is remembered of it.

use crate::node::NodeText;
use nodegate_policy::{Claims, NodeFacts};

/// What a version of a node says, read once for all that remembers something of it.
#[derive(Debug)]
pub(crate) struct Version<'v> {
    pub(super) facts: NodeFacts<'v>,
    pub(super) claims: &'v Claims,
}

impl<'v> Version<'v> {
    /// Nothing if it cannot be read.
    pub(super) fn of(text: &'v NodeText) -> Option<Self> {
        Some(Self { facts: text.facts().ok()?, claims: text.claims() })
    }
}
