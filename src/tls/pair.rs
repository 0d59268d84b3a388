//! A certificate chain with its key, checked to belong together.

use std::sync::Arc;

use std::time::Duration;

use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate};

use super::issue::SubjectName;

/// Why two texts are not a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The certificate text is no PEM chain.
    #[error("the certificate is not PEM, or there is none in it: {0}")]
    Certificate(String),
    /// The key text is no PEM key.
    #[error("the private key is not PEM (PKCS#8, SEC1 or PKCS#1), or there is none in it: {0}")]
    Key(String),
    /// The key does not belong to the certificate.
    #[error("the private key does not belong to the certificate: {0}")]
    Mismatch(String),
}

/// A certificate chain with its key.
#[derive(Clone, Debug)]
pub struct Pair {
    pub(super) key: Arc<CertifiedKey>,
    not_before: Timestamp,
    not_after: Timestamp,
    names: Vec<String>,
    subject: String,
}

impl Pair {
    /// Reads a chain (leaf first) and its key from PEM, and checks that they belong together.
    ///
    /// # Errors
    /// If either cannot be read, or they do not belong together. A half-written file ends here.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, PairError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(|error| PairError::Certificate(error.to_string()))?;
        let leaf = chain.first().ok_or_else(|| PairError::Certificate("no CERTIFICATE block".to_owned()))?;
        let facts = Facts::of(leaf)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| PairError::Key(error.to_string()))?;
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => PairError::Mismatch(error.to_string()),
            other => PairError::Key(other.to_string()),
        })?;
        let Facts { not_before, not_after, names, subject, .. } = facts;
        Ok(Self { key: Arc::new(key), not_before, not_after, names, subject })
    }

    /// From when the leaf is valid.
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

    /// Whether less than a third of the leaf's life is left.
    pub fn is_due(&self, now: Timestamp) -> bool {
        is_due(self.not_before, self.not_after, now)
    }

    /// Whether `now` is within the leaf's life.
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// Whether every one of `names` is in the leaf.
    pub fn covers(&self, names: &[SubjectName]) -> bool {
        names.iter().all(|name| self.names.contains(&name.to_string()))
    }

    /// Whether `other` has the same chain.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.key.cert == other.key.cert
    }

    /// The leaf itself.
    pub(super) fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.key.cert.first()
    }

    /// Whether a caller that trusts the certificates of `pem` alone takes the chain at `now`: one of them signed it, or is the
    /// leaf itself. Names are not looked at.
    pub fn is_trusted_with(&self, pem: &str, now: Timestamp) -> bool {
        let trusted = super::certificates(pem);
        let itself = self.is_valid_at(now) && self.leaf().is_some_and(|leaf| trusted.contains(leaf));
        itself || self.is_trusted_by(&trusted, now)
    }

    /// Whether a caller that trusts `roots` alone takes the chain at `now`. Names are not looked at.
    pub(super) fn is_trusted_by<'a>(
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

/// Whether less than a third of a life is left.
pub(super) fn is_due(not_before: Timestamp, not_after: Timestamp, now: Timestamp) -> bool {
    let life = not_after.as_second() - not_before.as_second();
    not_after.as_second() - now.as_second() < life / 3
}

/// What a certificate says.
pub(super) struct Facts {
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
    pub(super) is_ca: bool,
    names: Vec<String>,
    pub(super) subject: String,
}

impl Facts {
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Self, PairError> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|error| PairError::Certificate(error.to_string()))?;
        let alternatives = parsed.extensions().iter().filter_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
            _ => None,
        });
        let names = alternatives.flatten().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => address(bytes),
            _ => None,
        });
        Ok(Self {
            not_before: moment(parsed.validity().not_before),
            not_after: moment(parsed.validity().not_after),
            is_ca: parsed.is_ca(),
            names: names.collect(),
            subject: parsed.subject().to_string(),
        })
    }
}

fn moment(time: x509_parser::time::ASN1Time) -> Timestamp {
    Timestamp::from_second(time.timestamp()).unwrap_or(Timestamp::MAX)
}

fn address(bytes: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|octets| std::net::Ipv4Addr::from(octets).to_string());
    v4.ok().or_else(|| <[u8; 16]>::try_from(bytes).map(|octets| std::net::Ipv6Addr::from(octets).to_string()).ok())
}
