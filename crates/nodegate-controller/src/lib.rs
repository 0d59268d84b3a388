//! The controller: does what admission cannot do, and maintains persistent state.
//!
//! One replica leads and writes. It watches nodes, decides with the same rules as admission, and writes what differs.
//!
//! From the bottom up; a part uses only those above it in this list:
//!
//! - [`node`]: a node as it is stored, reading and watching nodes, and the queue of those that wait
//! - [`memory`]: what a term remembers about nodes
//! - [`cluster`]: the objects that nodegate maintains beside nodes and policies, and its events
//! - [`policies`]: `NodePolicy` objects, and which of them are in force
//! - [`reconcile`]: what one node gets, and its record
//! - [`tell`]: what is reported about the fleet: conditions, reports, what is in force
//! - [`leader`]: the Lease, and everything that only its holder does
//! - [`kept_objects`]: all objects that nodegate creates besides saved state, to delete them

pub mod cluster;
pub mod kept_objects;
pub mod leader;
mod memory;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod model;
mod node;
pub mod policies;
mod reconcile;
pub mod tell;

pub use cluster::events::Events;
pub use leader::session::{Ended, LeaderSession, LeaderSessionConfig};
pub use memory::removals::{Brake, MaxRemovals};
pub use node::limit::WriteBudget;
pub use node::queue::Urgency;
pub use node::{NodeApi, NodeObject, NodeText, NodesError, Page, Read, Unreadable, each_object, machine};
pub use reconcile::change::{NotTaken, not_taken};
pub use reconcile::outcome::{Awaited, Done, Failure};
pub use reconcile::patching::{Made, write_change};
pub use reconcile::{KeepConfig, Reconciler};
