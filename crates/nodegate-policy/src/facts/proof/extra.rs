//! What an authenticator says of a user beside name and groups.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};

use crate::facts::json::borrow::Text;
use crate::facts::json::kinds::{List, object};

/// Maximum number of lines of evidence, and so of values of a key. The guard compares each line with each group and each extra value of
/// the requester.
pub(crate) const LINES_MAX: usize = 64;

/// `userInfo.extra` of a review, as JSON that is parsed only where something asks for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a>(Option<&'a str>);

impl<'a> Extra<'a> {
    /// Extra information in JSON: an object of lists of strings.
    pub fn new(json: Option<&'a str>) -> Self {
        Self(json)
    }

    /// The JSON, if there is any.
    pub(crate) fn json(self) -> Option<&'a str> {
        self.0
    }

    /// The values of these keys; `None` if it is not what an API server sends.
    pub(crate) fn of_keys(self, keys: &[Box<str>]) -> Option<Vec<(Text<'a>, Vec<Text<'a>>)>> {
        struct Wanted<'k>(&'k [Box<str>]);
        impl<'de> Visitor<'de> for Wanted<'_> {
            type Value = Vec<(Text<'de>, Vec<Text<'de>>)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of lists of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found: Self::Value = Vec::new();
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    if self.0.iter().any(|wanted| **wanted == *key) {
                        let List(values) = map.next_value::<List<Text<'de>, LINES_MAX>>()?;
                        found.retain(|(other, _)| *other != key);
                        found.push((key, values));
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(found)
            }
        }
        let Some(text) = self.0 else { return Some(Vec::new()) };
        let mut deserializer = serde_json::Deserializer::from_str(text);
        object(&mut deserializer, Wanted(keys)).ok()
    }
}
