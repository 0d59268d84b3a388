//! What every other part of nodegate uses: logs, metrics and traces, watches of files and objects, HTTP clients, and errors of
//! the API server in words.

pub mod api_server;
pub mod http_client;
pub mod kube_error;
pub mod log_limit;
pub mod metrics;
mod missing_rights;
pub mod object_watch;
pub mod pages;
pub mod served_kind;
pub mod telemetry;
pub mod text;
pub mod traces;
pub mod watch;
