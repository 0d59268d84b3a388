//! The objects in the cluster that nodegate maintains beside nodes and policies: webhook configurations, their certificates, the
//! guard's parameters, native policies; and its events.

pub mod annotation_calls;
pub mod certificates;
pub(crate) mod events;
pub(crate) mod evidence_guard;
pub mod failure_policy;
pub mod guard;
pub mod native;
pub mod registration;
