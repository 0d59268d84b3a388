//! The bootstrap of a kubelet: who asked for its first certificate, from which its later ones descend by renewal.
//!
//! A CertificateSigningRequest has what the API server authenticated about its creator. At a TLS bootstrap that is the user and the
//! groups of a bootstrap token; a renewal is made by the kubelet itself, with the certificate before.

use std::sync::Arc;

use crate::api::state::{Bootstrap, BootstrapDocument, SavedState};

/// The key of extra information with the fingerprint of the requester's client certificate (Kubernetes 1.32,
/// `k8s.io/apiserver/pkg/authentication/user`, `CredentialIDKey`).
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// What its value begins with for a client certificate; the SHA-256 of the DER form follows, in lower-case hexadecimal digits.
const X509: &str = "X509SHA256=";
/// What the user name of a bootstrap token begins with; its ID follows.
const TOKEN_USER: &str = "system:bootstrap:";
/// The groups of everyone who asks with a bootstrap token. They prove nothing.
pub(crate) const GROUPS_OF_EVERY_TOKEN: [&str; 2] = ["system:bootstrappers", "system:authenticated"];
/// Maximum number of groups that are kept, and their total length in bytes. A user with more of them proves nothing.
const GROUPS_MAX: (usize, usize) = (64, 8192);

/// Who asked for the first certificate of a kubelet.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Bootstrapper {
    user: Box<str>,
    groups: Vec<Box<str>>,
}

impl Bootstrapper {
    /// A user with these groups; those of every bootstrap token are left out. `None` if there are too many.
    pub fn new<'t>(user: &str, groups: impl IntoIterator<Item = &'t str>) -> Option<Self> {
        let telling = groups.into_iter().filter(|group| !GROUPS_OF_EVERY_TOKEN.contains(group));
        let mut groups: Vec<Box<str>> = telling.map(Into::into).collect();
        groups.sort_unstable();
        groups.dedup();
        let length: usize = user.len() + groups.iter().map(|group| group.len()).sum::<usize>();
        (groups.len() <= GROUPS_MAX.0 && length <= GROUPS_MAX.1).then(|| Self { user: user.into(), groups })
    }

    /// Who asked for the certificate with this fingerprint according to the record of its node.
    pub fn recorded(saved: &SavedState, certificate: &str) -> Option<Arc<Self>> {
        let asserted = saved.asserted.iter().flat_map(|asserted| &asserted.certificates);
        let mut all = saved.bootstrapped_by.iter().chain(asserted);
        let found = all.find(|one| one.has(certificate))?;
        Self::of(found).map(Arc::new)
    }

    /// Who asked for recorded certificates. `None` if there is too much to know of them.
    pub(crate) fn of(known: &Bootstrap) -> Option<Self> {
        Self::new(known.user(), known.groups().iter().map(|group| &**group))
    }

    /// Whether they asked for these certificates.
    pub fn is_of(&self, known: &Bootstrap) -> bool {
        *known.user() == *self.user && known.groups().iter().map(|group| &**group).eq(self.groups())
    }

    /// As a record has them, without certificates.
    pub fn to_record(&self) -> Bootstrap {
        let (user, groups) = (self.user.clone(), self.groups.as_slice().into());
        BootstrapDocument { user, groups, certificates: Vec::new() }.into()
    }

    /// The name of the user.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The groups, sorted.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|group| &**group)
    }

    /// The ID of the bootstrap token, if it was one.
    pub(crate) fn token(&self) -> Option<&str> {
        self.user.strip_prefix(TOKEN_USER)
    }
}

/// The fingerprint in the ID of a credential; `None` if that is no client certificate.
pub fn certificate_of(credential_id: &str) -> Option<&str> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    credential_id.strip_prefix(X509).filter(|digits| digits.len() == 64 && digits.bytes().all(is_digit))
}

/// The ID of the credential that is the client certificate with this fingerprint.
pub(crate) fn credential_id(certificate: &str) -> String {
    format!("{X509}{certificate}")
}
