//! The cluster, as several commands need it: how it is reached, what is in force there, and what is known of a node.

pub(in crate::cli) mod connect;
pub(in crate::cli) mod effective_policies;
pub(in crate::cli) mod known_node;
pub(in crate::cli) mod objects;
mod registration;
pub(in crate::cli) mod saved_state;
pub(in crate::cli) mod serve_flags;
pub(in crate::cli) mod wait_for_cluster;
