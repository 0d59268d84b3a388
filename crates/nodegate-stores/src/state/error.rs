//! Errors of writing saved state.

use nodegate_base::traces::Ended;

/// Maximum size of a document, in bytes.
pub(super) const DOCUMENT_MAX: usize = 512 * 1024;

/// Saved state could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The API server refused or could not be reached.
    #[error("ConfigMap {config_map}: {error}")]
    Api {
        /// The ConfigMap.
        config_map: String,
        /// The reason.
        error: Box<kube::Error>,
    },
    /// The ConfigMap changed concurrently: the record must be computed again.
    #[error("ConfigMap {0} was changed concurrently")]
    Changed(String),
    /// The document is too large.
    #[error("the saved state of node {node} has {size} bytes; the maximum is {DOCUMENT_MAX}")]
    TooLarge {
        /// The node.
        node: String,
        /// Its size.
        size: usize,
    },
    /// The document has no text.
    #[error("the saved state of node {node} could not be written as JSON: {error}")]
    Unwritable {
        /// The node.
        node: String,
        /// The reason.
        error: serde_json::Error,
    },
}

impl WriteError {
    pub(super) fn api(config_map: &str, error: kube::Error) -> Self {
        Self::Api { config_map: config_map.to_owned(), error: Box::new(error) }
    }

    /// Whether the same record would be refused again, so that waiting is useless.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Api { error, .. } => matches!(code(error), 400 | 403 | 404 | 405 | 413 | 422),
            Self::TooLarge { .. } | Self::Unwritable { .. } => true,
            Self::Changed(_) => false,
        }
    }
}

impl Ended for WriteError {
    fn error_type(&self) -> Option<String> {
        Some(match self {
            Self::Api { error, .. } => return error.error_type(),
            Self::Changed(_) => "conflict".to_owned(),
            Self::TooLarge { .. } => "too_large".to_owned(),
            Self::Unwritable { .. } => "unwritable".to_owned(),
        })
    }
}

/// The status code of the API server's answer; 0 if there is none.
pub(super) fn code(error: &kube::Error) -> u16 {
    if let kube::Error::Api(status) = error { status.code } else { 0 }
}
