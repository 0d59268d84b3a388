//! Commands that move, revert and remove what was set.

pub(super) mod cleanup;
pub(super) mod migrate;
pub(super) mod revert;
