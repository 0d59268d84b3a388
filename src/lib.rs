//! nodegate labels and taints Kubernetes Nodes at admission, before anything can be scheduled on them, and protects
//! those labels and taints from unauthorized changes.
//!
//! This package puts the others together; ARCHITECTURE.md has an overview.

pub mod cli;
pub mod scheduling;
