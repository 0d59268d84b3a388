//! Commands that run nodegate, and what it needs in a cluster or on a node.

pub(super) mod apply;
pub(super) mod certs;
pub(super) mod export;
pub(super) mod firstboot;
pub(super) mod pools;
pub(super) mod serve;
pub(super) mod verify;
