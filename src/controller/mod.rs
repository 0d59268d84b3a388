//! What the leader keeps right in a cluster, and what every replica follows.

pub mod certificates;
pub mod registration;
