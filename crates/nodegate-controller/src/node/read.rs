//! What reading nodes gives: a node or why it cannot be read, and errors.

use super::{NodeObject, Unreadable};
use nodegate_base::telemetry::brief;

/// Why an object that is cut off cannot be read.
pub(super) const TOO_LARGE: &str = "the object is larger than any that the API server stores";

/// An error while reading nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodesError {
    /// The API server refused. 410 means that the requested version has expired.
    #[error("the API server answered {code}: {message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// The error message.
        message: String,
    },
    /// The request failed, or the response was incomplete.
    #[error("{0}")]
    Broken(String),
    /// A change was lost, and nothing says of which node.
    #[error("{0}")]
    Lost(String),
}

impl NodesError {
    pub(super) fn broken(what: &str, why: impl std::fmt::Display) -> Self {
        Self::Broken(format!("{what}: {}", brief(why)))
    }

    /// Whether the requested version has expired, which happens in normal operation.
    pub(crate) fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { code: 410, .. })
    }

    /// Whether a watch cannot be resumed, so that all nodes must be listed again.
    pub(crate) fn needs_listing(&self) -> bool {
        self.is_expired() || matches!(self, Self::Lost(_))
    }
}

/// A node of a list or a watch, readable or not.
pub type Read = Result<NodeObject, Unreadable>;
