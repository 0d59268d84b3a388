//! Connections: listen, accept callers, limit what they use, and drain.

pub(super) mod callers;
pub(super) mod certificate;
pub(super) mod connection;
pub(super) mod connections;
pub(super) mod event;
pub(super) mod limits;
pub(super) mod listen;
pub(super) mod protocol;
pub(super) mod socket;
pub(super) mod watch;
