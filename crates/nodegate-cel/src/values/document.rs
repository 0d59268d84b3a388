//! The parts of a document that expressions read, taken out of its text.
//!
//! No tree of the document is built. What no expression reads is skipped as text, whatever its size and nesting; what is
//! read is borrowed, and counted in bytes against the [`Budget`]. A part that is too large, or nested too
//! deep, is not there at all: an expression that reads it has no answer, others are not affected.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::limits::{MAX_DEPTH, Unread};
use crate::values::paths::Paths;
use crate::values::steps::Budget;
use crate::values::value::{Text, Value};

/// Takes `paths` out of the JSON at the start of `text`. What follows it is not looked at.
///
/// # Errors
/// If the text is not JSON.
pub(crate) fn read<'a>(text: &'a str, paths: &Paths, budget: &Budget) -> Result<Value<'a>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    Part { wanted: Some(paths), depth: 0, budget }.deserialize(&mut deserializer)
}

/// What the lists and maps of a value take, in bytes.
pub(crate) fn size(value: &Value<'_>) -> usize {
    match value {
        Value::List(items) => CONTAINER + items.iter().map(|item| ITEM + size(&item)).sum::<usize>(),
        Value::Map(map) => CONTAINER + map.entries().iter().map(|(_, value)| ENTRY + size(value)).sum::<usize>(),
        _ => 0,
    }
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
        while let Some(name) = map.next_key::<Name<'de>>()? {
            let Some(paths) = wanted.get(&*name.0) else {
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
        while let Some(name) = map.next_key::<Name<'de>>()? {
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
fn key(Name(name): Name<'_>) -> (usize, Text<'_>) {
    match name {
        Cow::Borrowed(name) => (0, Text::Borrowed(name)),
        Cow::Owned(name) => (name.len(), Text::Shared(name.into())),
    }
}

/// The name of a field, borrowed where it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
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
