//! What several commands use.

pub(super) mod connect;
pub(super) mod editor_schema;
pub(super) mod effective_policies;
pub(super) mod failure_policy;
pub(super) mod faults;
pub(super) mod invocation;
pub(super) mod known_node;
pub(super) mod node_files;
pub(super) mod output;
pub(super) mod policy_files;
mod registration;
pub(super) mod saved_state;
pub(super) mod serve_flags;
pub(super) mod terminal_lines;
pub(super) mod wait_for_cluster;
pub(super) mod whole_file;
