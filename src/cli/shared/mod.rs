//! What several commands use.

pub(super) mod autoscalers;
pub(super) mod cluster;
pub(super) mod editor_schema;
pub(super) mod failure_policy;
pub(super) mod faults;
pub(super) mod invocation;
pub(super) mod node_files;
pub(super) mod output;
pub(super) mod policy_files;
pub(super) mod terminal_lines;
pub(super) mod whole_file;
