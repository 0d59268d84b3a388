//! The protocols of a listener: HTTPS, or plain HTTP for the probes.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;

use crate::tls::server::callers::{Callers, Refusal};
use crate::tls::server::event::{Event, Observer};

/// The protocol of a listener.
#[derive(Clone)]
pub enum Protocol {
    /// HTTP over TLS.
    Https(Https),
    /// Plain HTTP: the probe address.
    Http,
}

/// The TLS configuration, and which callers are accepted.
#[derive(Clone)]
pub struct Https {
    pub(in crate::tls) config: Arc<ServerConfig>,
    callers: Option<Arc<Callers>>,
}

impl Https {
    pub(in crate::tls) fn new(config: Arc<ServerConfig>, callers: Option<Arc<Callers>>) -> Self {
        Self { config, callers }
    }

    /// Returns when the caller of a connection is no longer accepted; never if every caller is accepted.
    pub(in crate::tls) async fn until_withdrawn(&self, chain: Option<&[CertificateDer<'static>]>) {
        match (&self.callers, chain) {
            (Some(callers), Some(chain)) => callers.until_withdrawn(chain).await,
            _ => pending().await,
        }
    }

    /// Reports a handshake that failed because of the caller's certificate. Returns whether it did.
    pub(in crate::tls) fn report(&self, error: &io::Error, peer: Option<SocketAddr>, observer: &Observer) -> bool {
        let (Some(callers), Some(refusal)) = (&self.callers, Refusal::of(error)) else { return false };
        callers.log(refusal, error, peer);
        observer(Event::CallerRefused(refusal));
        true
    }
}
