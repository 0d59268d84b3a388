//! Which parts of a document are read.

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

    /// Whether these hold all that `other` holds.
    #[must_use]
    pub fn hold(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Whole, _) => true,
            (Self::Members(_), Self::Whole) => false,
            (Self::Members(members), Self::Members(others)) => {
                others.iter().all(|(key, other)| members.get(key).is_some_and(|paths| paths.hold(other)))
            }
        }
    }

    /// What is read of a member; nothing if it is not.
    #[must_use]
    pub fn member(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Whole => Some(self),
            Self::Members(members) => members.get(key),
        }
    }

    /// Whether nothing is read but whether it is there.
    pub(crate) fn is_presence(&self) -> bool {
        matches!(self, Self::Members(members) if members.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_hold_what_was_merged_into_them_and_nothing_else() {
        let path = |keys: &[&str]| Paths::default().under(keys);
        let (labels, images) = (Paths::Whole.under(&["metadata", "labels"]), Paths::Whole.under(&["status", "images"]));
        let mut both = labels.clone();
        both.merge(&images);
        assert!(both.hold(&labels) && both.hold(&images) && both.hold(&Paths::default()));
        assert!(both.hold(&path(&["status", "images", "a"])) && both.hold(&path(&["status"])));
        for other in [Paths::Whole, Paths::Whole.under(&["status"]), path(&["spec"]), path(&["status", "capacity"])] {
            assert!(!both.hold(&other) && Paths::Whole.hold(&other), "{other:?}");
        }
        assert!(!path(&["status", "images"]).hold(&images), "only whether they are there");
    }
}
