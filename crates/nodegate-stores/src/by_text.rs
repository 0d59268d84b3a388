//! Objects by a text that each of them has, or several.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;

/// Objects by a text. It keeps no copy of the texts, of which there is one for each node, so what it finds has to be compared.
#[derive(Clone, Debug)]
pub(crate) struct ByText<T, S = RandomState> {
    table: HashTable<(u64, Arc<T>)>,
    hasher: S,
}

impl<T, S: Default> Default for ByText<T, S> {
    fn default() -> Self {
        Self { table: HashTable::new(), hasher: S::default() }
    }
}

impl<T, S: BuildHasher> ByText<T, S> {
    /// The objects that may have this text, and now and then others.
    pub(crate) fn like<'t>(&'t self, text: &str) -> impl Iterator<Item = &'t Arc<T>> + use<'t, T, S> {
        let hash = self.hasher.hash_one(text);
        self.table.iter_hash(hash).filter(move |(other, _)| *other == hash).map(|(_, object)| object)
    }

    /// How many objects there are, those with several texts several times.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// All objects, those with several texts several times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.table.iter().map(|(_, object)| object)
    }

    /// Adds an object that has this text.
    pub(crate) fn insert(&mut self, text: &str, object: &Arc<T>) {
        let hash = self.hasher.hash_one(text);
        self.table.insert_unique(hash, (hash, object.clone()), |(hash, _)| *hash);
    }

    /// Takes out this object, which was added with this text.
    pub(crate) fn remove(&mut self, text: &str, object: &Arc<T>) {
        let hash = self.hasher.hash_one(text);
        // An object is there once for each of its texts.
        if let Ok(found) = self.table.find_entry(hash, |(known, other)| *known == hash && Arc::ptr_eq(other, object)) {
            found.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, Hasher};

    use super::*;

    #[test]
    fn objects_are_found_by_each_of_their_texts_until_they_are_taken_out() {
        let mut all = ByText::<i32>::default();
        let (one, other) = (Arc::new(1), Arc::new(2));
        for at in 0..1000 {
            all.insert(&format!("filler-{at}"), &Arc::new(at + 10));
        }
        all.insert("a", &one);
        all.insert("a", &other);
        all.insert("b", &one);
        let like = |all: &ByText<i32>, text: &str| {
            let mut found: Vec<i32> = all.like(text).map(|object| **object).collect();
            found.sort_unstable();
            found
        };
        assert_eq!((like(&all, "a"), like(&all, "b"), like(&all, "c")), (vec![1, 2], vec![1], vec![]));
        assert_eq!(like(&all, "filler-999"), [1009]);
        all.remove("a", &one);
        all.remove("c", &one);
        assert_eq!((like(&all, "a"), like(&all, "b"), all.iter().count()), (vec![2], vec![1], 1002));
    }

    /// The table finds entries by a few bits of their hashes, which here are the same for all texts.
    #[derive(Default)]
    struct Alike(u64);

    impl Hasher for Alike {
        fn write(&mut self, bytes: &[u8]) {
            self.0 = bytes.iter().fold(self.0, |sum, byte| sum + u64::from(*byte));
        }

        fn finish(&self) -> u64 {
            self.0 << 32
        }
    }

    #[test]
    fn an_object_keeps_the_texts_whose_hashes_are_alike() {
        let mut all = ByText::<i32, BuildHasherDefault<Alike>>::default();
        let one = Arc::new(1);
        let texts = ["a".repeat(100), "b".repeat(100), "c".repeat(100)];
        texts.iter().for_each(|text| all.insert(text, &one));
        for (at, text) in texts.iter().enumerate().rev() {
            all.remove(text, &one);
            assert_eq!(all.like(text).count(), 0, "{text}");
            assert!(texts[..at].iter().all(|other| all.like(other).count() == 1), "{text}");
        }
    }
}
