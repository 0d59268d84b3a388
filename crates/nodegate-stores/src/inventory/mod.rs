//! Inventories: HTTP sources of labels.
//!
//! The leader asks them, and keeps their last answers in ConfigMaps that every replica watches. Admission and the controller
//! read the answers from memory and never wait for an inventory: one that is down, slow or wrong changes nothing on any
//! node, because its last answer about each node stays in force.

mod answer;
mod cache;
mod credentials;
mod items;
mod json;
mod pace;
mod refresh;
mod report;
mod request;
mod schedule;
mod source;
mod stored;
mod taken;
mod written;

pub use cache::InventoryCache;
pub use refresh::{Refresher, RefresherConfig};
pub use report::{AllFailing, Failing};
pub use schedule::LivingNode;
pub use stored::{NAME_PREFIX, UnreadableAnswers, follow, read, selector};
