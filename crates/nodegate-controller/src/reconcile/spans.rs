//! What the spans of a reconcile say of a failure.

use crate::reconcile::outcome::{Done, Failure};
use crate::reconcile::patching::Made;
use nodegate_base::traces::Ended;

impl Ended for Done {
    fn error_type(&self) -> Option<String> {
        None
    }
}

impl Ended for Failure {
    fn error_type(&self) -> Option<String> {
        match self {
            Self::Facts(_) => Some("invalid_node".to_owned()),
            Self::State(error) => error.error_type(),
            Self::Patch { error, .. } => error.error_type(),
            Self::Conflict(_) => Some("conflict".to_owned()),
        }
    }
}

impl Ended for Made {
    fn error_type(&self) -> Option<String> {
        match self {
            Self::Stale => Some("conflict".to_owned()),
            Self::Written | Self::Gone => None,
        }
    }
}
