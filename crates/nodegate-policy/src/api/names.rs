//! Label keys, label values and taints, which are validated when they are parsed.
//!
//! The rules are Kubernetes' own: `k8s.io/apimachinery/pkg/util/validation/validation.go`
//! (`IsQualifiedName`, `IsValidLabelValue`) and, for taints,
//! `k8s.io/kubernetes/pkg/apis/core/validation/validation.go` (`validateNodeTaints`).

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::problem::Problem;
use super::quote::Quoted;
use super::schema::nearest;

const PREFIX_MAX: usize = 253;
const NAME_MAX: usize = 63;
const VALUE_MAX: usize = 63;
/// Maximum length of the name of a pool, which can be the value of a label.
pub(crate) const POOL_NAME_MAX: usize = VALUE_MAX;
/// Maximum length of a key, in bytes. Those of labels and annotations have at most 317 characters in Kubernetes, and a write
/// with a longer one is refused after admission.
pub(crate) const KEY_MAX: usize = PREFIX_MAX + 1 + NAME_MAX;

/// Maximum length of the name of a policy, a rule, an inventory or an entry, in bytes, as that of an object of Kubernetes.
pub(crate) const ENTRY_NAME_MAX: usize = 253;

/// As much of a name as errors repeat. A hostile policy has a thousand errors in one rule whose name has a megabyte.
pub(crate) fn cut_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(ENTRY_NAME_MAX)]
}

/// Checks the length of a name.
///
/// # Errors
/// Returns an error if it is longer than that of any object.
pub(crate) fn check_length(name: &str) -> Result<(), Problem> {
    if name.len() <= ENTRY_NAME_MAX {
        return Ok(());
    }
    let what = format!("the name has {} bytes, but the limit is {ENTRY_NAME_MAX}", name.len());
    Err(Problem::new(what, "write a shorter name"))
}

/// Why a text is not a valid label key, label value or taint effect. [`Problem`] also says what to write instead.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NameError {
    /// The prefix (before `/`) is not a DNS subdomain of at most 253 characters.
    Prefix {
        /// The text, or the beginning of a long one.
        key: String,
        /// The part before the first `/`.
        prefix: String,
    },
    /// The name (after `/`, or all of it) is not a qualified name of at most 63 characters.
    Key {
        /// The text, or the beginning of a long one.
        key: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The value is not a label value.
    Value {
        /// The text, or the beginning of a long one.
        value: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The text is not a taint effect.
    Effect(String),
}

impl From<&NameError> for Problem {
    fn from(error: &NameError) -> Self {
        match error {
            NameError::Prefix { key, prefix } => Self::new(
                format!("{} has an invalid prefix {}", Quoted(key), Quoted(prefix)),
                format!(
                    "write a lower-case DNS subdomain of at most {PREFIX_MAX} characters before the '/', such as example.com"
                ),
            ),
            NameError::Key { key, why } => Self::new(
                format!(
                    "{} is not a valid label key: {}",
                    Quoted(key),
                    explained(key.split_once('/').map_or(key, |(_, name)| name), why)
                ),
                format!(
                    "write at most {NAME_MAX} letters, digits, '-', '_' or '.', starting and ending with a letter or digit, with an optional DNS prefix and one '/'"
                ),
            ),
            NameError::Value { value, why } => Self::new(
                format!("{} is not a valid label value: {}", Quoted(value), explained(value, why)),
                format!(
                    "write nothing, or at most {VALUE_MAX} letters, digits, '-', '_' or '.', starting and ending with a letter or digit"
                ),
            ),
            NameError::Effect(text) => Self::new(
                format!("{} is not a taint effect", Quoted(text)),
                match nearest(text, &TaintEffect::ALL.map(TaintEffect::as_str)) {
                    Some(effect) => format!("did you mean {effect}?"),
                    None => "write NoSchedule, PreferNoSchedule or NoExecute".to_owned(),
                },
            ),
        }
    }
}

impl From<NameError> for Problem {
    fn from(error: NameError) -> Self {
        Self::from(&error)
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Problem::from(self).fmt(f)
    }
}

/// As much of a text as an error keeps, in bytes. Nobody bounds a text that is refused.
const KEPT_MAX: usize = 1024;

fn begin(text: &str) -> String {
    text[..text.floor_char_boundary(KEPT_MAX)].to_owned()
}

fn is_name_character(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.')
}

const NOT_ALLOWED: &str = "it has a character that is not allowed";

/// What is wrong with a key or value, with the character that is not allowed.
fn explained(name: &str, why: &str) -> String {
    let not_allowed = |c: &char| !u8::try_from(*c).is_ok_and(is_name_character);
    match name.chars().find(not_allowed).filter(|_| why == NOT_ALLOWED) {
        Some(' ') => "it has a space".to_owned(),
        Some(c) => format!("it has the character {c:?}"),
        None => why.to_owned(),
    }
}

fn qualified_name_fault(name: &str) -> Option<&'static str> {
    let bytes = name.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => {
            if bytes.len() > NAME_MAX {
                Some("it is longer than 63 characters")
            } else if !bytes.iter().copied().all(is_name_character) {
                Some(NOT_ALLOWED)
            } else if !first.is_ascii_alphanumeric() || !last.is_ascii_alphanumeric() {
                Some("it starts or ends with a character that is not a letter or digit")
            } else {
                None
            }
        }
        _ => Some("it is empty"),
    }
}

/// Whether `text` is a DNS-1123 subdomain: what a label prefix and a Node name must be.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= PREFIX_MAX
        && text.split('.').all(|part| {
            let bytes = part.as_bytes();
            let edge = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
            edge(bytes.first())
                && edge(bytes.last())
                && bytes.iter().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'-')
        })
}

/// Checks a label (or annotation, or taint) key without allocating.
pub fn check_label_key(key: &str) -> Result<(), NameError> {
    let name = match key.split_once('/') {
        Some((prefix, _)) if !is_dns_subdomain(prefix) => {
            return Err(NameError::Prefix { key: begin(key), prefix: begin(prefix) });
        }
        Some((_, name)) => name,
        None => key,
    };
    match qualified_name_fault(name) {
        Some(why) => Err(NameError::Key { key: begin(key), why }),
        None => Ok(()),
    }
}

/// Checks a label (or taint) value without allocating.
pub fn check_label_value(value: &str) -> Result<(), NameError> {
    if value.is_empty() {
        return Ok(());
    }
    match qualified_name_fault(value) {
        Some(why) => Err(NameError::Value { value: begin(value), why }),
        None => Ok(()),
    }
}

/// The part of a label key before `/`, or `None` for a key without prefix.
pub fn prefix_of(key: &str) -> Option<&str> {
    key.split_once('/').map(|(prefix, _)| prefix)
}

macro_rules! checked_text {
    ($(#[$meta:meta])* $name:ident, $check:ident) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                $check(text).map(|()| Self(text.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

checked_text!(
    /// A label, annotation or taint key: optional DNS prefix, `/`, name.
    LabelKey,
    check_label_key
);
checked_text!(
    /// A label or taint value.
    LabelValue,
    check_label_value
);

impl LabelKey {
    /// A key that is written in the program, and that a test has found valid.
    pub(crate) fn known(key: &'static str) -> Self {
        debug_assert!(check_label_key(key).is_ok(), "{key}");
        Self(key.into())
    }
}

/// What a taint does to pods that do not tolerate it (`core/v1 TaintEffect`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaintEffect {
    /// They are not scheduled on the node.
    NoSchedule,
    /// They are scheduled on the node only if no other node fits.
    PreferNoSchedule,
    /// They are not scheduled on the node, and running ones are evicted.
    NoExecute,
}

impl TaintEffect {
    /// All effects.
    pub const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// The text Kubernetes uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

impl FromStr for TaintEffect {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text {
            "NoSchedule" => Ok(Self::NoSchedule),
            "PreferNoSchedule" => Ok(Self::PreferNoSchedule),
            "NoExecute" => Ok(Self::NoExecute),
            other => Err(NameError::Effect(begin(other))),
        }
    }
}

impl fmt::Display for TaintEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Identifies a taint: Kubernetes allows one taint per key and effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaintId {
    /// The key.
    pub key: LabelKey,
    /// The effect.
    pub effect: TaintEffect,
}

impl fmt::Display for TaintId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.key, self.effect)
    }
}

/// A taint that nodegate assigns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    /// Key and effect.
    pub id: TaintId,
    /// The value, empty if there is none.
    pub value: LabelValue,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.as_str().is_empty() {
            write!(f, "{}:{}", self.id.key, self.id.effect)
        } else {
            write!(f, "{}={}:{}", self.id.key, self.value, self.id.effect)
        }
    }
}

/// A value as a person reads it: `""` if it is empty.
pub fn or_quotes(value: &str) -> &str {
    if value.is_empty() { "\"\"" } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys_follow_kubernetes_rules() {
        for key in ["a", "gpu.count", "example.com/Name_1", "node-role.kubernetes.io/worker"] {
            assert_eq!(check_label_key(key), Ok(()), "{key}");
        }
        let long_name = "a".repeat(64);
        let long_prefix = format!("{}/a", "a".repeat(254));
        for key in ["", "/a", "a/", "Example.com/a", "a/b/c", "-a", "a-", "a b", &long_name, &long_prefix] {
            assert!(check_label_key(key).is_err(), "{key}");
        }
    }

    #[test]
    fn label_values_follow_kubernetes_rules() {
        for value in ["", "true", "A-b_c.1"] {
            assert_eq!(check_label_value(value), Ok(()), "{value}");
        }
        let long = "a".repeat(64);
        for value in ["-a", "a b", "ä", "a/b", &long] {
            assert!(check_label_value(value).is_err(), "{value}");
        }
    }
}
