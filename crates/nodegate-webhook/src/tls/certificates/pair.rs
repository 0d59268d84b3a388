//! A certificate chain and its key, checked to match.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;

use crate::tls::certificates::pem::{all_certificates, certificates};
use crate::tls::certificates::subject_name::SubjectName;
use crate::tls::certificates::x509::{Fields, VERSION, fingerprint};

/// Why two texts are not a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The certificate text is not a PEM chain.
    #[error("the certificate file contains no valid PEM certificate: {0}")]
    Certificate(String),
    /// The key text is not a PEM key.
    #[error("the key file contains no valid PEM private key (PKCS#8, SEC1 or PKCS#1): {0}")]
    Key(String),
    /// The key does not match the certificate.
    #[error("the private key does not match the certificate: {0}")]
    Mismatch(String),
}

/// A certificate chain and its key.
#[derive(Clone, Debug)]
pub struct Pair {
    pub(in crate::tls) key: Arc<CertifiedKey>,
    not_before: Timestamp,
    not_after: Timestamp,
    names: Vec<String>,
    subject: String,
}

impl Pair {
    /// Parses a chain (leaf first) and its key from PEM, and checks that they match.
    ///
    /// # Errors
    /// Returns an error if either is invalid, for example incomplete, or if they do not match.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, PairError> {
        let chain = all_certificates(certificate).map_err(|error| PairError::Certificate(error.to_string()))?;
        let leaf = chain.first().ok_or_else(|| PairError::Certificate("no CERTIFICATE block".to_owned()))?;
        let fields = Fields::read(leaf).map_err(PairError::Certificate)?;
        if fields.version != VERSION {
            return Err(PairError::Certificate(format!(
                "it has X.509 version {}, but TLS needs version {VERSION}; issue it again with subject alternative names, \
                 for example with openssl req -addext subjectAltName=DNS:NAME",
                fields.version
            )));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| PairError::Key(error.to_string()))?;
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => PairError::Mismatch(error.to_string()),
            other => PairError::Key(other.to_string()),
        })?;
        let Fields { not_before, not_after, names, subject, .. } = fields;
        Ok(Self { key: Arc::new(key), not_before, not_after, names, subject })
    }

    /// The start of the leaf's validity.
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// When the leaf expires.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// The leaf's subject alternative names: DNS names and IP addresses.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The leaf's subject.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The leaf's SHA-256 fingerprint, as `openssl x509 -fingerprint -sha256` prints it.
    pub fn fingerprint(&self) -> String {
        self.leaf().map(fingerprint).unwrap_or_default()
    }

    /// Whether less than a third of the leaf's lifetime is left.
    pub fn is_due(&self, now: Timestamp) -> bool {
        is_due(self.not_before, self.not_after, now)
    }

    /// Whether the leaf is valid at `now`.
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// Whether the leaf contains all of `names`.
    pub fn covers(&self, names: &[SubjectName]) -> bool {
        names.iter().all(|name| self.names.contains(&name.to_string()))
    }

    /// Whether `other` has the same chain.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.key.cert == other.key.cert
    }

    /// The leaf itself.
    pub(in crate::tls) fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.key.cert.first()
    }

    /// Whether a caller that trusts only the certificates in `pem` accepts the chain at `now`: one of them issued it,
    /// or is the leaf itself. Names are not checked.
    pub fn is_trusted_with(&self, pem: &str, now: Timestamp) -> bool {
        let trusted = certificates(pem);
        let itself = self.is_valid_at(now) && self.leaf().is_some_and(|leaf| trusted.contains(leaf));
        itself || self.is_trusted_by(&trusted, now)
    }

    /// Whether a caller that trusts only `roots` accepts the chain at `now`. Names are not checked.
    pub(in crate::tls) fn is_trusted_by<'a>(
        &self,
        roots: impl IntoIterator<Item = &'a CertificateDer<'static>>,
        now: Timestamp,
    ) -> bool {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(roots.into_iter().cloned());
        let Some((leaf, intermediates)) = self.key.cert.split_first() else { return false };
        let Ok(leaf) = ParsedCertificate::try_from(leaf) else { return false };
        let now = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0)));
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&leaf, &store, intermediates, now, algorithms).is_ok()
    }
}

/// Whether less than a third of a lifetime is left.
pub(in crate::tls) fn is_due(not_before: Timestamp, not_after: Timestamp, now: Timestamp) -> bool {
    let life = not_after.as_second() - not_before.as_second();
    not_after.as_second() - now.as_second() < life / 3
}
