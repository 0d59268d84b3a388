//! Annotations that the API server refused, which are not retried for some time.

use std::time::{Duration, Instant};

/// How long refused annotations are not retried on a node.
const REFUSED_FOR: Duration = Duration::from_secs(600);

/// The annotations of rules that were refused on a node, and until when they are not retried.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Option<(Instant, Vec<String>)>);

impl Refusals {
    /// Whether this annotation is currently not retried.
    pub(crate) fn holds(&self, key: &str, now: Instant) -> bool {
        self.0.as_ref().is_some_and(|(until, keys)| *until > now && keys.iter().any(|known| known == key))
    }

    /// Records refused annotations.
    pub(crate) fn note(&mut self, keys: Vec<String>, now: Instant) {
        let (until, refused) = self.0.get_or_insert((now, Vec::new()));
        if *until <= now {
            refused.clear();
        }
        *until = now + REFUSED_FOR;
        refused.extend(keys);
        refused.sort_unstable();
        refused.dedup();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_refused_twice_are_not_retried_until_the_second_refusal_expires() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        refusals.note(vec!["a".to_owned()], now);
        refusals.note(vec!["b".to_owned(), "a".to_owned()], now + Duration::from_secs(1));
        assert!(refusals.holds("a", now) && refusals.holds("b", now));
        let later = now + Duration::from_secs(1) + REFUSED_FOR;
        assert!(!refusals.holds("a", later));
        refusals.note(vec!["c".to_owned()], later);
        assert!(!refusals.holds("a", later) && refusals.holds("c", later));
    }
}
