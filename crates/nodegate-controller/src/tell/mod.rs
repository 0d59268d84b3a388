//! What the leader reports about the fleet: conditions of policies, `ClusterReport` objects, the policies in force, and what it
//! leaves alone.

pub mod observed;
pub mod published;
pub(crate) mod remembered;
pub(crate) mod reports;
pub(crate) mod status;
