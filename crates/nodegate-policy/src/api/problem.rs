//! What is wrong, and what to do about it.

use std::fmt;

/// An error in words: the problem, and the remedy if there is one.
///
/// Both are parts of a sentence. [`fmt::Display`] joins them on one line, for logs, conditions and events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// What to write or do instead.
    pub remedy: Option<String>,
}

impl Problem {
    /// A problem with its remedy.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: Some(remedy.into()) }
    }

    /// The same problem with another description of what is wrong.
    #[must_use]
    pub fn described(self, describe: impl FnOnce(&str) -> String) -> Self {
        Self { what: describe(&self.what), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.remedy {
            Some(remedy) => write!(f, "{}; {remedy}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// A problem that says by itself what to do.
impl From<String> for Problem {
    fn from(what: String) -> Self {
        Self { what, remedy: None }
    }
}

impl From<&str> for Problem {
    fn from(what: &str) -> Self {
        what.to_owned().into()
    }
}
