//! Texts in records: keys and values of labels, annotations and taints. Every replica keeps those of each node, and most nodes have the same
//! ones, so each text is kept once.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use litemap::LiteMap;
use serde::{Deserialize, Serialize, Serializer};

use super::shared::SharedValues;

/// A text that others may have as well. It takes eight bytes; the text itself is there once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(from = "Box<str>")]
pub struct SharedText(Arc<Box<str>>);

impl From<Box<str>> for SharedText {
    fn from(text: Box<str>) -> Self {
        static TEXTS: LazyLock<SharedValues<Box<str>>> = LazyLock::new(SharedValues::default);
        Self(TEXTS.of(text))
    }
}

impl From<&str> for SharedText {
    fn from(text: &str) -> Self {
        Box::<str>::from(text).into()
    }
}

impl Default for SharedText {
    fn default() -> Self {
        "".into()
    }
}

impl Deref for SharedText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for SharedText {
    fn borrow(&self) -> &str {
        self
    }
}

impl fmt::Debug for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Serialize for SharedText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

/// Values by key, sorted by key. One of them takes 16 bytes if other records have the same key and the same value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "BTreeMap<SharedText, SharedText>")]
pub struct TextMap(LiteMap<SharedText, SharedText>);

impl TextMap {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The value of this key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|value| &**value)
    }

    /// Whether there is a value of this key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: &str, value: &str) {
        self.0.insert(key.into(), value.into());
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// Keeps only those of which this is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &str) -> bool) {
        self.0.retain(|key, value| keep(key, value));
    }

    /// The keys and values, sorted by key.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &str)> + Clone {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The keys, sorted.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &str> + Clone {
        self.iter().map(|(key, _)| key)
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for TextMap {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(texts: I) -> Self {
        let texts = texts.into_iter().map(|(key, value)| (key.as_ref().into(), value.as_ref().into()));
        texts.collect::<BTreeMap<SharedText, SharedText>>().into()
    }
}

impl<K: AsRef<str>, V: AsRef<str>> Extend<(K, V)> for TextMap {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, texts: I) {
        texts.into_iter().for_each(|(key, value)| self.insert(key.as_ref(), value.as_ref()));
    }
}

impl<K: AsRef<str>, V: AsRef<str>, const N: usize> From<[(K, V); N]> for TextMap {
    fn from(texts: [(K, V); N]) -> Self {
        texts.into_iter().collect()
    }
}

impl From<BTreeMap<SharedText, SharedText>> for TextMap {
    fn from(texts: BTreeMap<SharedText, SharedText>) -> Self {
        // Its size is known, so the list has no room for more.
        Self(LiteMap::from_sorted_store_unchecked(texts.into_iter().collect()))
    }
}

impl Serialize for TextMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::SavedState;
    use super::*;

    #[test]
    fn a_record_that_was_read_takes_no_more_than_its_texts_and_lists() {
        let taint = json!({"key": "k", "effect": "NoSchedule"});
        let record: SavedState =
            serde_json::from_value(json!({"nodeName": "n", "labels": {"a": "1", "b": "2", "c": "3"},
            "taints": [taint], "publishers": ["p"], "publishersBefore": ["p"], "notProvisionedBy": ["m"],
            "owned": {"taints": [taint], "removeAfter": {"a": 1}}}))
            .unwrap();
        let owned = record.owned.as_ref().unwrap();
        let texts = [&record.publishers, &record.publishers_before].map(Vec::capacity);
        let taints = [&record.taints, &owned.taints].map(Vec::capacity);
        assert_eq!((texts, taints, record.not_provisioned_by.capacity()), ([1; 2], [1; 2], 1));
        assert_eq!(record.labels.0.into_tuple_vec().capacity(), 3);
        // BENCHMARKS.md has this figure.
        assert_eq!((size_of::<SavedState>(), size_of::<SharedText>()), (576, 8));
    }

    #[test]
    fn texts_are_found_changed_and_written_in_the_order_of_their_keys_and_kept_once() {
        let mut texts: TextMap = serde_json::from_str(r#"{"b": "1", "a": "2", "b": "3"}"#).unwrap();
        assert_eq!(serde_json::to_string(&texts).unwrap(), r#"{"a":"2","b":"3"}"#);
        assert_eq!((texts.get("b"), texts.get("c"), texts.contains_key("a")), (Some("3"), None, true));
        texts.insert("b", "4");
        texts.extend([("0", "5"), ("c", "2")]);
        texts.remove("a");
        texts.retain(|key, value| key != "b" || value == "4");
        assert_eq!(texts.iter().collect::<Vec<_>>(), [("0", "5"), ("b", "4"), ("c", "2")]);
        assert_eq!(texts.keys().rev().collect::<String>(), "cb0");
        assert_eq!(texts, TextMap::from([("c", "2"), ("0", "5"), ("b", "4")]));
        texts.retain(|_, value| value == "2");
        assert_eq!((texts.len(), texts.is_empty()), (1, false));
        let other = TextMap::from([("x", "2".to_owned())]);
        let value = |texts: &TextMap| texts.0.first().unwrap().1.clone();
        assert!(Arc::ptr_eq(&value(&texts).0, &value(&other).0));
        assert!(serde_json::from_str::<TextMap>("[\"a\"]").is_err());
    }
}
