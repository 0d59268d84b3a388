//! The types of Kubernetes' function library.

use std::net::IpAddr;

use crate::values::network::Cidr;
use crate::values::quantity::Quantity;
use crate::values::url::Url;

/// A value that only the functions of its type look into.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Opaque {
    Quantity(Quantity),
    /// A version without its build metadata, which Kubernetes does not compare.
    Semver(semver::Version),
    Ip(IpAddr),
    Cidr(Cidr),
    Url(Url),
    Format(Format),
}

/// What a text can be checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Dns1123Label,
    Dns1123LabelPrefix,
    Dns1123Subdomain,
    Dns1123SubdomainPrefix,
    Dns1035Label,
    Dns1035LabelPrefix,
    QualifiedName,
    LabelValue,
    Uri,
    Uuid,
    Byte,
    Date,
    Datetime,
}

impl Opaque {
    /// The bytes that a comparison looks at beyond a few.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Semver(version) => version.pre.len(),
            Self::Url(url) => url.length(),
            Self::Quantity(_) | Self::Ip(_) | Self::Cidr(_) | Self::Format(_) => 0,
        }
    }
}
