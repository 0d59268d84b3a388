//! Commands about the others: manifests, schemas of what they print, completions and man pages.

pub(super) mod completions;
pub(super) mod man;
pub(super) mod render;
