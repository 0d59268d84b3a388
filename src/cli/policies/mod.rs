//! Commands that write and check policies.

pub(super) mod check;
pub(super) mod init;
pub(super) mod plan;
pub(super) mod test;
