//! Issues certificates: a stored CA, and leaves that are renewed from it.

use jiff::{Span, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};

use crate::tls::certificates::pair::PairError;
use crate::tls::certificates::pem::Pem;
use crate::tls::certificates::subject_name::SubjectName;

/// How long a CA is valid, in hours (ten years).
pub(in crate::tls) const CA_HOURS: i64 = 10 * 365 * 24;
/// How long a leaf is valid, in hours (ninety days).
pub(in crate::tls) const LEAF_HOURS: i64 = 90 * 24;
/// How far in the past a certificate begins, in hours, because clocks in a cluster differ.
const EARLIER_HOURS: i64 = 1;

/// A certificate could not be issued.
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

/// Creates a CA: P-256, random serial number.
pub(in crate::tls) fn ca(now: Timestamp) -> Result<Pem, IssueError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    // The time in the name distinguishes two CAs of one place.
    let mut params = params(&format!("nodegate CA {now:.0}"), now, CA_HOURS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    Ok(Pem { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Creates a leaf for `names`, signed by the CA: P-256, random serial number. It never outlives the CA.
pub(in crate::tls) fn leaf(
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
