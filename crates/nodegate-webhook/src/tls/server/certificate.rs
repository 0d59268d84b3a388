//! The serving certificate.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;

use crate::tls::certificates::pair::Pair;
use crate::tls::server::callers::Callers;
use crate::tls::server::protocol::Https;

/// The serving certificate, replaced without closing connections. Handshakes fail until there is one.
#[derive(Debug, Default)]
pub struct Certificate(ArcSwapOption<Pair>);

impl Certificate {
    /// Starts with `pair`.
    pub fn new(pair: Pair) -> Arc<Self> {
        Arc::new(Self(ArcSwapOption::from_pointee(pair)))
    }

    /// Serves `pair` for new connections. Open connections keep theirs.
    pub fn swap(&self, pair: Pair) {
        self.0.store(Some(Arc::new(pair)));
    }

    /// The current pair.
    pub fn current(&self) -> Option<Arc<Pair>> {
        self.0.load_full()
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().as_ref().map(|pair| pair.key.clone())
    }
}

/// HTTPS: TLS 1.2 and 1.3, HTTP/1.1 by ALPN; requires client certificates if `callers` is set.
///
/// # Errors
/// Returns an error if the crypto provider does not support these versions, which aws-lc-rs does.
pub fn https(certificate: Arc<Certificate>, callers: Option<Arc<Callers>>) -> Result<Https, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = match &callers {
        Some(callers) => builder.with_client_cert_verifier(callers.clone()),
        None => builder.with_no_client_auth(),
    }
    .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if callers.is_some() {
        // A resumed session is not verified again, so a removed CA would still be accepted.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Https::new(Arc::new(config), callers))
}
