//! Native policies that allow and deny, one file for each kind of governance entry.

pub(super) mod constraints;
pub(super) mod dependencies;
pub(super) mod entry;
pub(super) mod expressions;
pub(super) mod naming;
pub(super) mod reserved;
pub(super) mod validating;
pub(super) mod validation;
