//! The values expressions compute with.
//!
//! A value borrows from the text of the document it was read from wherever it can. Maps are always walked in the order of their keys, so that an
//! expression gives the same answer every time.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::limits::Unread;
use crate::values::opaque::Opaque;
use crate::values::time::{Duration, Timestamp};

/// What an expression computes with.
#[derive(Clone, Debug)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Arc<[u8]>),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Arc<Value<'a>>>),
    Duration(Duration),
    Timestamp(Timestamp),
    /// A quantity, version, address…: a type of Kubernetes' function library.
    Opaque(Arc<Opaque>),
    /// A part of a document that was not read. It lies in no other value that is evaluated: asking for it is an error.
    Unread(Unread),
}

/// Text, borrowed from a document or an expression, or made by a function.
#[derive(Clone, Debug)]
pub(crate) enum Text<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

/// A list, read from a document or made by an expression.
#[derive(Clone, Debug)]
pub(crate) struct List<'a>(Arc<[Value<'a>]>);

/// A map, read from a document or made by an expression.
#[derive(Clone, Debug)]
pub(crate) enum Map<'a> {
    /// In the order of its keys, each once.
    Read(Arc<[(Text<'a>, Value<'a>)]>),
    Shared(Arc<BTreeMap<Key<'a>, Value<'a>>>),
}

/// The key of a map. Signed and unsigned numbers of the same value are the same key: `Uint` holds
/// only what does not fit into `Int`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key<'a> {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Text(Text<'a>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text<'_> {}

impl PartialOrd for Text<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Text::Borrowed(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(Text::Shared(text.into()))
    }
}

impl From<Opaque> for Value<'_> {
    fn from(opaque: Opaque) -> Self {
        Self::Opaque(Arc::new(opaque))
    }
}

impl<'a> From<Vec<Value<'a>>> for Value<'a> {
    fn from(items: Vec<Value<'a>>) -> Self {
        // An empty one needs no memory of its own.
        Self::List(List(if items.is_empty() { Arc::default() } else { items.into() }))
    }
}

impl<'a> From<Vec<(Text<'a>, Value<'a>)>> for Value<'a> {
    /// Entries in the order of their keys, each once.
    fn from(entries: Vec<(Text<'a>, Value<'a>)>) -> Self {
        // An empty one needs no memory of its own.
        Self::Map(Map::Read(if entries.is_empty() { Arc::default() } else { entries.into() }))
    }
}

impl<'a> From<BTreeMap<Key<'a>, Value<'a>>> for Value<'a> {
    fn from(entries: BTreeMap<Key<'a>, Value<'a>>) -> Self {
        Self::Map(Map::Shared(Arc::new(entries)))
    }
}

impl<'a> Value<'a> {
    /// An optional that holds `value`.
    pub(crate) fn some(value: Value<'a>) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// A field of a part of a document.
    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        let Self::Map(Map::Read(entries)) = self else { return None };
        let at = entries.binary_search_by(|(key, _)| (**key).cmp(name)).ok()?;
        entries.get(at).map(|(_, value)| value)
    }

    /// A part of a document with another field. What is no map becomes one; what was not read stays so.
    #[must_use]
    pub(crate) fn with_field(self, name: &'a str, value: Self) -> Self {
        let entries = match &self {
            Self::Unread(_) => return self,
            Self::Map(Map::Read(entries)) => &entries[..],
            _ => &[],
        };
        let at = entries.partition_point(|(key, _)| **key < *name);
        let (before, behind) = entries.split_at(at);
        let behind = behind.iter().skip_while(|(key, _)| **key == *name);
        let field = (Text::Borrowed(name), value);
        Self::Map(Map::Read(before.iter().cloned().chain([field]).chain(behind.cloned()).collect()))
    }

    /// The key of a map or list that this value stands for when something is looked up. A double without a fraction is the
    /// number it is.
    pub(crate) fn as_key(&self) -> Option<Key<'a>> {
        match self {
            Self::Bool(value) => Some(Key::Bool(*value)),
            Self::Int(value) => Some(Key::Int(*value)),
            Self::Uint(value) => Some(i64::try_from(*value).map_or(Key::Uint(*value), Key::Int)),
            Self::Text(text) => Some(Key::Text(text.clone())),
            Self::Double(value) => whole(*value),
            _ => None,
        }
    }
}

/// The key that a number without a fraction is.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Checked.
fn whole(value: f64) -> Option<Key<'static>> {
    match value {
        // 2^63 and 2^64, which neither type holds.
        value if value.fract() != 0.0 => None,
        value if (-9.223_372_036_854_776e18..9.223_372_036_854_776e18).contains(&value) => Some(Key::Int(value as i64)),
        value if (0.0..1.844_674_407_370_955_2e19).contains(&value) => Some(Key::Uint(value as u64)),
        _ => None,
    }
}

impl<'a> From<Key<'a>> for Value<'a> {
    fn from(key: Key<'a>) -> Self {
        match key {
            Key::Bool(value) => Self::Bool(value),
            Key::Int(value) => Self::Int(value),
            Key::Uint(value) => Self::Uint(value),
            Key::Text(text) => Self::Text(text),
        }
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Uint(value) => write!(f, "{value}"),
            Self::Text(text) => write!(f, "{:?}", &**text),
        }
    }
}

impl<'a> List<'a> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<Value<'a>> {
        self.0.get(index).cloned()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Value<'a>> + '_ {
        self.0.iter().cloned()
    }
}

impl<'a> Map<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Read(entries) => entries.len(),
            Self::Shared(entries) => entries.len(),
        }
    }

    pub(crate) fn get(&self, key: &Key<'a>) -> Option<Value<'a>> {
        match (self, key) {
            (Self::Read(entries), Key::Text(text)) => {
                let at = entries.binary_search_by(|(key, _)| key.cmp(text)).ok()?;
                entries.get(at).map(|(_, value)| value.clone())
            }
            (Self::Read(_), _) => None,
            (Self::Shared(entries), key) => entries.get(key).cloned(),
        }
    }

    /// The entries in the order of their keys.
    pub(crate) fn entries(&self) -> Vec<(Key<'a>, Value<'a>)> {
        match self {
            Self::Read(entries) => entries.iter().map(|(key, value)| (Key::Text(key.clone()), value.clone())).collect(),
            Self::Shared(entries) => entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        }
    }
}
