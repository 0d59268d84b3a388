//! Finds names of resources that are probably mistyped.

use super::places::conditions;
use super::{Lint, LintName};
use crate::api::document::PolicyDocument;
use crate::api::problem::Problem;
use crate::api::schema::nearest;

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

/// Resources in `capacity` that are most likely misspelt. They are no errors, because a device plugin may report any
/// resource.
pub(super) fn mistyped(document: &PolicyDocument, lints: &mut Vec<Lint>) {
    for (path, conditions) in conditions(document) {
        for (resource, meant) in conditions.capacity.keys().filter_map(|key| Some((key, meant(key)?))) {
            let what = format!("{resource:?} is not a resource that nodegate knows");
            let problem = Problem::new(what, format!("did you mean {meant:?}?"));
            let fault = document.fault_at_key(&path.key("capacity").key(resource), problem);
            lints.push(Lint { name: LintName::MistypedResource, fault });
        }
    }
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
