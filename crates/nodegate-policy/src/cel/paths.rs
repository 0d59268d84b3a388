//! The parts of a document that expressions share.

use std::collections::BTreeMap;

use nodegate_cel::Paths;

/// The paths of many expressions. An expression that reads the whole of something of which others read parts is kept
/// separate, so that it does not make the shared part too large for them.
#[derive(Clone, Debug, Default)]
pub struct SharedPaths {
    together: Paths,
    /// All paths that any expression reads.
    all: Overlap,
    /// Whether an expression is kept separate. Without one, nothing has to be compared for each evaluation.
    some_are_apart: bool,
}

#[derive(Clone, Debug, Default)]
struct Overlap {
    members: BTreeMap<Box<str>, Overlap>,
}

impl SharedPaths {
    /// Combines these paths.
    #[must_use]
    pub fn of(expressions: &[&Paths]) -> Self {
        let (mut together, mut all) = (Paths::default(), Overlap::default());
        expressions.iter().for_each(|paths| all.add(paths));
        let (apart, shared): (Vec<&Paths>, Vec<&Paths>) =
            expressions.iter().partition(|paths| all.is_overlapped(paths));
        shared.iter().for_each(|paths| together.merge(paths));
        Self { together, all, some_are_apart: !apart.is_empty() }
    }

    /// The shared paths.
    #[must_use]
    pub fn together(&self) -> &Paths {
        &self.together
    }

    /// Whether the shared paths include these, which are of one of the expressions.
    #[must_use]
    pub fn hold(&self, paths: &Paths) -> bool {
        !self.some_are_apart || !self.all.is_overlapped(paths)
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

    /// Whether these paths include a whole of which others read parts.
    fn is_overlapped(&self, paths: &Paths) -> bool {
        match paths {
            Paths::Whole => !self.members.is_empty(),
            Paths::Members(members) => {
                members.iter().any(|(key, paths)| self.members.get(key).is_some_and(|inner| inner.is_overlapped(paths)))
            }
        }
    }
}

/// The paths that an expression reads of each document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadPaths {
    /// Of `node`, except labels and taints.
    pub node: Paths,
    /// Of `object`.
    pub object: Paths,
    /// Of `oldObject`.
    pub old_object: Paths,
    /// Of both: of a node before or after a write.
    pub written: Paths,
    /// Whether anything is read of `request`.
    pub request: bool,
    /// Of `devices`.
    pub devices: Paths,
    /// Of `item`.
    pub item: Paths,
    /// Whether `key` is read.
    pub key: bool,
}

impl ReadPaths {
    /// Whether annotations of a node are read, alone or as a part of what is read.
    pub(crate) fn read_annotations(&self) -> bool {
        [&self.node, &self.object, &self.old_object, &self.written]
            .into_iter()
            .any(|paths| paths.member("metadata").is_some_and(|metadata| metadata.member("annotations").is_some()))
    }
}
