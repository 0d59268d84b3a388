//! The parts of a document that expressions read, taken out of its text.
//!
//! No tree of the document is built. What no expression reads is skipped as text, whatever its size and nesting; what is
//! read is borrowed, and counted in bytes against the [`Budget`] of the review. A part that is too large, or nested too
//! deep, is not there at all: an expression that reads it has no answer, others are not affected.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize as _, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::paths::Paths;
use super::steps::Budget;
use super::value::{Map, Text, Value};
use crate::policy::borrowed;

/// How deep values may lie inside each other. A Node has twelve levels at most.
const MAX_DEPTH: usize = 64;

/// Why a part of a document is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It takes more memory than is left to the review.
    Large,
    /// It is nested deeper than any part of a Node.
    Deep,
}

/// Parts of a document. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Excerpt<'a> {
    pub(super) value: Value<'a>,
}

/// A label, an annotation or a taint that has another value than in the document.
#[derive(Clone, Copy, Debug)]
pub enum Edit<'a> {
    /// A key of a map in `metadata`; `None`: it is absent.
    Entry {
        /// `labels` or `annotations`.
        map: &'static str,
        /// The key.
        key: &'a str,
        /// Its value.
        value: Option<&'a str>,
    },
    /// A taint; `None`: it is absent.
    Taint {
        /// The key.
        key: &'a str,
        /// The effect.
        effect: &'a str,
        /// Its value.
        value: Option<&'a str>,
    },
}

impl<'a> Excerpt<'a> {
    /// Takes `paths` out of the JSON at the start of `text`. What follows it is not looked at.
    ///
    /// # Errors
    /// If the text is not JSON.
    pub fn read(text: &'a str, paths: &Paths, budget: &Budget) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let value = Part { wanted: Some(paths), depth: 0, budget }.deserialize(&mut deserializer)?;
        Ok(Self { value })
    }

    /// What `keys` lead to; null if it is absent.
    #[must_use]
    pub fn inside(&self, keys: &[&str]) -> Self {
        let value = keys.iter().fold(&self.value, |value, key| value.field(key).unwrap_or(&Value::Null));
        Self { value: value.clone() }
    }

    /// A node with its own labels and taints, empty where absent.
    #[must_use]
    pub fn completed(&self) -> Self {
        let labels = match self.value.field("metadata").and_then(|metadata| metadata.field("labels")) {
            Some(labels @ (Value::Map(_) | Value::Unread(_))) => labels.clone(),
            _ => Value::from(Entries::new()),
        };
        let taints = match self.value.field("spec").and_then(|spec| spec.field("taints")) {
            Some(taints @ (Value::List(_) | Value::Unread(_))) => taints.clone(),
            _ => Value::from(Vec::<Value<'a>>::new()),
        };
        self.with(labels, taints)
    }

    /// A node with other labels and taints.
    pub(super) fn with(&self, labels: Value<'a>, taints: Value<'a>) -> Self {
        let part = |holder: &'static str, name, value| {
            self.value.field(holder).cloned().unwrap_or(Value::Null).with_field(name, value)
        };
        let (metadata, spec) = (part("metadata", "labels", labels), part("spec", "taints", taints));
        Self { value: self.value.clone().with_field("metadata", metadata).with_field("spec", spec) }
    }

    /// A node on which some keys have other values, as far as `paths` read them; all else is as it was read.
    #[must_use]
    pub fn edited(&self, edits: &[Edit<'a>], paths: &Paths, budget: &Budget) -> Self {
        let mut value = self.value.clone();
        for name in ["labels", "annotations"] {
            let Some(paths) = paths.member("metadata").and_then(|metadata| metadata.member(name)) else { continue };
            let changed: Vec<(&'a str, Option<&'a str>)> = edits
                .iter()
                .filter_map(|edit| match edit {
                    Edit::Entry { map, key, value } if *map == name => Some((*key, *value)),
                    Edit::Entry { .. } | Edit::Taint { .. } => None,
                })
                .collect();
            let metadata = value.field("metadata").cloned().unwrap_or(Value::Null);
            if let Some(map) = edited_map(metadata.field(name), &changed, paths, budget) {
                value = value.with_field("metadata", metadata.with_field(name, map));
            }
        }
        if paths.member("spec").is_some_and(|spec| spec.member("taints").is_some()) {
            let spec = value.field("spec").cloned().unwrap_or(Value::Null);
            if let Some(taints) = edited_taints(spec.field("taints"), edits, budget) {
                value = value.with_field("spec", spec.with_field("taints", taints));
            }
        }
        Self { value }
    }
}

/// A map with other values for some keys, as far as `paths` read them; `None` if it stays as it is.
fn edited_map<'a>(
    map: Option<&Value<'a>>,
    changed: &[(&'a str, Option<&'a str>)],
    paths: &Paths,
    budget: &Budget,
) -> Option<Value<'a>> {
    let there = match map {
        Some(Value::Unread(_)) => return None,
        Some(Value::Map(Map::Read(entries))) => &entries[..],
        // It is made by the first key that it gets.
        _ if changed.iter().all(|(_, value)| value.is_none()) => return None,
        _ => &[],
    };
    let read = changed.iter().filter(|(key, _)| paths.member(key).is_some());
    if let Err(why) = budget.take_bytes(CONTAINER + (there.len() + read.clone().count()) * ENTRY) {
        return Some(Value::Unread(why));
    }
    let mut entries: BTreeMap<Text<'a>, Value<'a>> = there.iter().cloned().collect();
    for (key, value) in read {
        match value {
            Some(value) => entries.insert(Text::Borrowed(key), Value::from(*value)),
            None => entries.remove(&Text::Borrowed(key)),
        };
    }
    Some(Value::from(entries.into_iter().collect::<Entries<'a>>()))
}

/// The taints, if an edit is about them.
fn edited_taints<'a>(taints: Option<&Value<'a>>, edits: &[Edit<'a>], budget: &Budget) -> Option<Value<'a>> {
    let mut changed: BTreeMap<(Text<'a>, Text<'a>), Option<&'a str>> = edits
        .iter()
        .filter_map(|edit| match edit {
            Edit::Taint { key, effect, value } => Some(((Text::Borrowed(key), Text::Borrowed(effect)), *value)),
            Edit::Entry { .. } => None,
        })
        .collect();
    let there = match taints {
        _ if changed.is_empty() => return None,
        Some(Value::Unread(_)) => return None,
        Some(Value::List(items)) => items.iter().collect(),
        _ => Vec::new(),
    };
    let text = |taint: &Value<'a>, name| match taint.field(name) {
        Some(Value::Text(text)) => text.clone(),
        _ => Text::Borrowed(""),
    };
    let mut taints = Vec::with_capacity(there.len());
    for taint in there {
        match changed.remove(&(text(&taint, "key"), text(&taint, "effect"))) {
            None => taints.push(taint),
            Some(Some(value)) => taints.push(taint.with_field("value", Value::from(value))),
            Some(None) => {}
        }
    }
    // Those that are left are not there.
    for ((key, effect), value) in changed {
        if let Some(value) = value {
            let fields = [("effect", Value::Text(effect)), ("key", Value::Text(key)), ("value", Value::from(value))];
            taints.push(fields.into_iter().fold(Value::Null, |taint, (name, text)| taint.with_field(name, text)));
        }
    }
    let bytes = CONTAINER + taints.len() * (ITEM + CONTAINER + 3 * ENTRY);
    Some(match budget.take_bytes(bytes) {
        Ok(()) => Value::from(taints),
        Err(why) => Value::Unread(why),
    })
}

/// What a list or a map takes beside its items, in bytes.
const CONTAINER: usize = 64;
/// What one item of a list takes: it is held twice while the list grows.
const ITEM: usize = 2 * size_of::<Value<'_>>();
/// What one entry of a map takes.
const ENTRY: usize = 2 * size_of::<(Text<'_>, Value<'_>)>();

/// One part of a document.
#[derive(Clone, Copy)]
struct Part<'p> {
    /// What is read of it; everything when `None`.
    wanted: Option<&'p Paths>,
    depth: usize,
    budget: &'p Budget,
}

impl<'p> Part<'p> {
    /// A part of this part.
    fn inner(self, wanted: Option<&'p Paths>) -> Self {
        Self { wanted, depth: self.depth + 1, ..self }
    }

    /// Text made anew, because it has escapes.
    fn text<'a>(self, text: &str) -> Value<'a> {
        match self.budget.take_bytes(text.len()) {
            Ok(()) => Value::Text(Text::Shared(text.into())),
            Err(why) => Value::Unread(why),
        }
    }

    /// Reads all items, unless there is one that cannot be read: then nothing is kept.
    fn items<'de, A: SeqAccess<'de>>(self, items: &mut A) -> Result<Result<Vec<Value<'de>>, Unread>, A::Error> {
        let mut read = Vec::new();
        if let Err(why) = self.budget.take_bytes(CONTAINER) {
            return Ok(Err(why));
        }
        while let Some(item) = items.next_element_seed(self.inner(None))? {
            match (item, self.budget.take_bytes(ITEM)) {
                (Value::Unread(why), _) | (_, Err(why)) => return Ok(Err(why)),
                (item, Ok(())) => read.push(item),
            }
        }
        Ok(Ok(read))
    }

    /// Reads the members that are wanted.
    fn members<'de, A: MapAccess<'de>>(
        self,
        wanted: &'p BTreeMap<Box<str>, Paths>,
        map: &mut A,
    ) -> Result<Entries<'de>, A::Error> {
        let mut read = Vec::new();
        while let Some(name) = map.next_key::<borrowed::Text<'de>>()? {
            let Some(paths) = wanted.get(&*name) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let value = map.next_value_seed(self.inner(Some(paths)))?;
            let (_, name) = key(name);
            match read.binary_search_by(|(there, _): &(Text<'de>, Value<'de>)| there.cmp(&name)) {
                Ok(at) => read[at].1 = value,
                Err(at) => read.insert(at, (name, value)),
            }
        }
        Ok(read)
    }

    /// A part of which nothing is kept; what was taken for it is free again.
    fn none_of_it<'a>(self, why: Unread, before: usize) -> Value<'a> {
        self.budget.set_bytes_left(before);
        Value::Unread(why)
    }

    /// Reads all entries, unless there is one that cannot be read: then nothing is kept.
    fn entries<'de, A: MapAccess<'de>>(self, map: &mut A) -> Result<Result<Entries<'de>, Unread>, A::Error> {
        let mut read = Vec::new();
        if let Err(why) = self.budget.take_bytes(CONTAINER) {
            return Ok(Err(why));
        }
        while let Some(name) = map.next_key::<borrowed::Text<'de>>()? {
            let (bytes, name) = key(name);
            let value = map.next_value_seed(self.inner(None))?;
            match (value, self.budget.take_bytes(ENTRY + bytes)) {
                (Value::Unread(why), _) | (_, Err(why)) => return Ok(Err(why)),
                (value, Ok(())) => read.push((name, value)),
            }
        }
        if !read.is_sorted_by(|(one, _), (other, _)| one < other) {
            // The last of equal keys wins.
            read.reverse();
            read.sort_by(|(one, _), (other, _)| one.cmp(other));
            read.dedup_by(|(later, _), (kept, _)| later == kept);
        }
        Ok(Ok(read))
    }
}

/// The entries of a map by key.
type Entries<'a> = Vec<(Text<'a>, Value<'a>)>;

/// The name of a field, and how many bytes it takes.
fn key(borrowed::Text(name): borrowed::Text<'_>) -> (usize, Text<'_>) {
    match name {
        Cow::Borrowed(name) => (0, Text::Borrowed(name)),
        Cow::Owned(name) => (name.len(), Text::Shared(name.into())),
    }
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = Value<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value<'de>, D::Error> {
        if self.depth > MAX_DEPTH {
            IgnoredAny::deserialize(deserializer)?;
            return Ok(Value::Unread(Unread::Deep));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value<'de>, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value<'de>, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value<'de>, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value<'de>, E> {
        Ok(i64::try_from(value).map_or(Value::Uint(value), Value::Int))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value<'de>, E> {
        Ok(Value::Double(value))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::from(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(self.text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value<'de>, A::Error> {
        let value = if self.wanted.is_some_and(Paths::is_presence) {
            Value::from(Vec::<Value<'de>>::new())
        } else {
            let before = self.budget.bytes_left();
            self.items(&mut items)?.map_or_else(|why| self.none_of_it(why, before), Value::from)
        };
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(value)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<'de>, A::Error> {
        let value = match self.wanted {
            Some(Paths::Members(wanted)) => Value::from(self.members(wanted, &mut map)?),
            Some(Paths::Whole) | None => {
                let before = self.budget.bytes_left();
                self.entries(&mut map)?.map_or_else(|why| self.none_of_it(why, before), Value::from)
            }
        };
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(value)
    }
}
