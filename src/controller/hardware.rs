//! Compares what `nodegate probe` found on a node before any driver ran with what GPU feature discovery reports after it.
//!
//! Both are labels on the node, so this reads nothing else, and changes nothing: people look at the hardware.

use std::collections::{BTreeMap, HashMap};

use super::node::NodeObject;
use super::reconcile::Reconciler;
use nodegate_policy::gpu::probed::{Difference, Fact, differences};

/// The differences of the nodes that have any, by uid.
#[derive(Debug, Default)]
pub(super) struct Hardware(HashMap<String, Vec<Difference>>);

impl Hardware {
    /// Records the differences of a node. Returns whether they were others before.
    fn note(&mut self, uid: &str, found: &[Difference]) -> bool {
        if found.is_empty() {
            return self.0.remove(uid).is_some();
        }
        let before = self.0.insert(uid.to_owned(), found.to_owned());
        before.as_deref() != Some(found)
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// How many nodes differ in each fact.
    pub(super) fn counts(&self) -> BTreeMap<Fact, usize> {
        let mut counts: BTreeMap<Fact, usize> = Fact::ALL.into_iter().map(|fact| (fact, 0)).collect();
        for difference in self.0.values().flatten() {
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
        {
            let mut memory = self.memory();
            if !memory.hardware.note(node.uid(), &found) {
                return;
            }
            self.metrics().controller.hardware_differs(memory.hardware.counts());
        }
        if !found.is_empty() {
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
    fn each_difference_is_told_once_until_it_is_another_one() {
        let mut hardware = Hardware::default();
        assert!(!hardware.note("a", &[]));
        assert!(hardware.note("a", &[difference(Fact::Count, "7")]));
        assert!(!hardware.note("a", &[difference(Fact::Count, "7")]));
        assert!(hardware.note("a", &[difference(Fact::Count, "6")]));
        assert!(hardware.note("b", &[difference(Fact::Count, "6"), difference(Fact::Memory, "1")]));
        assert_eq!(hardware.counts().into_values().collect::<Vec<_>>(), [0, 2, 1]);
        assert!(hardware.note("a", &[]) && !hardware.note("a", &[]));
        hardware.forget("b");
        assert_eq!(hardware.counts().into_values().sum::<usize>(), 0);
    }
}
