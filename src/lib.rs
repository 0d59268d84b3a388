//! nodegate decides what a Kubernetes Node is called: labels and taints are right before the node
//! is admitted and cannot be changed by whoever should not.
//!
//! ARCHITECTURE.md has the picture; a folder here is a layer.

pub mod admission;
pub mod api;
pub mod cli;
pub mod controller;
pub mod files;
pub mod health;
pub mod kube_error;
pub mod metrics;
pub mod policy;
pub mod state;
pub mod telemetry;
pub mod text;
pub mod tls;
pub mod watch;
