//! What the spans of a reconcile say of a failure.

use super::outcome::{Done, Failure};
use super::patching::Made;
use crate::state::{WriteError, Written};
use crate::traces::Ended;

impl Ended for Result<Done, Failure> {
    fn error_type(&self) -> Option<String> {
        Some(match self.as_ref().err()? {
            Failure::Facts(_) => "invalid_node".to_owned(),
            Failure::State(error) => of_record(error),
            Failure::Patch { error, .. } => of_request(error),
            Failure::Conflict(_) => "conflict".to_owned(),
        })
    }
}

impl Ended for Result<Made, kube::Error> {
    fn error_type(&self) -> Option<String> {
        match self {
            Ok(Made::Stale) => Some("conflict".to_owned()),
            Ok(Made::Written | Made::Gone) => None,
            Err(error) => Some(of_request(error)),
        }
    }
}

impl Ended for Result<Written, WriteError> {
    fn error_type(&self) -> Option<String> {
        self.as_ref().err().map(of_record)
    }
}

fn of_record(error: &WriteError) -> String {
    match error {
        WriteError::Api { error, .. } => of_request(error),
        WriteError::Changed(_) => "conflict".to_owned(),
        WriteError::TooLarge { .. } => "too_large".to_owned(),
    }
}

/// The HTTP status, if there is one.
fn of_request(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.code.to_string(),
        _ => "unreachable".to_owned(),
    }
}
