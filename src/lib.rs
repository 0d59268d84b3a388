//! nodegate labels and taints Kubernetes Nodes at admission, before anything can be scheduled on them, and protects
//! those labels and taints from unauthorized changes.
//!
//! ARCHITECTURE.md has an overview. Each folder is a layer.

pub mod admission;
pub mod api_server;
pub mod cli;
pub mod controller;
pub mod files;
pub mod firstboot;
pub mod health;
pub mod http_client;
pub mod inventory;
pub mod kube_error;
pub mod metrics;
pub mod object_watch;
pub mod probe;
pub mod scheduling;
pub mod state;
pub mod telemetry;
pub mod text;
pub mod tls;
pub mod traces;
pub mod watch;
