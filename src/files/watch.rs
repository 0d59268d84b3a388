//! Keeps the policies in force in step with their files.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::load::{LoadError, Loaded, Sources};
use crate::watch::Changes;

/// Gives `observer` what the files hold whenever they are no longer as they were `since` and compile whole, until `shutdown`; or else what is
/// wrong with them, once and not at every poll: the last good policies then stay in force.
pub async fn watch(
    sources: Sources,
    since: u64,
    poll: Duration,
    observer: impl Fn(Result<Loaded, &[LoadError]>),
    shutdown: CancellationToken,
) {
    let sources = Arc::new(sources);
    let mut changes = Changes::new(sources.directories(), poll);
    let mut seen = since;
    let mut reported: Vec<LoadError> = Vec::new();
    loop {
        let reader = sources.clone();
        let last = seen;
        let read = tokio::task::spawn_blocking(move || {
            let fingerprint = reader.fingerprint();
            (fingerprint != last).then(|| (fingerprint, reader.load_documents()))
        });
        if let Ok(Some((fingerprint, loaded))) = read.await {
            seen = fingerprint;
            match loaded {
                Ok(loaded) => {
                    observer(Ok(loaded));
                    reported.clear();
                }
                Err(errors) if errors != reported => {
                    observer(Err(&errors));
                    reported = errors;
                }
                Err(_) => {}
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = changes.next() => {}
        }
    }
}
