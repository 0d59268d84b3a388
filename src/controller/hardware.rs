//! Compares what `nodegate probe` found on a node before any driver ran with what GPU feature discovery reports after it.
//!
//! Both are labels on the node, so this reads nothing else, and changes nothing: people look at the hardware.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::node::NodeObject;
use super::reconcile::Reconciler;
use nodegate_policy::gpu::probed::{Difference, Fact, differences};

/// How often differences of one node are told. A node's own labels can change at any rate.
const PAUSE: Duration = Duration::from_secs(600);

/// The differences of nodes, by uid.
#[derive(Debug, Default)]
pub(super) struct Hardware(HashMap<String, Seen>);

#[derive(Debug, Default)]
struct Seen {
    now: Vec<Difference>,
    /// What was told last, and when.
    told: Option<(Vec<Difference>, Instant)>,
}

/// What to do about the differences of a node.
#[derive(Debug, PartialEq, Eq)]
struct Noted {
    /// They are others than before.
    changed: bool,
    /// They have not been told yet.
    tell: bool,
}

impl Hardware {
    fn note(&mut self, uid: &str, found: &[Difference], now: Instant) -> Noted {
        if found.is_empty() && !self.0.contains_key(uid) {
            return Noted { changed: false, tell: false };
        }
        let seen = self.0.entry(uid.to_owned()).or_default();
        let changed = seen.now != found;
        seen.now = found.to_owned();
        let is_news = seen.told.as_ref().is_none_or(|(told, _)| told != found);
        let may_tell = seen.told.as_ref().is_none_or(|(_, at)| now.saturating_duration_since(*at) >= PAUSE);
        let tell = !found.is_empty() && is_news && may_tell;
        if tell {
            seen.told = Some((found.to_owned(), now));
        } else if found.is_empty() && may_tell {
            self.0.remove(uid);
        }
        Noted { changed, tell }
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// How many nodes differ in each fact.
    pub(super) fn counts(&self) -> BTreeMap<Fact, usize> {
        let mut counts: BTreeMap<Fact, usize> = Fact::ALL.into_iter().map(|fact| (fact, 0)).collect();
        for difference in self.0.values().flat_map(|seen| &seen.now) {
            *counts.entry(difference.fact).or_default() += 1;
        }
        counts
    }
}

impl Reconciler {
    /// Compares the labels of a node. An event tells about differences when they are first seen or become others.
    pub(super) fn compare_hardware(&self, node: &NodeObject) {
        let Ok(facts) = node.facts() else { return };
        let found = differences(facts.labels());
        let noted = {
            let mut memory = self.memory();
            let noted = memory.hardware.note(node.uid(), &found, Instant::now());
            if noted.changed {
                self.metrics().controller.hardware_differs(memory.hardware.counts());
            }
            noted
        };
        if noted.tell {
            let told: Vec<String> = found.iter().map(ToString::to_string).collect();
            let note = format!("{}; check the hardware, the driver and the age of the labels", told.join("; "));
            tracing::warn!(node = node.name(), "{note}");
            self.events().later(node, "HardwareDiffers", note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(fact: Fact, reported: &str) -> Difference {
        Difference { fact, probed: "8".to_owned(), reported: reported.to_owned() }
    }

    #[test]
    fn each_difference_is_told_once_and_a_node_that_flaps_is_told_once_in_ten_minutes() {
        let (mut hardware, start) = (Hardware::default(), Instant::now());
        let (seven, six) = ([difference(Fact::Count, "7")], [difference(Fact::Count, "6")]);
        let mut note = |found: &[Difference], seconds| {
            let Noted { changed, tell } = hardware.note("a", found, start + Duration::from_secs(seconds));
            (changed, tell)
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
        assert!(hardware.0.is_empty());
    }

    #[test]
    fn nodes_are_counted_by_fact_until_they_are_gone() {
        let (mut hardware, now) = (Hardware::default(), Instant::now());
        hardware.note("a", &[difference(Fact::Count, "7")], now);
        hardware.note("b", &[difference(Fact::Count, "6"), difference(Fact::Memory, "1")], now);
        assert_eq!(hardware.counts().into_values().collect::<Vec<_>>(), [0, 2, 1]);
        hardware.forget("b");
        hardware.note("a", &[], now);
        assert_eq!(hardware.counts().into_values().sum::<usize>(), 0);
    }
}
