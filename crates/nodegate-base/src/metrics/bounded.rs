//! Families whose number of series is limited, whatever policies and nodes are named.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::catalog::Labels;

/// The maximum number of series of one metric, but for those of [`OTHERS`].
pub(super) const SERIES_MAX: usize = 1000;
/// The label value that stands for what has no series of its own. Neither a policy, nor a rule, nor the value of a node's label
/// can have this name.
pub(super) const OTHERS: &str = "(others)";

/// Labels of which some are taken from policies or nodes.
pub(super) trait Named: Labels + Ord {
    /// The same with [`OTHERS`] in place of all names.
    fn others(&self) -> Self;
}

/// A family of which [`SERIES_MAX`] series are about what they name, and the others about the rest.
#[derive(Debug)]
pub(super) struct Bounded<L: Named, M> {
    pub(super) family: Family<L, M>,
    series: AtomicUsize,
}

impl<L: Named, M: Clone + Default> Default for Bounded<L, M> {
    fn default() -> Self {
        Self { family: Family::default(), series: AtomicUsize::default() }
    }
}

impl<L: Named, M: Clone + Default> Bounded<L, M> {
    /// The metric of these labels; beyond the limit the one of the others.
    pub(super) fn of(&self, labels: &L) -> M {
        if let Some(metric) = self.family.get(labels) {
            return metric.clone();
        }
        let has_room =
            self.series.fetch_update(Relaxed, Relaxed, |series| (series < SERIES_MAX).then_some(series + 1)).is_ok();
        if has_room {
            self.family.get_or_create_owned(labels)
        } else {
            self.family.get_or_create_owned(&labels.others())
        }
    }

    /// Removes all series.
    pub(super) fn clear(&self) {
        self.family.clear();
        self.series.store(0, Relaxed);
    }
}

/// Gauges that are set together. A scrape in between finds the former or the new ones, but none missing that is in both.
#[derive(Debug)]
pub(super) struct Gauges<L: Named> {
    pub(super) family: Family<L, Gauge>,
    known: Mutex<Vec<L>>,
}

impl<L: Named> Default for Gauges<L> {
    fn default() -> Self {
        Self { family: Family::default(), known: Mutex::default() }
    }
}

impl<L: Named> Gauges<L> {
    /// Sets these, and removes all others. Of more than `most`, those with the highest values have a series of their own.
    pub(super) fn replace(&self, values: impl IntoIterator<Item = (L, i64)>, most: usize) {
        let mut values: Vec<(L, i64)> = values.into_iter().collect();
        values.sort_by(|(one, many), (other, few)| few.cmp(many).then_with(|| one.cmp(other)));
        let rest = values.split_off(values.len().min(most));
        let mut now: BTreeMap<L, i64> = values.into_iter().collect();
        for (labels, value) in rest {
            *now.entry(labels.others()).or_default() += value;
        }
        // What a panic elsewhere left is replaced here.
        let mut known = self.known.lock();
        for gone in known.iter().filter(|labels| !now.contains_key(labels)) {
            self.family.remove(gone);
        }
        for (labels, value) in &now {
            self.family.get_or_create(labels).set(*value);
        }
        *known = now.into_keys().collect();
    }
}

/// A count as the value of a gauge.
pub(super) fn number(of: usize) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::EncodeLabelSet;
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
    struct Of {
        name: String,
    }

    impl Named for Of {
        fn others(&self) -> Self {
            Self { name: OTHERS.to_owned() }
        }
    }

    fn named(name: impl ToString) -> Of {
        Of { name: name.to_string() }
    }

    #[test]
    fn what_exceeds_the_limit_is_counted_together() {
        let family = Bounded::<Of, Counter>::default();
        for name in 0..SERIES_MAX + 10 {
            family.of(&named(name)).inc();
        }
        family.of(&named(3)).inc();
        assert_eq!(family.of(&named(3)).get(), 2, "those that are there go on");
        assert_eq!(family.of(&named(OTHERS)).get(), 10);
        assert!(family.family.get(&named(SERIES_MAX)).is_none());
        family.clear();
        family.of(&named(SERIES_MAX)).inc();
        assert_eq!(family.of(&named(SERIES_MAX)).get(), 1);
    }

    #[test]
    fn gauges_are_replaced_and_the_highest_have_a_series_of_their_own() {
        let gauges = Gauges::default();
        gauges.replace([(named("a"), 1), (named("b"), 5), (named("c"), 2), (named("d"), 2)], 2);
        let value = |name: &str| gauges.family.get(&named(name)).map(|gauge| gauge.get());
        assert_eq!((value("b"), value("c"), value("d")), (Some(5), Some(2), None), "of equal ones the first by name");
        assert_eq!(value(OTHERS), Some(3));
        gauges.replace([(named("d"), 7)], 2);
        assert_eq!((value("b"), value("d"), value(OTHERS)), (None, Some(7), None));
        gauges.replace([], 2);
        assert_eq!(value("d"), None);
    }
}
