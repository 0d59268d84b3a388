//! Compares what `nodegate probe` found on a node before any driver ran with what GPU feature discovery reports after it.
//!
//! Both are labels on the node, so this reads nothing else, and changes nothing: people look at the hardware.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use nodegate_policy::gpu::probed::{Difference, Fact};

/// The least time between two events about one node, whose labels can change at any rate.
const PAUSE: Duration = Duration::from_secs(600);

/// The differences of nodes.
#[derive(Debug, Default)]
pub(crate) struct Hardware {
    /// By uid, of nodes that differ or did so lately.
    nodes: HashMap<String, KnownDifferences>,
    /// How many nodes differ in each fact.
    counts: BTreeMap<Fact, usize>,
}

#[derive(Debug, Default)]
struct KnownDifferences {
    now: Vec<Difference>,
    /// What the last event said, and when.
    reported: Option<(Vec<Difference>, Instant)>,
}

/// What to do about the differences of a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// They are others than before.
    pub(crate) changed: bool,
    /// An event has to say so.
    pub(crate) report: bool,
}

impl Hardware {
    pub(crate) fn note(&mut self, uid: &str, found: &[Difference], now: Instant) -> Noted {
        if found.is_empty() && !self.nodes.contains_key(uid) {
            return Noted { changed: false, report: false };
        }
        let seen = self.nodes.entry(uid.to_owned()).or_default();
        let before = std::mem::replace(&mut seen.now, found.to_owned());
        let is_news = seen.reported.as_ref().is_none_or(|(reported, _)| reported != found);
        let may_report = seen.reported.as_ref().is_none_or(|(_, at)| now.saturating_duration_since(*at) >= PAUSE);
        let report = !found.is_empty() && is_news && may_report;
        if report {
            seen.reported = Some((found.to_owned(), now));
        } else if found.is_empty() && may_report {
            self.nodes.remove(uid);
        }
        self.count(&before, found);
        Noted { changed: before != found, report }
    }

    pub(crate) fn forget(&mut self, uid: &str) {
        if let Some(seen) = self.nodes.remove(uid) {
            self.count(&seen.now, &[]);
        }
    }

    pub(crate) fn count(&mut self, before: &[Difference], after: &[Difference]) {
        for gone in before {
            let count = self.counts.entry(gone.fact).or_default();
            *count = count.saturating_sub(1);
        }
        for new in after {
            *self.counts.entry(new.fact).or_default() += 1;
        }
    }

    /// How many nodes differ in each fact.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Fact, usize)> + '_ {
        Fact::ALL.into_iter().map(|fact| (fact, self.counts.get(&fact).copied().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(fact: Fact, reported: &str) -> Difference {
        Difference { fact, probed: "8".to_owned(), reported: reported.to_owned() }
    }

    #[test]
    fn each_difference_is_reported_once_and_a_node_that_flaps_once_in_ten_minutes() {
        let (mut hardware, start) = (Hardware::default(), Instant::now());
        let (seven, six) = ([difference(Fact::Count, "7")], [difference(Fact::Count, "6")]);
        let mut note = |found: &[Difference], seconds| {
            let Noted { changed, report } = hardware.note("a", found, start + Duration::from_secs(seconds));
            (changed, report)
        };
        assert_eq!(note(&[], 0), (false, false));
        assert_eq!(note(&seven, 1), (true, true));
        assert_eq!(note(&seven, 2), (false, false));
        assert_eq!(note(&six, 3), (true, false));
        assert_eq!(note(&[], 4), (true, false));
        assert_eq!(note(&six, 5), (true, false));
        assert_eq!(note(&six, 700), (false, true));
        assert_eq!(note(&six, 2000), (false, false));
        assert_eq!(note(&[], 2001), (true, false));
        assert!(hardware.nodes.is_empty());
        assert_eq!(hardware.counts().map(|(_, nodes)| nodes).sum::<usize>(), 0);
    }

    #[test]
    fn nodes_are_counted_by_fact_until_they_are_gone() {
        let (mut hardware, now) = (Hardware::default(), Instant::now());
        hardware.note("a", &[difference(Fact::Count, "7")], now);
        hardware.note("b", &[difference(Fact::Count, "6"), difference(Fact::Memory, "1")], now);
        hardware.note("a", &[difference(Fact::Count, "5")], now);
        let counts = |hardware: &Hardware| hardware.counts().map(|(_, nodes)| nodes).collect::<Vec<_>>();
        assert_eq!(counts(&hardware), [0, 2, 1]);
        hardware.forget("b");
        hardware.forget("b");
        assert_eq!(counts(&hardware), [0, 1, 0]);
        hardware.note("a", &[], now);
        assert_eq!(counts(&hardware), [0, 0, 0]);
    }
}
