//! Compares what `nodegate probe` found on a node before any driver ran with what GPU feature discovery reports after it.
//!
//! Both are labels on the node, so this reads nothing else, and changes nothing: people look at the hardware.

use std::time::{Duration, Instant};

use nodegate_policy::gpu::probed::Difference;

/// The least time between two events about one node, whose labels can change at any rate.
const PAUSE: Duration = Duration::from_secs(600);

/// The differences of a node; nothing where there are none and were none lately.
#[derive(Debug, Default)]
pub(crate) struct Hardware(Option<Box<KnownDifferences>>);

#[derive(Debug, Default)]
struct KnownDifferences {
    now: Vec<Difference>,
    /// What the last event said, and when.
    reported: Option<(Vec<Difference>, Instant)>,
}

impl Hardware {
    /// Takes up what was found. Returns whether an event has to say so.
    pub(crate) fn note(&mut self, found: &[Difference], now: Instant) -> bool {
        if found.is_empty() && self.0.is_none() {
            return false;
        }
        let known = self.0.get_or_insert_default();
        found.clone_into(&mut known.now);
        let is_news = known.reported.as_ref().is_none_or(|(reported, _)| reported != found);
        let may_report = known.reported.as_ref().is_none_or(|(_, at)| now.saturating_duration_since(*at) >= PAUSE);
        let report = !found.is_empty() && is_news && may_report;
        if report {
            known.reported = Some((found.to_owned(), now));
        } else if found.is_empty() && may_report {
            self.0 = None;
        }
        report
    }

    /// The differences that there are now.
    pub(crate) fn differences(&self) -> &[Difference] {
        self.0.as_ref().map_or(&[], |known| &known.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodegate_policy::gpu::probed::Fact;

    fn difference(fact: Fact, reported: &str) -> Difference {
        Difference { fact, probed: "8".to_owned(), reported: reported.to_owned() }
    }

    #[test]
    fn each_difference_is_reported_once_and_a_node_that_flaps_once_in_ten_minutes() {
        let (mut hardware, start) = (Hardware::default(), Instant::now());
        let (seven, six) = ([difference(Fact::Count, "7")], [difference(Fact::Count, "6")]);
        let mut note = |found: &[Difference], seconds| {
            let report = hardware.note(found, start + Duration::from_secs(seconds));
            assert_eq!(hardware.differences(), found);
            report
        };
        assert!(!note(&[], 0));
        assert!(note(&seven, 1));
        assert!(!note(&seven, 2) && !note(&six, 3) && !note(&[], 4) && !note(&six, 5));
        assert!(note(&six, 700));
        assert!(!note(&six, 2000) && !note(&[], 2001));
        assert!(hardware.0.is_none());
    }
}
