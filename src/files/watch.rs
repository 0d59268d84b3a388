//! Keeps the policies in force in step with their files.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use super::load::{LoadError, Sources};
use crate::policy::PolicySet;
use crate::watch::Changes;

/// Puts a new set in force whenever the files have changed and compile whole, until `shutdown`.
///
/// # Guarantees
/// When they do not compile, or a file has gone, the last good set stays in force; `observer` is told
/// once, not at every poll. It is told of every set put in force, too.
pub async fn watch(
    sources: Sources,
    policies: Arc<ArcSwap<PolicySet>>,
    poll: Duration,
    observer: impl Fn(Result<&PolicySet, &[LoadError]>),
    shutdown: CancellationToken,
) {
    let sources = Arc::new(sources);
    let mut changes = Changes::new(sources.directories(), poll);
    let mut seen = sources.fingerprint();
    let mut reported: Vec<LoadError> = Vec::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = changes.next() => {}
        }
        let reader = sources.clone();
        let last = seen;
        let read = tokio::task::spawn_blocking(move || {
            let fingerprint = reader.fingerprint();
            (fingerprint != last).then(|| (fingerprint, reader.load()))
        });
        let Ok(Some((fingerprint, loaded))) = read.await else { continue };
        seen = fingerprint;
        match loaded {
            Ok(set) => {
                let set = Arc::new(set);
                policies.store(set.clone());
                observer(Ok(&set));
                reported.clear();
            }
            Err(errors) if errors != reported => {
                observer(Err(&errors));
                reported = errors;
            }
            Err(_) => {}
        }
    }
}
