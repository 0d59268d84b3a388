//! Texts of hexadecimal digits, of which a record has many, in half of their length or less.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The uid of an object. Nearly all are UUIDs in lower case (RFC 9562), of which the bytes are kept; any other text is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Uid(Digits<16>);

/// The SHA-256 of a certificate, in lower-case digits; any other text is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(Digits<32>);

/// Before which of the bytes of a UUID there is a hyphen.
const HYPHENS: &[usize] = &[4, 6, 8, 10];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Digits<const BYTES: usize> {
    Bytes([u8; BYTES]),
    Other(Box<str>),
}

impl<const BYTES: usize> Digits<BYTES> {
    fn read(text: &str, hyphens: &[usize]) -> Self {
        bytes_of(text, hyphens).map_or_else(|| Self::Other(text.into()), Self::Bytes)
    }

    fn is(&self, text: &str, hyphens: &[usize]) -> bool {
        match self {
            Self::Bytes(bytes) => bytes_of(text, hyphens).is_some_and(|others: [u8; BYTES]| others == *bytes),
            Self::Other(own) => **own == *text,
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, hyphens: &[usize]) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.iter().enumerate().try_for_each(|(at, byte)| {
                let hyphen = if hyphens.contains(&at) { "-" } else { "" };
                write!(f, "{hyphen}{byte:02x}")
            }),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// The SHA-256 that a text has in lower-case digits.
pub fn sha256_of(digits: &str) -> Option<[u8; 32]> {
    bytes_of(digits, &[])
}

/// The bytes of a text with two lower-case digits for each, and hyphens before some of them.
fn bytes_of<const BYTES: usize>(text: &str, hyphens: &[usize]) -> Option<[u8; BYTES]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut rest = text.bytes();
    let mut bytes = [0; BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        if hyphens.contains(&at) && rest.next()? != b'-' {
            return None;
        }
        *byte = (digit(rest.next()?)? << 4) | digit(rest.next()?)?;
    }
    rest.next().is_none().then_some(bytes)
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(Digits::read(text, HYPHENS))
    }
}

impl From<String> for Uid {
    fn from(text: String) -> Self {
        Self::from(&*text)
    }
}

impl From<Uid> for String {
    fn from(uid: Uid) -> Self {
        uid.to_string()
    }
}

impl PartialEq<str> for Uid {
    fn eq(&self, text: &str) -> bool {
        self.0.is(text, HYPHENS)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, HYPHENS)
    }
}

impl From<&str> for Fingerprint {
    fn from(text: &str) -> Self {
        Self(Digits::read(text, &[]))
    }
}

impl PartialEq<str> for Fingerprint {
    fn eq(&self, text: &str) -> bool {
        self.0.is(text, &[])
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_the_text_that_was_read() {
        let uuid = "3f2a1b0c-5d4e-4f6a-8b7c-0123456789ab";
        let others = [
            "",
            "n",
            "3F2A1B0C-5D4E-4F6A-8B7C-0123456789AB",
            "3f2a1b0c5d4e4f6a8b7c0123456789ab",
            "3f2a1b0c-5d4e-4f6a-8b7c-0123456789a",
            "3f2a1b0c-5d4e-4f6a-8b7c-0123456789abc",
            "3f2a1b0c-5d4e-4f6a-8b7c0-123456789ab",
            "3f2a1b0c-5d4e-4f6a-8b7c-0123456789ä",
        ];
        for text in others.into_iter().chain([uuid]) {
            let uid = Uid::from(text);
            assert_eq!((uid.to_string().as_str(), uid == *text), (text, true));
            assert!(uid != *"3f2a1b0c-5d4e-4f6a-8b7c-0123456789ac", "{text}");
            assert_eq!(matches!(uid.0, Digits::Bytes(_)), text == uuid, "{text}");
        }
        assert_eq!(size_of::<Option<Uid>>(), size_of::<Option<String>>(), "and nothing beside it");
    }

    #[test]
    fn a_fingerprint_is_the_text_that_was_read() {
        let digits = "0123456789abcdef".repeat(4);
        for text in ["", "0123", &digits.to_uppercase(), &format!("{digits}0"), &digits] {
            let fingerprint = Fingerprint::from(text);
            assert_eq!((fingerprint.to_string().as_str(), fingerprint == *text), (text, true));
            assert_eq!(matches!(fingerprint.0, Digits::Bytes(_)), text == digits, "{text}");
        }
    }
}
