//! The controller: does what admission cannot do, and maintains persistent state.
//!
//! One replica leads and writes. It watches nodes, decides with the same rules as admission, and writes what differs.

mod arrivals;
pub mod certificates;
mod change;
mod events;
pub mod failure_policy;
mod fleet;
pub mod guard;
mod hardware;
mod history;
mod joins;
pub mod kept_objects;
pub mod leader;
mod leader_session;
mod limit;
mod memory;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod model;
pub mod native;
mod node;
pub mod observed;
mod outcome;
mod patching;
pub mod policies;
pub mod published;
mod queue;
mod reconcile;
mod records;
mod refusals;
pub mod registration;
mod removals;
mod reports;
mod revert_tracker;
mod safeguards;
mod spans;
mod status;
mod unrecorded;
mod watch_health;

pub use change::{NotTaken, not_taken};
pub use events::Events;
pub use history::FIELD_MANAGER;
pub use leader_session::{Ended, LeaderSession, LeaderSessionConfig};
pub use limit::WriteBudget;
pub use node::{NodeApi, NodeObject, NodesError, Page, Read, Unreadable, each_object, machine};
pub use outcome::{Done, Failure};
pub use patching::{Made, write_change};
pub use queue::Urgency;
pub use reconcile::{KeepConfig, Reconciler};
pub use removals::{Brake, MaxRemovals};
