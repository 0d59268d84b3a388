//! What can go wrong: while an expression is compiled, and while it is evaluated.

use std::ops::Range;

use crate::limits::Unread;

/// Characters of a message about an evaluation.
const MAX_MESSAGE: usize = 300;

/// Why text is not an expression, and the byte it was found at.
#[derive(Debug, PartialEq)]
pub(super) struct Mistake {
    at: usize,
    what: String,
    remedy: Option<String>,
}

impl Mistake {
    pub(super) fn new(at: usize, what: impl Into<String>) -> Self {
        Self { at, what: what.into(), remedy: None }
    }

    /// The same problem, with what to write instead.
    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// The same problem, `by` bytes further on.
    pub(super) fn moved(self, by: usize) -> Self {
        Self { at: self.at + by, ..self }
    }

    /// The problem as a person reads it. `end_of_token` finds the byte behind the token that begins at a byte of the source.
    pub(super) fn explain(self, source: &str, end_of_token: impl Fn(&str, usize) -> usize) -> ExpressionError {
        let before = source.get(..self.at).unwrap_or(source);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let place = match source.contains('\n') {
            true => format!("line {line}, column {column}"),
            false => format!("column {column}"),
        };
        let bytes = before.len()..end_of_token(source, before.len());
        ExpressionError { bytes, place, what: self.what, remedy: self.remedy }
    }
}

/// Why an expression cannot be used: what is wrong, where in it, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place} of the expression: {what}{}", remedy.as_ref().map(|remedy| format!("; {remedy}")).unwrap_or_default())]
pub struct ExpressionError {
    bytes: Range<usize>,
    place: String,
    what: String,
    remedy: Option<String>,
}

impl ExpressionError {
    /// The bytes of the expression in which the fault is.
    #[must_use]
    pub fn bytes(&self) -> Range<usize> {
        self.bytes.clone()
    }

    /// Where the fault is in the expression, in words.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// What is wrong.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What to write instead.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// The same error with another remedy.
    #[must_use]
    pub fn with_remedy(self, remedy: String) -> Self {
        Self { remedy: Some(remedy), ..self }
    }
}

/// Why an expression has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// Something was read that is not there, or has another type than the expression needs, or a
    /// number left its range.
    #[error("{0}")]
    Failed(String),
    /// The expression needed more steps than one evaluation may take.
    #[error("the expression takes more than {limit} steps; make it read less", limit = crate::limits::MAX_STEPS)]
    TooExpensive,
    /// The expressions evaluated before it took the steps that all of them have together.
    #[error("all expressions together take more than {limit} steps; use fewer, or make them read less", limit = crate::limits::MAX_SHARED_STEPS)]
    Spent,
    /// The expression reads a part of a document that takes more memory than all expressions together may take.
    #[error("the expression reads a part of the document that is too large: all expressions together may take {limit} KiB of memory; make it read less", limit = crate::limits::MAX_SHARED_BYTES / 1024)]
    TooLarge,
    /// The expression reads a part of a document that is nested too deep.
    #[error("the expression reads a part of the document that is nested too deeply; make it read less")]
    TooDeep,
    /// A fault of this program.
    #[error("the expression could not be evaluated because of a bug in the expression engine: {0}")]
    Internal(String),
}

impl From<Unread> for EvaluationError {
    fn from(why: Unread) -> Self {
        match why {
            Unread::Large => Self::TooLarge,
            Unread::Deep => Self::TooDeep,
        }
    }
}

impl EvaluationError {
    /// Bounds the message: it may quote a document.
    pub(super) fn failed(message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
            message.truncate(end);
            message.push('…');
        }
        Self::Failed(message)
    }
}
