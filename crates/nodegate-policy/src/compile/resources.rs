//! Finds names of resources that are probably mistyped.

use std::collections::BTreeSet;

use crate::api::schema::nearest;
use crate::set::PolicySet;
use crate::set::matcher::{Condition, Matcher};

/// Resources of nodes: those that every kubelet reports, and those of common device plugins.
const KNOWN: [&str; 9] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "pods",
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
];

/// How many characters of a name may differ from the known one. Device plugins may use any name, so a name that is less
/// alike is none of the known ones.
const DIFFERENT_MAX: usize = 2;

impl PolicySet {
    /// Resources in `capacity` that are most likely misspelt, a sentence each, sorted. They are no errors, because a device
    /// plugin may report any resource.
    pub fn mistyped_resources(&self) -> Vec<String> {
        let rules = self.rules().iter().map(|rule| (&rule.id, &rule.matcher));
        let entries = self.governance().constraints().iter().map(|entry| (&entry.entry.id, &entry.entry.matcher));
        let found: BTreeSet<String> = rules
            .chain(entries)
            .flat_map(|(id, matcher)| {
                let meant = resources(matcher).filter_map(|resource| Some((resource, meant(resource)?)));
                meant.map(move |(resource, meant)| {
                    format!("{id}: {resource:?} is not a resource that nodegate knows; did you mean {meant:?}?")
                })
            })
            .collect();
        found.into_iter().collect()
    }
}

/// The resources that a match compares.
fn resources(matcher: &Matcher) -> impl Iterator<Item = &str> {
    let groups = std::iter::once(&matcher.all).chain(matcher.any_of.iter().flatten());
    groups.flat_map(|conditions| conditions.iter()).filter_map(|condition| match condition {
        Condition::Capacity(resource, _) => Some(&**resource),
        Condition::Names(_)
        | Condition::Label(_)
        | Condition::Taints(_)
        | Condition::Gpu(_)
        | Condition::NodeInfo(_)
        | Condition::Expression(_) => None,
    })
}

/// The resource that a name is most likely meant to be.
fn meant(resource: &str) -> Option<&'static str> {
    let near = nearest(resource, &KNOWN)?;
    let different = strsim::damerau_levenshtein(resource, near);
    (1..=DIFFERENT_MAX).contains(&different).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_proposed_only_if_the_name_is_almost_the_same() {
        for (written, known) in [
            ("nvdia.com/gpu", Some("nvidia.com/gpu")),
            ("nvidia.com/gpus", Some("nvidia.com/gpu")),
            ("memroy", Some("memory")),
            ("memory", None),
            ("nvidia.com/gpu.shared", None),
            ("nvidia.com/gpumem", None),
            ("nvidia.com/mig-1g.5gb", None),
            ("hugepages-2Mi", None),
            ("example.com/dongle", None),
        ] {
            assert_eq!(meant(written), known, "{written}");
        }
    }
}
