//! The webhook server: certificates and connections, admission reviews, and readiness. It reads memory and answers; nothing in it
//! writes to a cluster.

pub mod admission;
pub mod health;
pub mod tls;
