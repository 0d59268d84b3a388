//! Reads and copies JSON as text, without building a tree of it, at any depth.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The fields of a JSON object, each with the text of its value.
pub(super) struct Fields<'a>(pub(super) Vec<(Cow<'a, str>, &'a str)>);

impl<'a> Fields<'a> {
    /// Reads the fields of an object.
    ///
    /// # Errors
    /// Returns an error if the text is not a JSON object.
    pub(super) fn of(object: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(object)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::with_capacity(16);
                // serde_json skips raw values without recursion, so the depth is not limited.
                while let Some((key, value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                    fields.push((key.0, value.get()));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// How much of a value is copied.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    /// The complete value.
    Whole,
    /// A value whose copy is longer than `value` bytes becomes `null`, and so does each string in it that is longer
    /// than `text` bytes.
    Bytes {
        /// The limit for the whole value.
        value: usize,
        /// The limit for each string.
        text: usize,
    },
}

/// Appends a JSON value without whitespace and unnecessary escapes. Returns whether all of it was copied.
pub(super) fn copy(value: &str, bound: Bound, into: &mut String) -> bool {
    let start = into.len();
    let (value_max, text_max) = match bound {
        Bound::Whole => (usize::MAX, usize::MAX),
        Bound::Bytes { value, text } => (value, text),
    };
    let mut whole = true;
    let mut rest = value;
    while let Some(at) = rest.find(|c: char| c == '"' || c.is_ascii_whitespace()) {
        into.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with('"') {
            let (text, after) = rest.split_at(text_length(rest.as_bytes()).unwrap_or(rest.len()));
            let plain = without_escapes(text);
            let is_key = after.trim_ascii_start().starts_with(':');
            if plain.len() > text_max && !is_key {
                into.push_str("null");
                whole = false;
            } else {
                into.push_str(&plain);
            }
            rest = after;
        } else {
            rest = rest.trim_ascii_start();
        }
        if into.len() - start > value_max {
            break;
        }
    }
    into.push_str(rest);
    if into.len() - start > value_max {
        into.truncate(start);
        into.push_str("null");
        return false;
    }
    whole
}

/// The length of the JSON string (including quotes) at the beginning of `json`; `None` if it is not terminated.
fn text_length(json: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The same JSON string with only the escapes that JSON requires. The API server writes `<`, `>` and `&` with six
/// bytes.
fn without_escapes(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let plain = serde_json::from_str::<String>(text).and_then(|plain| serde_json::to_string(&plain));
    plain.map_or(Cow::Borrowed(text), Cow::Owned)
}

/// The string at `path` of a JSON object. The object may be truncated or otherwise invalid.
pub(super) fn text_at(object: &[u8], path: &[&str]) -> Option<String> {
    let (mut depth, mut matched, mut hit) = (0_usize, 0_usize, false);
    let mut at = 0;
    while let Some(byte) = object.get(at) {
        match byte {
            b'"' => {
                let length = text_length(&object[at..])?;
                let text = &object[at..at + length];
                at += length;
                let is_key = object[at..].trim_ascii_start().first() == Some(&b':');
                if depth == matched + 1 && is_key {
                    hit = path.get(matched).is_some_and(|key| text[1..length - 1] == *key.as_bytes());
                } else if hit && depth == matched + 1 && matched + 1 == path.len() {
                    return serde_json::from_slice(text).ok();
                }
                continue;
            }
            b'{' | b'[' => {
                if hit && depth == matched + 1 && *byte == b'{' && matched + 1 < path.len() {
                    matched += 1;
                }
                hit = false;
                depth += 1;
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                matched = matched.min(depth.saturating_sub(1));
            }
            b',' if depth == matched + 1 => hit = false,
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn copied(value: &str, bound: Bound) -> (String, bool) {
        let mut into = String::new();
        let whole = copy(value, bound, &mut into);
        (into, whole)
    }

    #[test]
    fn a_value_is_copied_without_whitespace_and_unnecessary_escapes() {
        let (text, whole) =
            copied(r#" { "a\u003cb" : [ "\u003c \" \\ \u0001 ü \ud83d\ude00", 1.50 , null ] } "#, Bound::Whole);
        assert_eq!(text, r#"{"a<b":["< \" \\ \u0001 ü 😀",1.50,null]}"#);
        assert!(whole);
    }

    #[test]
    fn only_values_that_are_too_long_become_null() {
        let bound = Bound::Bytes { value: 40, text: 8 };
        assert_eq!(
            copied(r#"{"type":"Ready","message":"much too long"}"#, bound).0,
            r#"{"type":"Ready","message":null}"#
        );
        assert_eq!(copied(&format!("[{}]", vec!["{}"; 390_000].join(",")), bound), ("null".to_owned(), false));
        assert_eq!(copied(&"[".repeat(1_000_000), bound), ("null".to_owned(), false));
        assert_eq!(copied("[1,2]", bound), ("[1,2]".to_owned(), true));
    }

    #[test]
    fn fields_are_read_at_any_depth() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let object = format!(r#"{{"a": {deep}, "b": "x"}}"#);
        let Fields(fields) = Fields::of(&object).unwrap();
        assert_eq!((fields[0].1.len(), fields[1].1), (200_000, "\"x\""));
        assert!(Fields::of("[]").is_err());
    }

    #[test]
    fn a_string_is_found_in_truncated_or_invalid_json() {
        let name = |json: &str| text_at(json.as_bytes(), &["metadata", "name"]);
        assert_eq!(
            name(r#"{"kind":"Node","metadata":{"labels":{"name":"no"},"name":"yes","x":[[["#).as_deref(),
            Some("yes")
        );
        assert_eq!(
            name(r#"{"name":"no","spec":{"name":"no","metadata":{"name":"no"}},"metadata" : {"name" : "a\"b"}"#)
                .as_deref(),
            Some("a\"b")
        );
        assert_eq!(name(r#"{"metadata":{"labels":{"a":"b"}},"name":"no"}"#), None);
        assert_eq!(name(r#"{"metadata":{"name":{"name":"no"}}}"#), None);
        assert_eq!(name(r#"{"metadata":{"name":"cut o"#), None);
    }
}
