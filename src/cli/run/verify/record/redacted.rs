//! Texts of a cluster without what is private in them.
//!
//! What a recording has is a [`Redacted`], and only [`Pseudonyms`] makes one. A text is its words (runs of letters and digits) and
//! what is between them. A word that is not [public](super::words) is replaced by a pseudonym of the same length, the same one
//! wherever the word is. So a text keeps its shape, and what is equal in two texts stays equal. What nobody has thought of is
//! replaced.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::Ipv6Addr;

use serde::{Serialize, Serializer};

use super::words::is_public;

/// Maximum length of a text, in bytes; a longer one is left out. Names and label values have at most 253, credentials often more.
const TEXT_MAX: usize = 256;
/// What stands for a text that is left out.
const LEFT_OUT: &str = "left-out";
/// What is written for a character between words that is not printable ASCII.
const NOT_PRINTABLE: char = '-';
/// The suffixes of quantities (`k8s.io/apimachinery/pkg/api/resource`).
const SUFFIXES: [&str; 14] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti"];

/// A text without what is private in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Redacted(String);

impl fmt::Display for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Redacted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// The characters of pseudonyms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alphabet {
    /// For decimal and hexadecimal numbers: pseudonyms are valid as both.
    Digits,
    /// For all other words.
    Letters,
}

impl Alphabet {
    /// That of the pseudonym for a word in lower case.
    fn of(word: &str) -> Self {
        let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
        let is_number = has_digit && word.len() > 3 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_number { Self::Digits } else { Self::Letters }
    }

    /// A number in this alphabet, with leading zeros; longer if it does not fit.
    fn write(self, mut number: u64, length: usize) -> String {
        let (base, zero) = match self {
            Self::Digits => (10, b'0'),
            Self::Letters => (26, b'a'),
        };
        let mut written = Vec::new();
        while number > 0 || written.len() < length {
            let digit = u8::try_from(number % base).unwrap_or_default();
            written.push(char::from(zero + digit));
            number /= base;
        }
        written.iter().rev().collect()
    }
}

/// What stands for what, in one recording.
#[derive(Debug, Default)]
pub(super) struct Pseudonyms {
    /// Words in lower case; the pseudonyms stand for themselves, so a redacted text is redacted to itself.
    words: HashMap<String, String>,
    used: BTreeMap<(Alphabet, usize), u64>,
    /// IPv4 addresses.
    addresses: HashMap<[u8; 4], [u8; 4]>,
}

impl Pseudonyms {
    /// A text, redacted.
    pub(super) fn text(&mut self, text: &str) -> Redacted {
        if text.len() > TEXT_MAX {
            return Redacted(LEFT_OUT.to_owned());
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            return Redacted(self.address_of_16_bytes(text));
        }
        let parts = parts(text);
        let (mut written, mut at) = (String::new(), 0);
        while let Some(part) = parts.get(at) {
            if let Some((address, separator)) = address(&parts, at) {
                let octets = self.address(address).map(|octet| octet.to_string());
                written.push_str(&octets.join(separator));
                at += 7;
                continue;
            }
            match is_word(part) {
                true => written.push_str(&self.word(part)),
                false => written.extend(part.chars().map(|c| if c.is_ascii_graphic() { c } else { NOT_PRINTABLE })),
            }
            at += 1;
        }
        Redacted(written)
    }

    /// A key of what an authenticator adds about a user. It is a part of the authenticator, and what presets look for, so it stays.
    pub(super) fn key_of_extra(&mut self, key: &str) -> Redacted {
        let is_key = key.len() <= TEXT_MAX && key.bytes().all(|byte| byte.is_ascii_graphic());
        if is_key { Redacted(key.to_owned()) } else { self.text(key) }
    }

    fn word(&mut self, word: &str) -> String {
        if is_public(word) {
            return word.to_owned();
        }
        let known = word.to_lowercase();
        let pseudonym = match self.words.get(&known) {
            Some(pseudonym) => pseudonym.clone(),
            None => self.new_word(known),
        };
        let is_upper = word.chars().any(char::is_uppercase) && !word.chars().any(char::is_lowercase);
        if is_upper { pseudonym.to_ascii_uppercase() } else { pseudonym }
    }

    fn new_word(&mut self, word: String) -> String {
        let (alphabet, length) = (Alphabet::of(&word), word.chars().count());
        let used = self.used.entry((alphabet, length)).or_default();
        let pseudonym = loop {
            *used += 1;
            let pseudonym = alphabet.write(*used, length);
            if pseudonym != word && !is_public(&pseudonym) && !self.words.contains_key(&pseudonym) {
                break pseudonym;
            }
        };
        self.words.insert(pseudonym.clone(), pseudonym.clone());
        self.words.insert(word, pseudonym.clone());
        pseudonym
    }

    /// Addresses of 2001:db8::/32, which nobody has (RFC 3849), stand for others.
    fn address_of_16_bytes(&mut self, address: &str) -> String {
        let number = self.words.len() + 1;
        let pseudonym =
            self.words.entry(address.to_lowercase()).or_insert_with(|| format!("2001:db8::{number:x}")).clone();
        self.words.insert(pseudonym.clone(), pseudonym.clone());
        pseudonym
    }

    /// Addresses of 198.18.0.0/15, which nobody has (RFC 2544), stand for others.
    fn address(&mut self, address: [u8; 4]) -> [u8; 4] {
        if let Some(known) = self.addresses.get(&address) {
            return *known;
        }
        let number = u16::try_from(self.addresses.len() / 2 + 1).unwrap_or(u16::MAX);
        let [high, low] = number.to_be_bytes();
        let pseudonym = [198, 18, high, low];
        self.addresses.insert(pseudonym, pseudonym);
        self.addresses.insert(address, pseudonym);
        pseudonym
    }
}

/// A quantity as it is: what a machine has is not private. `None` if it is none.
pub(super) fn quantity(text: &str) -> Option<Redacted> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (_, suffix) = text.split_at(number.len());
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    (is_number && text.len() <= 32 && SUFFIXES.contains(&suffix)).then(|| Redacted(text.to_owned()))
}

fn is_word(part: &str) -> bool {
    part.starts_with(char::is_alphanumeric)
}

/// Words, and what is between them.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_alike = |c: char| c.is_alphanumeric() == first.is_alphanumeric();
        let end = rest.find(|c| !is_alike(c)).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        parts.push(part);
        rest = after;
    }
    parts
}

/// The IPv4 address that begins with a part, and its separator: four numbers, as in `10.0.0.1` and `ip-10-0-0-1`.
fn address<'t>(parts: &[&'t str], at: usize) -> Option<([u8; 4], &'t str)> {
    let octet = |at: usize| {
        let part = parts.get(at)?;
        let is_number = part.len() <= 3 && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u8>().ok().filter(|_| is_number)
    };
    let separator = *parts.get(at + 1)?;
    let is_separated = (at + 1..at + 7).step_by(2).all(|at| parts.get(at) == Some(&separator));
    let octets = [octet(at)?, octet(at + 2)?, octet(at + 4)?, octet(at + 6)?];
    (matches!(separator, "." | "-" | "_") && is_separated).then_some((octets, separator))
}
