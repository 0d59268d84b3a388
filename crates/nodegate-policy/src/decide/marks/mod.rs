//! Annotations by which nodegate marks what it did to a node.

pub(crate) mod admission;
pub(crate) mod last_change;
