//! Answers in JSON, read without a tree of values.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::written::{NODES_MAX, Written, add, kept, too_many_nodes};

const NOT_STRINGS: &str = "it is a JSON object, but some of its values are not strings";
const NOT_OBJECTS: &str = "it is a JSON object, but not one with an object of labels for each node";

/// Why an answer is refused though it is JSON. The messages of the parser could repeat the answer.
#[derive(Default)]
struct Refusal(Cell<Option<Cow<'static, str>>>);

impl Refusal {
    /// Notes a reason, unless there is one.
    fn note(&self, why: Cow<'static, str>) {
        self.0.set(Some(self.0.take().unwrap_or(why)));
    }

    fn error<E: Error>(&self, why: Cow<'static, str>) -> E {
        self.note(why);
        E::custom("refused")
    }
}

/// The labels of one node: an object of strings, or one such object in `labels`.
pub(super) fn of_node(text: &str) -> Result<Written, Cow<'static, str>> {
    let refusal = Refusal::default();
    read(text, Labels { refusal: &refusal, nested: true }).map_err(|error| in_words(&error, &refusal, NOT_STRINGS))
}

/// Passes the labels of each node to `each`.
pub(super) fn of_all(text: &str, each: impl FnMut(String, Written)) -> Result<(), Cow<'static, str>> {
    let refusal = Refusal::default();
    read(text, Nodes { refusal: &refusal, each }).map_err(|error| in_words(&error, &refusal, NOT_OBJECTS))
}

/// The text of the value to which these keys lead; `None` if there is none.
pub(super) fn at<'t>(text: &'t str, keys: &[String]) -> Result<Option<&'t str>, Cow<'static, str>> {
    let is_container = |text: &str| text.starts_with(['{', '[']);
    if !is_container(text) {
        return Err("it is neither a JSON object nor a list".into());
    }
    let mut text = text;
    for key in keys {
        if !is_container(text) {
            return Ok(None);
        }
        match read(text, Member { key }).map_err(|error| not_json(&error))? {
            Some(value) => text = value.get(),
            None => return Ok(None),
        }
    }
    Ok(Some(text))
}

/// Passes the text of each item of a list, and of each value of an object with its key, to `each` until it returns false.
pub(super) fn each_item(text: &str, each: impl FnMut(Option<&str>, &str) -> bool) -> Result<(), Cow<'static, str>> {
    read(text, Items { each }).map_err(|error| match error.classify() {
        Category::Data => "its items are neither a list nor an object".into(),
        Category::Io | Category::Syntax | Category::Eof => not_json(&error),
    })
}

fn not_json(error: &serde_json::Error) -> Cow<'static, str> {
    format!("it is not JSON, from line {} column {} on", error.line(), error.column()).into()
}

fn read<'t, S: DeserializeSeed<'t>>(text: &'t str, seed: S) -> serde_json::Result<S::Value> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = seed.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

fn in_words(error: &serde_json::Error, refusal: &Refusal, otherwise: &'static str) -> Cow<'static, str> {
    match error.classify() {
        Category::Data => refusal.0.take().unwrap_or(otherwise.into()),
        Category::Io | Category::Syntax | Category::Eof => format!("it is not JSON: {error}").into(),
    }
}

struct Nodes<'r, F> {
    refusal: &'r Refusal,
    each: F,
}

impl<'t, F: FnMut(String, Written)> DeserializeSeed<'t> for Nodes<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'t, F: FnMut(String, Written)> Visitor<'t> for Nodes<'_, F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut count = 0;
        while let Some(node) = map.next_key_seed(Text)? {
            count += 1;
            if count > NODES_MAX {
                return Err(self.refusal.error(too_many_nodes()));
            }
            (self.each)(node, map.next_value_seed(Labels { refusal: self.refusal, nested: false })?);
        }
        Ok(())
    }
}

/// An object of strings; `nested`: or one such object in `labels`.
struct Labels<'r> {
    refusal: &'r Refusal,
    nested: bool,
}

impl<'t> DeserializeSeed<'t> for Labels<'_> {
    type Value = Written;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<Written, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'t> Visitor<'t> for Labels<'_> {
    type Value = Written;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Written, A::Error> {
        let (mut labels, mut inner) = (Written::new(), None);
        while let Some(key) = map.next_key_seed(Text)? {
            let seed = Value { refusal: self.refusal, nested: self.nested && key == "labels" };
            match map.next_value_seed(seed).inspect_err(|_| self.refusal.note(NOT_STRINGS.into()))? {
                Entry::Text(value) => add(&mut labels, (&key, &value)).map_err(|why| self.refusal.error(why))?,
                Entry::Labels(found) => inner = Some(found),
            }
        }
        match inner {
            None => Ok(labels),
            Some(inner) if labels.is_empty() => Ok(inner),
            Some(_) => Err(self.refusal.error(NOT_STRINGS.into())),
        }
    }
}

enum Entry {
    Text(String),
    Labels(Written),
}

/// A string; `nested`: or an object of strings.
struct Value<'r> {
    refusal: &'r Refusal,
    nested: bool,
}

impl<'t> DeserializeSeed<'t> for Value<'_> {
    type Value = Entry;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<Entry, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'t> Visitor<'t> for Value<'_> {
    type Value = Entry;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Entry, E> {
        Ok(Entry::Text(kept(text)))
    }

    fn visit_map<A: MapAccess<'t>>(self, map: A) -> Result<Entry, A::Error> {
        if !self.nested {
            return Err(self.refusal.error(NOT_STRINGS.into()));
        }
        Labels { refusal: self.refusal, nested: false }.visit_map(map).map(Entry::Labels)
    }
}

/// A string, as long as it is kept.
struct Text;

impl<'t> DeserializeSeed<'t> for Text {
    type Value = String;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(kept(text))
    }
}

/// One member of an object, or of a list by its index.
struct Member<'k> {
    key: &'k str,
}

impl<'t> DeserializeSeed<'t> for Member<'_> {
    type Value = Option<&'t RawValue>;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'t> Visitor<'t> for Member<'_> {
    type Value = Option<&'t RawValue>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object or a list")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Cow<'t, str>>()? {
            if *key == *self.key {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        // `01` is no index (RFC 6901, section 4).
        let wanted = self.key.parse::<usize>().ok().filter(|index| index.to_string() == self.key);
        let (mut found, mut index) = (None, 0);
        while let Some(item) = list.next_element()? {
            if Some(index) == wanted {
                found = Some(item);
            }
            index += 1;
        }
        Ok(found)
    }
}

struct Items<F> {
    each: F,
}

impl<'t, F: FnMut(Option<&str>, &str) -> bool> DeserializeSeed<'t> for Items<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'t, F: FnMut(Option<&str>, &str) -> bool> Visitor<'t> for Items<F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list or an object")
    }

    fn visit_map<A: MapAccess<'t>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((key, item)) = map.next_entry::<Cow<'t, str>, &'t RawValue>()? {
            if !(self.each)(Some(&key), item.get()) {
                return Err(A::Error::custom("enough"));
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'t>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(item) = list.next_element::<&'t RawValue>()? {
            if !(self.each)(None, item.get()) {
                return Err(A::Error::custom("enough"));
            }
        }
        Ok(())
    }
}
