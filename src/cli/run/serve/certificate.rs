//! Opens the serving certificate and the CAs of clients before the server listens, and follows their changes.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::cli::run::serve::callers::CallersConfig;
use crate::cli::run::serve::expiry::{self, Expiry};
use crate::cli::run::serve::process::{POLL, Process};
use nodegate_base::metrics::{Metrics, Reload};
use nodegate_webhook::health::Readiness;
use nodegate_webhook::tls::{self, Callers, Certificate, Directory, Event, Https, Observer, Pair, SubjectName};

/// The serving certificate. Replacing it updates metrics and readiness.
pub(super) struct Served {
    certificate: Arc<Certificate>,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
}

impl Served {
    /// Serves a pair from now on.
    pub(super) fn serve(&self, pair: Pair) {
        self.metrics.loaded.set_certificate_not_after(pair.not_after());
        self.readiness.certificate_loaded(pair.not_after());
        self.certificate.swap(pair);
    }

    /// The current pair.
    pub(super) fn pair(&self) -> Option<Arc<Pair>> {
        self.certificate.current()
    }
}

/// The TLS parts of the HTTPS server.
pub(super) struct Opened {
    pub(super) served: Served,
    pub(super) https: Https,
    pub(super) observer: Observer,
    directory: Option<Directory>,
    callers: Option<Arc<Callers>>,
}

impl Opened {
    /// Opens the certificate directory, if there is one, and the CAs of clients, if they need a certificate.
    ///
    /// # Errors
    /// Returns an error if one of them cannot be read or used.
    pub(super) fn open(
        callers: Option<CallersConfig>,
        directory: Option<&PathBuf>,
        names: &[SubjectName],
        process: &Process,
    ) -> anyhow::Result<Self> {
        let (metrics, readiness) = (process.metrics.clone(), process.readiness.clone());
        let observer = observer(metrics.clone(), readiness.clone());
        let served = Served { certificate: Arc::default(), metrics, readiness };
        let callers = callers.map(|callers| callers.open(&process.metrics)).transpose()?;
        let https = tls::https(served.certificate.clone(), callers.clone()).context("TLS")?;
        let directory = match directory {
            Some(path) => {
                let (directory, pair) = Directory::open(path, names, Timestamp::now()).context("--cert-dir")?;
                served.serve(pair);
                Some(directory)
            }
            None => None,
        };
        Ok(Self { served, https, observer, directory, callers })
    }

    /// Follows the files from now on; the receiver reports how near the expiration of the serving certificate is.
    pub(super) fn watch(&mut self, process: &Process) -> watch::Receiver<Expiry> {
        let (sender, expiry) = watch::channel(Expiry::default());
        let (certificate, shutdown) = (&self.served.certificate, &process.shutdown);
        let metrics = process.metrics.clone();
        tokio::spawn(expiry::follow(certificate.clone(), Timestamp::now, metrics, sender, shutdown.clone()));
        if let Some(directory) = self.directory.take() {
            let (certificate, observer) = (certificate.clone(), self.observer.clone());
            tokio::spawn(tls::watch(directory, certificate, POLL, Timestamp::now, observer, shutdown.clone()));
        }
        if let Some(callers) = self.callers.take() {
            let observer = self.observer.clone();
            tokio::spawn(tls::watch_callers(callers, POLL, Timestamp::now, observer, shutdown.clone()));
        }
        expiry
    }
}

/// Counts the events of the TLS layer.
fn observer(metrics: Arc<Metrics>, readiness: Arc<Readiness>) -> Observer {
    Arc::new(move |event| match event {
        Event::Opened => {
            metrics.connections.open.inc();
        }
        Event::Closed => {
            metrics.connections.open.dec();
        }
        Event::ConnectionEnded => {
            metrics.connections.ended.inc();
        }
        Event::ConnectionRefused => {
            metrics.connections.refused.inc();
        }
        Event::HandshakeFailed => {
            metrics.connections.handshake_failures.inc();
        }
        Event::CallerRefused(refusal) => metrics.callers.refused(refusal.as_str()),
        Event::CallersReloaded => metrics.callers.reloaded(Reload::Success),
        Event::CallersReloadFailed { .. } => metrics.callers.reloaded(Reload::Failure),
        Event::AcceptFailed { .. } => {
            metrics.connections.accept_failures.inc();
        }
        Event::Reloaded { not_after } | Event::Renewed { not_after } => {
            metrics.loaded.certificate_reloaded(Reload::Success);
            metrics.loaded.set_certificate_not_after(not_after);
            readiness.certificate_loaded(not_after);
        }
        Event::ReloadFailed { .. } => metrics.loaded.certificate_reloaded(Reload::Failure),
    })
}
