//! Keys of labels, annotations and taints: special keys, and patterns for keys.

pub(crate) mod annotations;
pub(crate) mod compile_budget;
pub(crate) mod control_plane;
pub(crate) mod overlap;
pub(crate) mod pattern;
pub mod programs;
pub mod restriction;

use std::fmt;

use crate::api::policy::GovernedField;

/// The part of a node that a key is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// `metadata.labels`.
    Label,
    /// `metadata.annotations`.
    Annotation,
    /// `spec.taints`.
    Taint,
}

impl Field {
    /// The field with this name, as [`fmt::Display`] writes it.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Label, Self::Annotation, Self::Taint].into_iter().find(|field| field.to_string() == name)
    }
}

impl From<&GovernedField> for Field {
    fn from(field: &GovernedField) -> Self {
        match field {
            GovernedField::Labels => Self::Label,
            GovernedField::Taints => Self::Taint,
            GovernedField::Annotations => Self::Annotation,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Label => "label",
            Self::Annotation => "annotation",
            Self::Taint => "taint",
        })
    }
}
