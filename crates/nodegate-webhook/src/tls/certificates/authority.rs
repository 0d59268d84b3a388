//! A CA certificate, as people compare it.

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;

use crate::tls::certificates::x509::{Fields, fingerprint};

/// A CA certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Its subject.
    pub subject: String,
    /// The start of its validity.
    pub not_before: Timestamp,
    /// When it expires.
    pub not_after: Timestamp,
    /// Its SHA-256 fingerprint, as `openssl x509 -fingerprint -sha256` prints it.
    pub fingerprint: String,
}

impl Authority {
    /// Parses a certificate.
    ///
    /// # Errors
    /// Returns an error if it is not a valid X.509 certificate.
    pub(in crate::tls) fn read(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let Fields { subject, not_before, not_after, is_ca: _, names: _, version: _ } = Fields::read(certificate)?;
        Ok(Self { subject, not_before, not_after, fingerprint: fingerprint(certificate) })
    }
}
