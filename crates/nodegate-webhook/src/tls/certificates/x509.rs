//! The fields of a certificate.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate};

/// The X.509 version of certificates that have extensions.
pub(in crate::tls) const VERSION: u32 = 3;

/// The fields of a certificate that nodegate uses.
pub(in crate::tls) struct Fields {
    pub(in crate::tls) not_before: Timestamp,
    pub(in crate::tls) not_after: Timestamp,
    pub(in crate::tls) is_ca: bool,
    /// DNS names and IP addresses among the subject alternative names.
    pub(in crate::tls) names: Vec<String>,
    pub(in crate::tls) subject: String,
    /// The X.509 version. Only those of version 3 have alternative names, and say whether they are a CA.
    pub(in crate::tls) version: u32,
}

impl Fields {
    /// Parses a certificate.
    ///
    /// # Errors
    /// Returns an error if it is not a valid X.509 certificate.
    pub(in crate::tls) fn read(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
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
            version: parsed.version().0.saturating_add(1),
        })
    }
}

/// The SHA-256 fingerprint of a certificate, as `openssl x509 -fingerprint -sha256` prints it.
pub(in crate::tls) fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let mut text = String::new();
    for (at, byte) in digest(&SHA256, certificate).as_ref().iter().enumerate() {
        let separator = if at == 0 { "" } else { ":" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{byte:02X}");
    }
    text
}

fn moment(time: x509_parser::time::ASN1Time) -> Timestamp {
    Timestamp::from_second(time.timestamp()).unwrap_or(Timestamp::MAX)
}

fn address(bytes: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|octets| std::net::Ipv4Addr::from(octets).to_string());
    v4.ok().or_else(|| <[u8; 16]>::try_from(bytes).map(|octets| std::net::Ipv6Addr::from(octets).to_string()).ok())
}
