//! The controller: what admission may not or could not do, and what lasts.
//!
//! One replica leads and writes; it watches nodes, decides with the same rules as admission, and makes what differs so.

pub mod arming;
mod arrivals;
pub mod certificates;
mod change;
mod events;
mod fights;
pub mod guard;
mod history;
pub mod leader;
mod limit;
mod memory;
pub mod native;
mod node;
mod patching;
pub mod policies;
pub mod published;
mod queue;
mod reconcile;
mod records;
pub mod registration;
mod removals;
mod reports;
mod restraint;
mod sight;
mod status;
mod term;

pub use change::{NotTaken, not_taken};
pub use events::Events;
pub use history::FIELD_MANAGER;
pub use node::{NodeApi, NodeObject, NodesError, Page, Read, Unreadable};
pub use queue::Urgency;
pub use reconcile::{Done, Failure, KeepConfig, Reconciler};
pub use removals::{Brake, MaxRemovals};
pub use term::{Ended, Term, TermConfig};
