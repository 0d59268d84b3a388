//! Annotations that the API server refused, which are not retried for some time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long refused annotations are not retried on a node.
const REFUSED_FOR: Duration = Duration::from_secs(600);

/// Nodes on which annotations of rules were refused, by uid.
#[derive(Debug, Default)]
pub(crate) struct Refusals(HashMap<String, (Instant, Vec<String>)>);

impl Refusals {
    /// Whether this annotation is currently not retried.
    pub(crate) fn holds(&self, uid: &str, key: &str, now: Instant) -> bool {
        let refused = self.0.get(uid);
        refused.is_some_and(|(until, keys)| *until > now && keys.iter().any(|known| known == key))
    }

    /// Records refused annotations.
    pub(crate) fn note(&mut self, uid: &str, keys: Vec<String>, now: Instant) {
        let (until, refused) = self.0.entry(uid.to_owned()).or_insert((now, Vec::new()));
        if *until <= now {
            refused.clear();
        }
        *until = now + REFUSED_FOR;
        refused.extend(keys);
        refused.sort_unstable();
        refused.dedup();
    }

    /// Forgets a node that was deleted.
    pub(crate) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_refused_twice_are_not_retried_until_the_second_refusal_expires() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        refusals.note("u", vec!["a".to_owned()], now);
        refusals.note("u", vec!["b".to_owned(), "a".to_owned()], now + Duration::from_secs(1));
        assert!(refusals.holds("u", "a", now) && refusals.holds("u", "b", now));
        let later = now + Duration::from_secs(1) + REFUSED_FOR;
        assert!(!refusals.holds("u", "a", later) && !refusals.holds("v", "a", now));
        refusals.note("u", vec!["c".to_owned()], later);
        assert!(!refusals.holds("u", "a", later) && refusals.holds("u", "c", later));
    }
}
