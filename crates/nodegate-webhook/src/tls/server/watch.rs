//! Reloads the serving certificate from its directory, renews issued ones, and reloads the CAs of callers.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::tls::certificates::directory::{Directory, DirectoryError};
use crate::tls::certificates::pair::Pair;
use crate::tls::server::callers::Callers;
use crate::tls::server::certificate::Certificate;
use crate::tls::server::event::{Event, Observer};
use nodegate_base::watch::{Changes, Watched};

/// Serves the certificate in `directory` as it changes, until `shutdown`.
///
/// # Guarantees
/// If the files are incomplete or do not match, the last good pair stays, and the error is reported once, not at
/// every poll. Issued leaves are renewed before they expire.
pub async fn watch(
    directory: Directory,
    certificate: Arc<Certificate>,
    poll: Duration,
    now: fn() -> Timestamp,
    observer: Observer,
    shutdown: CancellationToken,
) {
    let directory = Arc::new(directory);
    let mut changes = Changes::new(vec![Watched::Entries(directory.path().to_owned())], poll);
    let mut reported: Option<String> = None;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = changes.next() => {}
        }
        let reader = directory.clone();
        let looked = tokio::task::spawn_blocking(move || look(&reader, now())).await;
        let error = match looked {
            Ok(Ok((pair, renewed))) => {
                serve_if_new(&certificate, pair, renewed, &observer);
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = error.as_ref().filter(|error| reported.as_ref() != Some(error)) {
            tracing::error!(directory = %directory.path().display(), %error, "could not reload the certificate; keeping the last good one");
            observer(Event::ReloadFailed { error: error.clone() });
        }
        reported = error;
    }
}

/// Trusts the CAs in the file of `callers` as it changes, until `shutdown`.
///
/// # Guarantees
/// If the file is invalid, the last good CAs stay, and the error is reported once, not at every poll.
pub async fn watch_callers(
    callers: Arc<Callers>,
    poll: Duration,
    now: fn() -> Timestamp,
    observer: Observer,
    shutdown: CancellationToken,
) {
    let mut changes = Changes::new(vec![Watched::parent_of(callers.path())], poll);
    let mut reported: Option<String> = None;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = changes.next() => {}
        }
        let reader = callers.clone();
        let reloaded = tokio::task::spawn_blocking(move || reader.reload(now())).await;
        let error = match reloaded.map_err(|error| error.to_string()) {
            Ok(Ok(false)) => None,
            Ok(Ok(true)) => {
                tracing::info!(file = %callers.path().display(), cas = callers.authorities(), "reloaded the CAs of client certificates");
                observer(Event::CallersReloaded);
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error),
        };
        if let Some(error) = error.as_ref().filter(|error| reported.as_ref() != Some(error)) {
            tracing::error!(%error, "could not reload the CAs of client certificates; keeping the last good ones");
            observer(Event::CallersReloadFailed { error: error.clone() });
        }
        reported = error;
    }
}

fn look(directory: &Directory, now: Timestamp) -> Result<(Pair, bool), DirectoryError> {
    let renewed = directory.renew_if_due(now)?;
    Ok((directory.read()?, renewed))
}

fn serve_if_new(certificate: &Certificate, pair: Pair, renewed: bool, observer: &Observer) {
    if certificate.current().is_some_and(|current| current.is_same_as(&pair)) {
        return;
    }
    let not_after = pair.not_after();
    certificate.swap(pair);
    tracing::info!(%not_after, renewed, "serving a new certificate");
    observer(if renewed { Event::Renewed { not_after } } else { Event::Reloaded { not_after } });
}
