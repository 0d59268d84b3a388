//! Reloads policies when their files change.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::error::LoadError;
use super::load::{Loaded, Sources};
use nodegate_base::watch::Changes;

/// Calls `observer` with the loaded policies whenever the files differ from `since` and compile, until `shutdown`; or
/// with the errors, once and not at every poll, in which case the last good policies stay in force.
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
            let texts = reader.read();
            let fingerprint = texts.fingerprint();
            (fingerprint != last).then(|| (fingerprint, reader.compile(texts)))
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
