//! Values that are kept once, however many records, and what is known beside them, have the same.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// The values of a kind that somebody has.
#[derive(Debug)]
pub(super) struct SharedValues<T>(Mutex<Known<T>>);

#[derive(Debug)]
struct Known<T> {
    values: HashSet<Arc<T>>,
    /// With how many values those are sought that nobody has any more.
    sweep_at: usize,
}

/// How many values there are at least before any are sought that nobody has.
const FEW: usize = 64;

impl<T> Default for SharedValues<T> {
    fn default() -> Self {
        Self(Mutex::new(Known { values: HashSet::new(), sweep_at: FEW }))
    }
}

impl<T: Eq + Hash> SharedValues<T> {
    /// The value that others have, if some have the same.
    pub(super) fn of(&self, value: T) -> Arc<T> {
        // Complete after every change, so a panic elsewhere leaves it usable.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = known.values.get(&value) {
            return same.clone();
        }
        if known.values.len() >= known.sweep_at {
            known.values.retain(|value| Arc::strong_count(value) > 1);
            known.sweep_at = FEW.max(2 * known.values.len());
            let room = known.sweep_at;
            known.values.shrink_to(room);
        }
        let value = Arc::new(value);
        known.values.insert(value.clone());
        value
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_kept_once_and_no_longer_than_somebody_has_them() {
        let shared = SharedValues::default();
        let (one, same, other) = (shared.of("a".to_owned()), shared.of("a".to_owned()), shared.of("b".to_owned()));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        for at in 0..10_000 {
            shared.of(at.to_string());
        }
        assert!(shared.0.lock().unwrap().values.len() <= FEW);
        assert!(Arc::ptr_eq(&shared.of("a".to_owned()), &one));
        let kept: Vec<Arc<String>> = (0..1000).map(|at| shared.of(at.to_string())).collect();
        assert!(kept.iter().zip(0..).all(|(known, at)| Arc::ptr_eq(known, &shared.of(at.to_string()))));
    }
}
