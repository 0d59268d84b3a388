//! What `nodegate certs show` prints for other programs. Fields are added, never renamed.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use nodegate_webhook::tls::{Authority, DirectoryOwner, Pair};

/// The certificates of a directory.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Certificates {
    /// The directory.
    pub(super) directory: String,
    /// Who renews the certificate.
    pub(super) owner: Owner,
    /// The certificate of the webhook, the first one of `tls.crt`.
    pub(super) certificate: ServerCertificate,
    /// The CAs in `ca.crt`. Empty if the directory has no such file.
    pub(super) authorities: Vec<CaCertificate>,
}

/// Who renews a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Owner {
    /// nodegate: the directory contains `ca.key`.
    Nodegate,
    /// An external issuer. nodegate only reads the files, and reloads changes.
    External,
}

/// The certificate of the webhook.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServerCertificate {
    /// The subject.
    pub(super) subject: String,
    /// DNS names and IP addresses among the subject alternative names.
    pub(super) names: Vec<String>,
    /// The start of its validity (RFC 3339).
    pub(super) not_before: String,
    /// When it expires (RFC 3339).
    pub(super) not_after: String,
    /// Whether it has expired.
    pub(super) expired: bool,
    /// The SHA-256 fingerprint, in the form `AB:CD:…`.
    pub(super) sha256: String,
}

/// The certificate of a CA.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CaCertificate {
    /// The subject.
    pub(super) subject: String,
    /// The start of its validity (RFC 3339).
    pub(super) not_before: String,
    /// When it expires (RFC 3339).
    pub(super) not_after: String,
    /// Whether it has expired.
    pub(super) expired: bool,
    /// The SHA-256 fingerprint, in the form `AB:CD:…`.
    pub(super) sha256: String,
}

impl From<DirectoryOwner> for Owner {
    fn from(owner: DirectoryOwner) -> Self {
        match owner {
            DirectoryOwner::Nodegate => Self::Nodegate,
            DirectoryOwner::Other => Self::External,
        }
    }
}

impl ServerCertificate {
    pub(super) fn new(pair: &Pair, now: Timestamp) -> Self {
        Self {
            subject: pair.subject().to_owned(),
            names: pair.names().to_vec(),
            not_before: pair.not_before().to_string(),
            not_after: pair.not_after().to_string(),
            expired: pair.not_after() <= now,
            sha256: pair.fingerprint(),
        }
    }
}

impl CaCertificate {
    pub(super) fn new(authority: Authority, now: Timestamp) -> Self {
        let Authority { subject, not_before, not_after, fingerprint } = authority;
        Self {
            subject,
            not_before: not_before.to_string(),
            not_after: not_after.to_string(),
            expired: not_after <= now,
            sha256: fingerprint,
        }
    }
}
