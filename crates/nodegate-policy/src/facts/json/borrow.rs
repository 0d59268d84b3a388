//! JSON strings and objects of strings, borrowed if they have no escapes.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use crate::api::names::KEY_MAX;
use crate::facts::json::count::count;
use crate::facts::json::kinds::object;
use crate::facts::json::limits::{ENTRIES_MAX, too_many};

/// Maximum length of a text that is copied because it has escapes, in bytes. The API server reads requests of up to 3 MiB.
const COPIED_MAX: usize = 4 << 20;

/// A string, borrowed from the JSON if it has no escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(pub Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, v: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(v)))
            }

            fn visit_str<E: de::Error>(self, v: &str) -> Result<Self::Value, E> {
                if v.len() > COPIED_MAX {
                    return Err(E::custom("a text of more than 4 MiB, which no API server sends"));
                }
                Ok(Text(Cow::Owned(v.to_owned())))
            }

            fn visit_string<E: de::Error>(self, v: String) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(v)))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Deserializes a text of at most `MAX` bytes; a longer one is an error.
pub(in crate::facts) fn within<'de, D: Deserializer<'de>, const MAX: usize>(
    deserializer: D,
) -> Result<Text<'de>, D::Error> {
    Within::<MAX>::deserialize(deserializer).map(|Within(text)| text)
}

/// As [`within`], where there may be none.
pub(in crate::facts) fn within_or_none<'de, D: Deserializer<'de>, const MAX: usize>(
    deserializer: D,
) -> Result<Option<Text<'de>>, D::Error> {
    Ok(Option::<Within<'de, MAX>>::deserialize(deserializer)?.map(|Within(text)| text))
}

/// A text of at most `MAX` bytes.
pub(in crate::facts) struct Within<'a, const MAX: usize>(pub(super) Text<'a>);

impl<'de: 'a, 'a, const MAX: usize> Deserialize<'de> for Within<'a, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WithinVisitor<const MAX: usize>;
        impl<'de, const MAX: usize> Visitor<'de> for WithinVisitor<MAX> {
            type Value = Within<'de, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, v: &'de str) -> Result<Self::Value, E> {
                check_length::<E>(v, MAX)?;
                Ok(Within(Text(Cow::Borrowed(v))))
            }

            fn visit_str<E: de::Error>(self, v: &str) -> Result<Self::Value, E> {
                check_length::<E>(v, MAX)?;
                Ok(Within(Text(Cow::Owned(v.to_owned()))))
            }
        }
        deserializer.deserialize_str(WithinVisitor::<MAX>)
    }
}

fn check_length<E: de::Error>(text: &str, max: usize) -> Result<(), E> {
    if text.len() <= max {
        return Ok(());
    }
    Err(E::custom(format_args!("a text of {} bytes, where no API server stores more than {max}", text.len())))
}

/// Checks whether one more entry may be added to so many.
fn check_next<E: de::Error>(entries: usize, key: &str, value: &str) -> Result<(), E> {
    if entries == ENTRIES_MAX {
        return Err(too_many(ENTRIES_MAX));
    }
    if key.len() > KEY_MAX {
        return Err(E::custom(format_args!("a key of {} bytes, which no API server stores", key.len())));
    }
    count(key.len() + value.len())
}

/// A JSON object of strings, sorted by key. The API server sends sorted keys, so usually this is only checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries<'a>(Vec<(Text<'a>, Text<'a>)>);

impl<'a> Entries<'a> {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.binary_search_by(|(candidate, _)| (**candidate).cmp(key)).ok().map(|at| &*self.0[at].1)
    }

    /// All entries by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The entries from the key `from` up to, and without, the key `to`; `None` is without a bound.
    pub(crate) fn range(&self, from: Option<&str>, to: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
        let place = |bound: &str| self.0.partition_point(|(key, _)| &**key < bound);
        let end = to.map_or(self.0.len(), place);
        let start = from.map_or(0, place).min(end);
        self.0[start..end].iter().map(|(key, value)| (&**key, &**value))
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object whose values are strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries: Vec<(Text<'de>, Text<'de>)> = Vec::with_capacity(16);
                let mut sorted = true;
                while let Some((key, value)) = map.next_entry::<Text<'de>, Option<Text<'de>>>()? {
                    check_next(entries.len(), &key, value.as_deref().unwrap_or_default())?;
                    sorted &= entries.last().is_none_or(|(last, _)| *last < key);
                    entries.push((key, value.unwrap_or_default()));
                }
                if !sorted {
                    // The last of equal keys is kept, as in Go's decoder.
                    entries.reverse();
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                    entries.dedup_by(|(later, _), (kept, _)| later == kept);
                }
                // A list grows to twice its size.
                entries.shrink_to_fit();
                Ok(Entries(entries))
            }
        }
        object(deserializer, EntriesVisitor)
    }
}

/// `status.capacity`: resources and quantities as written, as strings or numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity<'a>(Vec<(Text<'a>, Text<'a>)>);

impl Capacity<'_> {
    /// The quantity of a resource, as written.
    pub fn get(&self, resource: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| &**name == resource).map(|(_, quantity)| &**quantity)
    }

    /// All resources.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, quantity)| (&**name, &**quantity))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Capacity<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CapacityVisitor;
        impl<'de> Visitor<'de> for CapacityVisitor {
            type Value = Capacity<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of resource quantities")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(8);
                while let Some((name, quantity)) = map.next_entry::<Text<'de>, QuantityText<'de>>()? {
                    check_next(entries.len(), &name, &quantity.0)?;
                    entries.push((name, quantity.0));
                }
                Ok(Capacity(entries))
            }
        }
        object(deserializer, CapacityVisitor)
    }
}

/// Maximum length of a quantity that is kept, in bytes. A longer one is the same as one that is not a quantity. It is no error,
/// because the API server stores a number with as many leading zeros as its kubelet sends.
const QUANTITY_MAX: usize = 128;

struct QuantityText<'a>(Text<'a>);

impl<'a> QuantityText<'a> {
    fn of(text: Cow<'a, str>) -> Self {
        Self(Text(if text.len() > QUANTITY_MAX { Cow::Borrowed("") } else { text }))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for QuantityText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuantityVisitor;
        impl<'de> Visitor<'de> for QuantityVisitor {
            type Value = QuantityText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_borrowed_str<E: de::Error>(self, v: &'de str) -> Result<Self::Value, E> {
                Ok(QuantityText::of(Cow::Borrowed(v)))
            }

            fn visit_str<E: de::Error>(self, v: &str) -> Result<Self::Value, E> {
                // What is too long is not even copied.
                let kept = if v.len() > QUANTITY_MAX { Cow::Borrowed("") } else { Cow::Owned(v.to_owned()) };
                Ok(QuantityText::of(kept))
            }

            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Self::Value, E> {
                self.visit_str(&v.to_string())
            }

            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Self::Value, E> {
                self.visit_str(&v.to_string())
            }

            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Self::Value, E> {
                self.visit_str(&v.to_string())
            }
        }
        deserializer.deserialize_any(QuantityVisitor)
    }
}

/// Every key of either, sorted, with its value in each.
pub(crate) fn both<'a>(
    old: Option<&'a Entries<'_>>,
    new: Option<&'a Entries<'_>>,
) -> impl Iterator<Item = (&'a str, Option<&'a str>, Option<&'a str>)> {
    let [mut old, mut new] = [old, new].map(|entries| entries.map_or(&[][..], |entries| &entries.0).iter().peekable());
    std::iter::from_fn(move || {
        let order = match (old.peek(), new.peek()) {
            (Some((old, _)), Some((new, _))) => old.cmp(new),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        let before = if order.is_le() { old.next() } else { None };
        let after = if order.is_ge() { new.next() } else { None };
        let (key, _) = before.or(after)?;
        Some((&**key, before.map(|(_, value)| &**value), after.map(|(_, value)| &**value)))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn no_list_and_no_object_grows_beyond_what_an_api_server_sends() {
        let entries = |count: usize, quoted: bool| {
            let value = if quoted { "\"\"" } else { "1" };
            let all: Vec<String> = (0..count).map(|at| format!("\"{at:x}\":{value}")).collect();
            format!("{{{}}}", all.join(","))
        };
        assert!(serde_json::from_str::<Entries<'_>>(&entries(ENTRIES_MAX, true)).is_ok());
        let fault = serde_json::from_str::<Entries<'_>>(&entries(ENTRIES_MAX + 1, true)).unwrap_err();
        assert!(fault.to_string().contains("more than 180000 entries"), "{fault}");
        assert!(serde_json::from_str::<Capacity<'_>>(&entries(ENTRIES_MAX, false)).is_ok());
        assert!(serde_json::from_str::<Capacity<'_>>(&entries(ENTRIES_MAX + 1, false)).is_err());
        let long = format!("{{\"{}\":\"\"}}", "x".repeat(KEY_MAX + 1));
        assert!(serde_json::from_str::<Entries<'_>>(&long).is_err());
    }

    #[test]
    fn entries_are_sorted_and_the_last_of_equal_keys_is_kept() {
        assert!(serde_json::from_str::<Entries<'_>>("{}").unwrap().is_empty());
        for (text, sorted) in [
            (r#"{"a": "1", "b": "2", "c": null}"#, [("a", "1"), ("b", "2"), ("c", "")]),
            (r#"{"c": "3", "a": "1", "b": "2"}"#, [("a", "1"), ("b", "2"), ("c", "3")]),
            (r#"{"a": "1", "b": "2", "b": "3", "c": "4"}"#, [("a", "1"), ("b", "3"), ("c", "4")]),
            (r#"{"b": "1", "c": "2", "b": "3", "a": "4", "b": "5"}"#, [("a", "4"), ("b", "5"), ("c", "2")]),
        ] {
            let entries: Entries<'_> = serde_json::from_str(text).unwrap();
            assert_eq!(entries.iter().collect::<Vec<_>>(), sorted, "{text}");
            assert_eq!((entries.len(), entries.is_empty()), (3, false));
            assert!(sorted.iter().all(|(key, value)| entries.get(key) == Some(value)), "{text}");
        }
    }
}
