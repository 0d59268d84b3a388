//! Policies from `NodePolicy` objects, combined with those from files.
//!
//! Every replica follows the objects and combines those that compile. If a generation does not compile, the last good
//! one stays in force. The leader records each generation that is in force as a `ControllerRevision`, so that
//! replicas that start later know it as well.

mod combination;
mod follow;
mod objects;
mod revisions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodegate_base::text::counted;

pub use follow::{follow, read};
pub use objects::Objects;
pub(super) use revisions::selector as revisions_selector;
pub use revisions::{GENERATION_PREFIX, keep_revisions};

use nodegate_policy::{PolicyDocument, PolicySet};

/// The status of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The object's uid.
    pub uid: String,
    /// The generation that this report is about.
    pub generation: i64,
    /// Why this generation is not in force; empty if it is.
    pub errors: Vec<String>,
    /// The generation that is in force: this one, the last good one before it, or none.
    pub in_force: Option<i64>,
}

impl Report {
    /// The errors, and what is in force instead; `None` if there are no errors.
    pub fn complaint(&self) -> Option<String> {
        let count = self.errors.len();
        let what = counted(count, "error", "errors");
        let instead = match self.in_force {
            Some(generation) => format!("generation {generation} stays in force"),
            None => "no generation of it is in force".to_owned(),
        };
        let faults = self.errors.join("; ");
        (count > 0).then(|| format!("generation {} has {what}; {instead}: {faults}", self.generation))
    }
}

/// The status of every object, by name.
pub type Reports = Arc<BTreeMap<String, Report>>;

/// A generation of an object that is in force.
#[derive(Clone, Debug)]
pub struct Good {
    /// The object's name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The generation.
    pub generation: i64,
    /// Its document.
    pub document: PolicyDocument,
    /// The known recorded generations of this object.
    pub recorded: BTreeSet<i64>,
}

/// All policies, and the status of the objects among them.
#[derive(Clone, Debug, Default)]
pub struct Combined {
    /// The policies in force.
    pub set: PolicySet,
    /// The status of every object.
    pub reports: BTreeMap<String, Report>,
    /// The objects that are in force.
    pub good: Vec<Good>,
}

impl Combined {
    /// Names, uids and generations of the objects in force. Together with the files they identify the set.
    pub fn composition(&self) -> Vec<(String, String, i64)> {
        self.good.iter().map(|good| (good.name.clone(), good.uid.clone(), good.generation)).collect()
    }
}
