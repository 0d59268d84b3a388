//! What a schema refuses.

use crate::api::problem::Problem;
use crate::api::source::{FieldPath, SourcePosition};

/// A value that does not conform to the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeFault {
    /// The position.
    pub place: SourcePosition,
    /// The field.
    pub path: FieldPath,
    /// What is wrong, and what to write instead.
    pub problem: Problem,
}
