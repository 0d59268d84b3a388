//! Which parts of a document expressions read.

use std::collections::BTreeMap;

/// Parts of a document. It errs on the side of more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Paths {
    /// All of it.
    Whole,
    /// Whether it is there, and these members. Of a list, all of it as soon as there is a member: `"a" in list` looks
    /// like a member.
    Members(BTreeMap<Box<str>, Paths>),
}

impl Default for Paths {
    /// Only whether it is there.
    fn default() -> Self {
        Self::Members(BTreeMap::new())
    }
}

impl Paths {
    /// These paths, as they are called in a document in which `keys` lead to this one.
    #[must_use]
    pub fn under(self, keys: &[&str]) -> Self {
        let inside = |paths, key: &&str| Self::Members(BTreeMap::from([((*key).into(), paths)]));
        keys.iter().rev().fold(self, inside)
    }

    /// Adds what `other` holds.
    pub fn merge(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Whole, _) => {}
            (_, Self::Whole) => *self = Self::Whole,
            (Self::Members(members), Self::Members(others)) => {
                for (key, other) in others {
                    members.entry(key.clone()).or_default().merge(other);
                }
            }
        }
    }

    /// What is read of a member; nothing if it is not.
    pub(super) fn member(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Whole => Some(self),
            Self::Members(members) => members.get(key),
        }
    }

    /// Whether nothing is read but whether it is there.
    pub(super) fn is_presence(&self) -> bool {
        matches!(self, Self::Members(members) if members.is_empty())
    }
}

/// The paths of many expressions. An expression that reads all of something of which others read parts is kept apart: it
/// must not be what makes it too large for them.
#[derive(Clone, Debug, Default)]
pub struct SharedPaths {
    together: Paths,
    /// Every part that anybody reads.
    all: Overlap,
}

#[derive(Clone, Debug, Default)]
struct Overlap {
    members: BTreeMap<Box<str>, Overlap>,
}

impl SharedPaths {
    /// The paths of all of these.
    #[must_use]
    pub fn of(expressions: &[&Paths]) -> Self {
        let (mut together, mut all) = (Paths::default(), Overlap::default());
        expressions.iter().for_each(|paths| all.add(paths));
        let shared = expressions.iter().filter(|paths| !all.is_overlapped(paths));
        shared.for_each(|paths| together.merge(paths));
        Self { together, all }
    }

    /// What is read together.
    #[must_use]
    pub fn together(&self) -> &Paths {
        &self.together
    }

    /// Whether an expression with these paths is among those that are read together.
    #[must_use]
    pub fn hold(&self, paths: &Paths) -> bool {
        !self.all.is_overlapped(paths)
    }
}

impl Overlap {
    fn add(&mut self, paths: &Paths) {
        match paths {
            Paths::Whole => {}
            Paths::Members(members) => {
                for (key, paths) in members {
                    self.members.entry(key.clone()).or_default().add(paths);
                }
            }
        }
    }

    /// Whether something that these paths hold as a whole is read in parts as well.
    fn is_overlapped(&self, paths: &Paths) -> bool {
        match paths {
            Paths::Whole => !self.members.is_empty(),
            Paths::Members(members) => {
                members.iter().any(|(key, paths)| self.members.get(key).is_some_and(|inner| inner.is_overlapped(paths)))
            }
        }
    }
}

/// What expressions read of each document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadPaths {
    /// Of `node`, beside its labels and taints.
    pub node: Paths,
    /// Of `object`.
    pub object: Paths,
    /// Of `oldObject`.
    pub old_object: Paths,
    /// Of both: of a node before or after a write.
    pub written: Paths,
    /// Whether anything is read of `request`.
    pub request: bool,
}
