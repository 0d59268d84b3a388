//! The values expressions compute with.
//!
//! A value borrows from the document it was read from wherever it can: looking at one field of a
//! node copies nothing else of it. Maps are always walked in the order of their keys, so that an
//! expression gives the same answer every time.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json};

use super::types::Type;

/// What an expression computes with.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
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
    /// A quantity, version, address, duration, time…: a type of the Kubernetes function library.
    Library(cel::Value),
}

/// Text, borrowed from a document or an expression, or made by a function.
#[derive(Clone, Debug)]
pub(super) enum Text<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

/// A list, in a document or made by an expression.
#[derive(Clone, Debug)]
pub(super) enum List<'a> {
    Json(&'a [Json]),
    Shared(Arc<[Value<'a>]>),
}

/// A map, in a document or made by an expression.
#[derive(Clone, Debug)]
pub(super) enum Map<'a> {
    Json(&'a JsonMap<String, Json>),
    Shared(Arc<BTreeMap<Key<'a>, Value<'a>>>),
}

/// The key of a map. Signed and unsigned numbers of the same value are the same key: `Uint` holds
/// only what does not fit into `Int`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key<'a> {
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

impl<'a> From<Vec<Value<'a>>> for Value<'a> {
    fn from(items: Vec<Value<'a>>) -> Self {
        Self::List(List::Shared(items.into()))
    }
}

impl<'a> From<BTreeMap<Key<'a>, Value<'a>>> for Value<'a> {
    fn from(entries: BTreeMap<Key<'a>, Value<'a>>) -> Self {
        Self::Map(Map::Shared(Arc::new(entries)))
    }
}

impl<'a> From<&'a Json> for Value<'a> {
    fn from(json: &'a Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Self::Int(value),
                (None, Some(value)) => Self::Uint(value),
                (None, None) => Self::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::from(text.as_str()),
            Json::Array(items) => Self::List(List::Json(items)),
            Json::Object(entries) => Self::Map(Map::Json(entries)),
        }
    }
}

impl<'a> Value<'a> {
    /// An optional that holds `value`.
    pub(super) fn some(value: Value<'a>) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// What kind of value this is, with its article.
    pub(super) fn noun(&self) -> String {
        Type::of(self).noun()
    }

    /// The value as the key of a map, if it may be one.
    pub(super) fn as_key(&self) -> Option<Key<'a>> {
        match self {
            Self::Bool(value) => Some(Key::Bool(*value)),
            Self::Int(value) => Some(Key::Int(*value)),
            Self::Uint(value) => Some(i64::try_from(*value).map_or(Key::Uint(*value), Key::Int)),
            Self::Text(text) => Some(Key::Text(text.clone())),
            _ => None,
        }
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
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Json(items) => items.len(),
            Self::Shared(items) => items.len(),
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<Value<'a>> {
        match self {
            Self::Json(items) => items.get(index).map(Value::from),
            Self::Shared(items) => items.get(index).cloned(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Value<'a>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

impl<'a> Map<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Json(entries) => entries.len(),
            Self::Shared(entries) => entries.len(),
        }
    }

    pub(super) fn get(&self, key: &Key<'a>) -> Option<Value<'a>> {
        match (self, key) {
            (Self::Json(entries), Key::Text(text)) => entries.get(&**text).map(Value::from),
            (Self::Json(_), _) => None,
            (Self::Shared(entries), key) => entries.get(key).cloned(),
        }
    }

    /// The entries in the order of their keys.
    pub(super) fn entries(&self) -> Vec<(Key<'a>, Value<'a>)> {
        match self {
            Self::Shared(entries) => entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            Self::Json(entries) => {
                let entries = entries.iter();
                let mut entries: Vec<_> =
                    entries.map(|(key, value)| (Key::Text(Text::Borrowed(key)), Value::from(value))).collect();
                entries.sort_by(|one, other| one.0.cmp(&other.0));
                entries
            }
        }
    }
}
