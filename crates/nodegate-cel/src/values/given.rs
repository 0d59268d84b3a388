//! Values as those see them who evaluate expressions.

use std::collections::BTreeMap;

use crate::values::document;
use crate::values::paths::Paths;
use crate::values::steps::Budget;
use crate::values::value::{Map, Text, Value as Inner};

/// A value: what variables hold, and what expressions yield. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Value<'a>(pub(crate) Inner<'a>);

impl<'a> Value<'a> {
    /// Null.
    pub const NULL: Self = Self(Inner::Null);

    /// Takes `paths` out of the JSON at the start of `text`. What follows it is not looked at.
    ///
    /// What is read is borrowed and counted against the memory of `budget`. A part that is too large, or nested too deep,
    /// is left unread: an expression that reads it fails, others are not affected.
    ///
    /// # Errors
    /// If the text is not JSON.
    pub fn read(text: &'a str, paths: &Paths, budget: &Budget) -> Result<Self, serde_json::Error> {
        document::read(text, paths, budget).map(Self)
    }

    /// A map of text keys. Of equal keys the last one counts.
    #[must_use]
    pub fn map(entries: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        let mut entries: Vec<_> = entries.into_iter().map(|(key, value)| (Text::Borrowed(key), value.0)).collect();
        if !entries.is_sorted_by(|(one, _), (other, _)| one < other) {
            entries.reverse();
            entries.sort_by(|(one, _), (other, _)| one.cmp(other));
            entries.dedup_by(|(later, _), (kept, _)| later == kept);
        }
        Self(Inner::from(entries))
    }

    /// A field of a map with text keys.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Self> {
        self.0.field(name).cloned().map(Self)
    }

    /// What `keys` lead to; null if it is absent.
    #[must_use]
    pub fn inside(&self, keys: &[&str]) -> Self {
        let value = keys.iter().fold(&self.0, |value, key| value.field(key).unwrap_or(&Inner::Null));
        Self(value.clone())
    }

    /// The same map with another field. What is no map becomes one; what was not read stays so.
    #[must_use]
    pub fn with_field(self, name: &'a str, value: Self) -> Self {
        Self(self.0.with_field(name, value.0))
    }

    /// The same map with other fields, and without those that are `None`. What is no map becomes one; what was not read
    /// stays so.
    #[must_use]
    pub fn with_fields(self, changes: impl IntoIterator<Item = (&'a str, Option<Self>)>) -> Self {
        let there = match &self.0 {
            Inner::Unread(_) => return self,
            Inner::Map(Map::Read(entries)) => &entries[..],
            _ => &[],
        };
        let mut entries: BTreeMap<Text<'a>, Inner<'a>> = there.iter().cloned().collect();
        for (key, value) in changes {
            match value {
                Some(value) => entries.insert(Text::Borrowed(key), value.0),
                None => entries.remove(&Text::Borrowed(key)),
            };
        }
        Self(Inner::from(entries.into_iter().collect::<Vec<_>>()))
    }

    /// The same value if `budget` has room for what its lists and maps take; otherwise a value that counts as not read.
    #[must_use]
    pub fn charged(self, budget: &Budget) -> Self {
        match budget.take_bytes(document::size(&self.0)) {
            Ok(()) => self,
            Err(why) => Self(Inner::Unread(why)),
        }
    }

    /// Whether this is a part of a document that was not read, because it is too large or nested too deep.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        matches!(self.0, Inner::Unread(_))
    }

    /// What an optional has, or the value itself; `None` if it is null or an optional without a value.
    #[must_use]
    pub fn content(&self) -> Option<Self> {
        match &self.0 {
            Inner::Null | Inner::Optional(None) => None,
            Inner::Optional(Some(value)) => Self((**value).clone()).content(),
            other => Some(Self(other.clone())),
        }
    }

    /// Whether this is a map.
    #[must_use]
    pub fn is_map(&self) -> bool {
        matches!(self.0, Inner::Map(_))
    }

    /// Whether this is a list.
    #[must_use]
    pub fn is_list(&self) -> bool {
        matches!(self.0, Inner::List(_))
    }

    /// The value if it is true or false.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self.0 {
            Inner::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The value if it is a whole number that fits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self.0 {
            Inner::Int(value) => Some(value),
            Inner::Uint(value) => i64::try_from(value).ok(),
            _ => None,
        }
    }

    /// The value if it is a double.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self.0 {
            Inner::Double(value) => Some(value),
            _ => None,
        }
    }

    /// The value if it is text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.0 {
            Inner::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items if this is a list.
    #[must_use]
    pub fn items(&self) -> Option<Vec<Self>> {
        match &self.0 {
            Inner::List(items) => Some(items.iter().map(Self).collect()),
            _ => None,
        }
    }

    /// The keys and values, in the order of the keys, if this is a map.
    #[must_use]
    pub fn entries(&self) -> Option<Vec<(Self, Self)>> {
        let Inner::Map(map) = &self.0 else { return None };
        Some(map.entries().into_iter().map(|(key, value)| (Self(key.into()), Self(value))).collect())
    }
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Self(Inner::Bool(value))
    }
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Self(Inner::Int(value))
    }
}

impl From<f64> for Value<'_> {
    fn from(value: f64) -> Self {
        Self(Inner::Double(value))
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self(Inner::from(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self(Inner::from(text))
    }
}

impl<'a> From<Vec<Self>> for Value<'a> {
    fn from(items: Vec<Self>) -> Self {
        Self(Inner::from(items.into_iter().map(|item| item.0).collect::<Vec<Inner<'a>>>()))
    }
}
