//! The names in a certificate.

use std::net::IpAddr;
use std::str::FromStr;

/// A name of a server: a DNS name or an IP address.
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
