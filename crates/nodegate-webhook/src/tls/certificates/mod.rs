//! Certificates: issue, read, renew and rotate them, and reload them when their files change.

pub(super) mod authority;
pub(super) mod bundle;
pub(super) mod directory;
pub(super) mod issue;
pub(super) mod pair;
pub(super) mod pem;
pub(super) mod rotate;
pub(super) mod subject_name;
pub(super) mod x509;
