//! JSON objects, lists and booleans that are never read from a text.
//!
//! Where serde expects one of them and finds a text, it writes the whole text into its error, escaped: six times as long at
//! worst. A sender of megabytes there gets an error without the text.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Unexpected, Visitor};

use crate::facts::json::limits::too_many;

/// A kind of JSON value that is accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Accepted {
    Object,
    List,
    Boolean,
}

/// Visits only values of one kind; for any other, the error says what it is, and not its text.
struct Only<V> {
    visitor: V,
    accepted: Accepted,
}

impl<'de, V: Visitor<'de>> Only<V> {
    fn refuse<E: de::Error>(&self, found: &str) -> Result<V::Value, E> {
        Err(E::invalid_type(Unexpected::Other(found), &self.visitor))
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Only<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        if self.accepted == Accepted::Object { self.visitor.visit_map(map) } else { self.refuse("an object") }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        if self.accepted == Accepted::List { self.visitor.visit_seq(seq) } else { self.refuse("a list") }
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<V::Value, E> {
        if self.accepted == Accepted::Boolean { self.visitor.visit_bool(value) } else { self.refuse("a boolean") }
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<V::Value, E> {
        self.refuse("a string")
    }

    fn visit_borrowed_str<E: de::Error>(self, _: &'de str) -> Result<V::Value, E> {
        self.refuse("a string")
    }

    fn visit_string<E: de::Error>(self, _: String) -> Result<V::Value, E> {
        self.refuse("a string")
    }
}

/// Deserializes whatever is there, if it is a JSON object.
pub(in crate::facts) fn object<'de, D: Deserializer<'de>, V: Visitor<'de>>(
    from: D,
    visitor: V,
) -> Result<V::Value, D::Error> {
    from.deserialize_any(Only { visitor, accepted: Accepted::Object })
}

/// The same for a list.
pub(in crate::facts) fn list<'de, D: Deserializer<'de>, V: Visitor<'de>>(
    from: D,
    visitor: V,
) -> Result<V::Value, D::Error> {
    from.deserialize_any(Only { visitor, accepted: Accepted::List })
}

/// A struct that is deserialized only from an object: serde would also accept a list of its fields.
pub struct Object<T>(pub T);

impl<T: Default> Default for Object<T> {
    fn default() -> Self {
        Self(T::default())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(AsObject(deserializer)).map(Self)
    }
}

/// Deserializes any type as an object.
struct AsObject<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for AsObject<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        object(self.0, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// A list of at most `MAX` items. A longer one is an error as soon as it is noticed.
#[derive(Debug)]
pub struct List<T, const MAX: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
            type Value = List<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if items.len() == MAX {
                        return Err(too_many(MAX));
                    }
                    items.push(item);
                }
                Ok(List(items))
            }
        }
        list(deserializer, ListVisitor(PhantomData))
    }
}

/// A boolean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flag(pub bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FlagVisitor;
        impl Visitor<'_> for FlagVisitor {
            type Value = Flag;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a boolean")
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Flag, E> {
                Ok(Flag(value))
            }
        }
        deserializer.deserialize_any(Only { visitor: FlagVisitor, accepted: Accepted::Boolean })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::facts::json::borrow::{Capacity, Entries};

    #[test]
    fn an_error_never_repeats_a_text_that_stands_for_something_else() {
        #[derive(Debug, Default, serde::Deserialize)]
        #[serde(default)]
        struct Fields {
            _a: Option<Flag>,
        }
        fn fault<'a, T: Deserialize<'a>>(text: &'a str) -> String {
            serde_json::from_str::<T>(text).map(drop).unwrap_err().to_string()
        }
        for text in ["\u{7f}".repeat(1 << 20), format!("\\n{}", "x".repeat(1 << 20))] {
            let text = format!("\"{text}\"");
            for fault in [
                fault::<Object<Fields>>(&text),
                fault::<Option<Object<Fields>>>(&text),
                fault::<List<Flag, 2>>(&text),
                fault::<Flag>(&text),
                fault::<Entries<'_>>(&text),
                fault::<Capacity<'_>>(&text),
                fault::<crate::NodeFields<'_>>(&text),
            ] {
                assert!(fault.starts_with("invalid type: a string, expected ") && fault.len() < 120, "{fault}");
            }
        }
        assert!(fault::<Object<Fields>>("[true]").starts_with("invalid type: a list, expected "));
        assert_eq!(serde_json::from_str::<List<u8, 2>>("[1, 2]").unwrap().0, [1, 2]);
        assert!(serde_json::from_str::<List<u8, 2>>("[1, 2, 3]").is_err());
        assert_eq!(serde_json::from_str::<Option<Flag>>("null").unwrap(), None);
    }
}
