//! Expressions without an answer.

use crate::cel::EvaluationError;

/// Why an expression could not be evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unevaluated {
    /// It failed, for example because it reads an absent field.
    Unknown(String),
    /// It would take too long or too much memory. This is separate, so that a large node cannot bypass a constraint.
    TooCostly(String),
}

impl From<EvaluationError> for Unevaluated {
    fn from(error: EvaluationError) -> Self {
        match error {
            EvaluationError::TooExpensive
            | EvaluationError::Spent
            | EvaluationError::TooLarge
            | EvaluationError::TooDeep => Self::TooCostly(error.to_string()),
            EvaluationError::Failed(_) | EvaluationError::Internal(_) => Self::Unknown(error.to_string()),
        }
    }
}
