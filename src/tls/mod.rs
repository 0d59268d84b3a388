//! HTTPS: certificates are issued, kept in a directory or in one bundle, rotated, reloaded and served;
//! connections are accepted, bounded and drained.
//!
//! TLS 1.2 and 1.3 by rustls with aws-lc-rs. This layer knows nothing of what is served.

mod bundle;
mod callers;
mod connections;
mod directory;
mod issue;
mod listen;
mod pair;
mod rotate;
mod socket;
mod watch;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;

pub use bundle::{Bundle, Phase, Unusable, certificates};
pub use callers::{Callers, CallersError, Refusal};
pub use connections::RequestBody;
pub use directory::{Directory, DirectoryError, DirectoryOwner};
pub use issue::{IssueError, SubjectName};
pub use listen::{Drained, Https, Limits, Protocol, serve};
pub use pair::{Pair, PairError};
pub use rotate::{Change, PROPAGATION, Step, step};
pub use socket::bind;
pub use watch::{watch, watch_callers};

/// What happens in here, for metrics and logs.
#[derive(Clone, Debug)]
pub enum Event {
    /// Another certificate is served from now on.
    Reloaded {
        /// When it expires.
        not_after: Timestamp,
    },
    /// The files are no usable pair; the last good one is still served.
    ReloadFailed {
        /// Why.
        error: String,
    },
    /// The leaf was issued anew from the kept CA.
    Renewed {
        /// When the new one expires.
        not_after: Timestamp,
    },
    /// A connection was accepted.
    Opened,
    /// A connection ended.
    Closed,
    /// A connection ended to make room for another.
    ConnectionEnded,
    /// A connection was refused: every other one had a request that was being answered.
    ConnectionRefused,
    /// A handshake failed or took too long.
    HandshakeFailed,
    /// A handshake failed because of the caller's certificate; [`Event::HandshakeFailed`] comes as well.
    CallerRefused(Refusal),
    /// Other CAs of callers are trusted from now on.
    CallersReloaded,
    /// The file of callers' CAs cannot be used; the last good ones are still trusted.
    CallersReloadFailed {
        /// Why.
        error: String,
    },
    /// `accept` failed; the loop backs off.
    AcceptFailed {
        /// Why.
        error: String,
    },
}

/// Gets every [`Event`].
pub type Observer = Arc<dyn Fn(Event) + Send + Sync>;

/// The certificate that is served now; swapped without dropping a connection. Until there is one, handshakes fail.
#[derive(Debug, Default)]
pub struct Certificate(ArcSwapOption<Pair>);

impl Certificate {
    /// Starts with `pair`.
    pub fn new(pair: Pair) -> Arc<Self> {
        Arc::new(Self(ArcSwapOption::from_pointee(pair)))
    }

    /// Serves `pair` from now on. Connections that are open keep theirs.
    pub fn swap(&self, pair: Pair) {
        self.0.store(Some(Arc::new(pair)));
    }

    /// The pair served now.
    pub fn current(&self) -> Option<Arc<Pair>> {
        self.0.load_full()
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().as_ref().map(|pair| pair.key.clone())
    }
}

/// HTTPS: TLS 1.2 and 1.3, HTTP/1.1 by ALPN; client certificates are asked for when `callers` says who may call.
///
/// # Errors
/// If the crypto provider does not support these versions, which aws-lc-rs does.
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
        // A session that is taken up again is not verified again, so a CA that was withdrawn would go on admitting.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Https::new(Arc::new(config), callers))
}
