//! Policies: documents are compiled into a [`PolicySet`]; [`decide`] says what a node should have,
//! [`judge`] what governance says of a write, [`patch()`] how a change is made.
//!
//! No I/O, no clock, no async, no environment in here.

mod borrowed;
pub mod cel;
mod claims;
mod compile;
mod decide;
mod decision;
mod document;
mod evaluate;
mod facts;
mod governance;
pub mod gpu;
mod guard;
mod index;
mod judge;
mod keep;
mod limits;
mod matcher;
pub mod native;
pub mod never_persisted;
mod node_info;
mod object;
mod overlap;
mod patch;
mod pattern;
mod presets;
mod quantity;
mod request;
pub mod restriction;
mod rule;
mod set;
mod stamp;
mod tri;
mod view;

pub use borrowed::{Capacity, Entries, Object, Text};
pub use claims::{Claim, Claims, TaintsClaimed};
pub use decide::decide;
pub use decision::{Decision, Desired, Field, NodeChange, Note, RuleId, Strength};
pub use document::{Origin, PolicyDocument, PolicyError};
pub use facts::{FactsError, NodeFacts, NodeFields, ObjectText, Readiness, TaintFact};
pub use judge::{Exemptions, Kind, Verdict, Violation, judge, violations};
pub use keep::{Keep, Living, Removal, SAVED_LABELS_MAX, SAVED_TAINTS_MAX, Unseen, keep};
pub use limits::{ANNOTATIONS_MAX, LeftOut, fit};
pub use object::{ObjectFault, ObjectReview, name_is_taken, review_object};
pub use patch::patch;
pub use pattern::Identities;
pub use presets::baseline;
pub use request::{Circumstances, Operation, Requester, Write};
pub use set::PolicySet;
pub use stamp::LAST_CHANGE;
pub use tri::Tri;
