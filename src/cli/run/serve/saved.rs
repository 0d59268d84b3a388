//! Saved state without a cluster: a directory that is read, watched and never written.

use std::path::PathBuf;
use std::sync::Arc;

use crate::cli::run::serve::process::{POLL, Process};
use nodegate_base::metrics::{Metrics, Reload};
use nodegate_stores::state::{self, SavedStates, StateError};

/// Reads saved state from a directory, and follows its changes from now on.
pub(super) fn watch_directory(directory: PathBuf, process: &Process) -> Arc<SavedStates> {
    let saved = Arc::new(SavedStates::default());
    let (states, errors) = state::read(&directory, &Default::default());
    saved.replace(states.values().cloned());
    report(saved.len(), &errors, &process.metrics);
    let metrics = process.metrics.clone();
    let observer = Arc::new(move |states: usize, errors: &[StateError]| report(states, errors, &metrics));
    tokio::spawn(state::watch(directory, states, saved.clone(), POLL, observer, process.shutdown.clone()));
    saved
}

fn report(states: usize, errors: &[StateError], metrics: &Metrics) {
    metrics.loaded.set_saved_states(states);
    metrics.loaded.state_reloaded(if errors.is_empty() { Reload::Success } else { Reload::Failure });
    for error in errors {
        tracing::error!(%error, "could not read saved state; keeping the last good one");
    }
}
