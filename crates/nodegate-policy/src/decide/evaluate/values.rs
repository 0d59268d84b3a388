//! The values that a rule assigns, by key.

use std::borrow::Cow;

/// Values by key, sorted. A rule assigns few of them, so a list takes much less time than a tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Values<'a, K>(Vec<(K, Cow<'a, str>)>);

impl<K> Default for Values<'_, K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'a, K: Ord> Values<'a, K> {
    fn place(&self, key: &K) -> Result<usize, usize> {
        // Most come in the order of their keys.
        match self.0.last() {
            Some((last, _)) if last >= key => self.0.binary_search_by(|(there, _)| there.cmp(key)),
            _ => Err(self.0.len()),
        }
    }

    /// Sets the value of a key.
    pub(super) fn insert(&mut self, key: K, value: Cow<'a, str>) {
        match self.place(&key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    /// Takes out the entries that `is_meant` selects.
    pub(super) fn extract(&mut self, is_meant: impl Fn(&K) -> bool) -> impl Iterator<Item = (K, Cow<'a, str>)> {
        self.0.extract_if(.., move |(key, _)| is_meant(key))
    }

    /// The keys of either, with the values in `after`.
    pub(super) fn replaced_by<'v>(
        &'v self,
        after: &'v Self,
    ) -> impl Iterator<Item = (&'v K, Option<&'v Cow<'a, str>>)> {
        let gone = self.0.iter().filter(|(key, _)| after.place(key).is_err());
        gone.map(|(key, _)| (key, None)).chain(after.0.iter().map(|(key, value)| (key, Some(value))))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn values_are_those_of_a_tree() {
        let entries = |keys: &[&'static str]| {
            let (mut values, mut tree) = (Values::default(), BTreeMap::new());
            for (at, key) in keys.iter().enumerate() {
                values.insert(*key, Cow::Owned(at.to_string()));
                tree.insert(*key, at.to_string());
            }
            let both = values.0.iter().map(|(key, value)| (*key, &**value));
            assert!(both.eq(tree.iter().map(|(key, value)| (*key, value.as_str()))));
            (values, tree)
        };
        let lists: [&[&str]; 6] = [&[], &["a"], &["a", "b", "c"], &["c", "a", "b", "a"], &["b", "b"], &["d", "c"]];
        for (before, before_tree) in lists.map(entries) {
            for (after, after_tree) in lists.map(entries) {
                let replaced: BTreeMap<&str, Option<&str>> =
                    before.replaced_by(&after).map(|(key, value)| (*key, value.map(|value| &**value))).collect();
                let keys: BTreeSet<&str> = before_tree.keys().chain(after_tree.keys()).copied().collect();
                assert!(replaced.keys().copied().eq(keys));
                assert!(replaced.iter().all(|(key, value)| after_tree.get(key).map(String::as_str) == *value));
                assert_eq!(before.replaced_by(&after).count(), replaced.len(), "each key once");
            }
        }
    }
}
