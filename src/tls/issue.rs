//! Certificates of our own: a CA that is kept, and leaves that are renewed from it.

use std::net::IpAddr;
use std::str::FromStr;

use jiff::{Span, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};

use super::pair::PairError;

/// How long a CA is valid, in hours (ten years).
pub(super) const CA_HOURS: i64 = 10 * 365 * 24;
/// How long a leaf is valid, in hours (ninety days).
pub(super) const LEAF_HOURS: i64 = 90 * 24;
/// How far before now a certificate begins, in hours: clocks of a cluster differ.
const EARLIER_HOURS: i64 = 1;

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("could not issue a certificate: {0}")]
pub struct IssueError(String);

impl From<rcgen::Error> for IssueError {
    fn from(error: rcgen::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<PairError> for IssueError {
    fn from(error: PairError) -> Self {
        Self(error.to_string())
    }
}

impl From<jiff::Error> for IssueError {
    fn from(error: jiff::Error) -> Self {
        Self(error.to_string())
    }
}

/// A name a server is reached by: a DNS name or an IP address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SubjectName {
    /// A DNS name.
    Dns(String),
    /// An IP address.
    Ip(IpAddr),
}

impl FromStr for SubjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        let plain = !text.is_empty()
            && text.len() <= 253
            && text.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'*'));
        if plain {
            Ok(Self::Dns(text.to_owned()))
        } else {
            Err(format!("{text:?} is neither a DNS name nor an IP address"))
        }
    }
}

impl std::fmt::Display for SubjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dns(name) => f.write_str(name),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

/// A certificate and its key in PEM.
#[derive(Clone)]
pub(super) struct Pem {
    pub(super) certificate: String,
    pub(super) key: String,
}

fn params(name: &str, now: Timestamp, hours: i64) -> Result<CertificateParams, IssueError> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    let moment = |at: Timestamp| {
        time::OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|error| IssueError(error.to_string()))
    };
    params.not_before = moment(now.checked_sub(Span::new().hours(EARLIER_HOURS))?)?;
    params.not_after = moment(now.checked_add(Span::new().hours(hours))?)?;
    Ok(params)
}

/// Makes a CA: P-256, random serial number.
pub(super) fn ca(now: Timestamp) -> Result<Pem, IssueError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    // The moment in the name tells two CAs of one place apart.
    let mut params = params(&format!("nodegate CA {now:.0}"), now, CA_HOURS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    Ok(Pem { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Makes a leaf for `names`, signed by the CA: P-256, random serial number. Never outlives the CA.
pub(super) fn leaf(
    ca: &Pem,
    ca_not_after: Timestamp,
    names: &[SubjectName],
    now: Timestamp,
) -> Result<Pem, IssueError> {
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, KeyPair::from_pem(&ca.key)?)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let hours = LEAF_HOURS.min((ca_not_after.as_second() - now.as_second()) / 3600);
    let mut params = params("nodegate", now, hours)?;
    for name in names {
        params.subject_alt_names.push(match name {
            SubjectName::Dns(name) => SanType::DnsName(name.as_str().try_into()?),
            SubjectName::Ip(address) => SanType::IpAddress(*address),
        });
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Pem { certificate: certificate.pem(), key: key.serialize_pem() })
}
