//! Policies from `NodePolicy` objects, together with those from files.
//!
//! Every replica follows the objects and puts together what can be in force. A generation that cannot be leaves the last
//! good one in force: the leader records each generation that is in force as a `ControllerRevision`, so that replicas
//! which start later know it as well.

mod follow;
mod objects;
mod revisions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use follow::{follow, read};
pub use objects::Objects;
pub use revisions::keep_revisions;

use crate::policy::{PolicyDocument, PolicySet};

/// What became of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The object's uid.
    pub uid: String,
    /// The generation this is about.
    pub generation: i64,
    /// Why this generation is not in force; empty when it is.
    pub errors: Vec<String>,
    /// The generation that is in force: this one, the last good one before it, or none.
    pub in_force: Option<i64>,
}

impl Report {
    /// What is wrong, and what is in force instead; `None` when nothing is wrong.
    pub fn complaint(&self) -> Option<String> {
        let count = self.errors.len();
        let what = if count == 1 { "a fault".to_owned() } else { format!("{count} faults") };
        let instead = match self.in_force {
            Some(generation) => format!("generation {generation} stays in force"),
            None => "no generation of it is in force".to_owned(),
        };
        let faults = self.errors.join("; ");
        (count > 0).then(|| format!("generation {} has {what}, {instead}: {faults}", self.generation))
    }
}

/// What became of every object, by name.
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
    /// What it says.
    pub document: PolicyDocument,
    /// The generations of this object that are recorded, as far as is known.
    pub recorded: BTreeSet<i64>,
}

/// All policies, and what became of the objects among them.
#[derive(Clone, Debug, Default)]
pub struct Combined {
    /// What is in force.
    pub set: PolicySet,
    /// What became of every object.
    pub reports: BTreeMap<String, Report>,
    /// The objects that are in force.
    pub good: Vec<Good>,
}

impl Combined {
    /// Names, uids and generations of the objects in force: the set is another one when these or the files are others.
    pub fn composition(&self) -> Vec<(String, String, i64)> {
        self.good.iter().map(|good| (good.name.clone(), good.uid.clone(), good.generation)).collect()
    }
}
