//! What is wrong, and what to do about it.

use std::fmt;

/// Maximum length of each part of a problem, in bytes. Policies come from whoever may send one, and each of up to a thousand
/// errors may repeat parts of it.
const PART_MAX: usize = 8 * 1024;

/// Maximum number of errors that are collected. People read fewer, and a hostile policy has one for each of its values.
pub(crate) const ERRORS_MAX: usize = 1_000;

/// An error in words: the problem, and the remedy if there is one.
///
/// Both are parts of a sentence of bounded length. [`fmt::Display`] joins them on one line, for logs, conditions and events.
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
        Self::of(what, Some(remedy.into()))
    }

    /// A problem with its remedy, if there is one.
    pub fn of(what: impl Into<String>, remedy: Option<String>) -> Self {
        Self { what: within(what.into()), remedy: remedy.map(within) }
    }

    /// The same problem with another description of what is wrong.
    #[must_use]
    pub fn described(self, describe: impl FnOnce(&str) -> String) -> Self {
        Self::of(describe(&self.what), self.remedy)
    }
}

fn within(mut text: String) -> String {
    if text.len() > PART_MAX {
        text.truncate(text.floor_char_boundary(PART_MAX));
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.remedy {
            Some(remedy) => write!(f, "{}; {remedy}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for Problem {}

/// A problem that says by itself what to do.
impl From<String> for Problem {
    fn from(what: String) -> Self {
        Self::of(what, None)
    }
}

impl From<&str> for Problem {
    fn from(what: &str) -> Self {
        what.to_owned().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_problem_is_longer_than_people_read() {
        let long = "x".repeat(1 << 20);
        let problem = Problem::new(long.as_str(), long.as_str());
        assert_eq!(problem.to_string().len(), 2 * (PART_MAX + "…".len()) + "; ".len());
        assert!(Problem::from(long.as_str()).described(|what| what.repeat(9)).to_string().len() < 2 * PART_MAX);
    }
}
