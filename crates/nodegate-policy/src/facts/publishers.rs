//! Daemons that publish families of labels.

use crate::api::names::prefix_of;
use crate::facts::NodeFacts;

/// Publishers of label families: daemons whose labels may all be absent for a moment while they
/// restart.
pub(crate) const PUBLISHERS: [&str; 7] = [
    "feature.node.kubernetes.io",
    "nvidia.com",
    "amd.com",
    "beta.amd.com",
    "gpu.intel.com",
    "intel.feature.node.kubernetes.io",
    "network.nvidia.com",
];

/// The publishers of which the node has labels now, sorted.
pub(crate) fn publishers(facts: &NodeFacts<'_>) -> Vec<String> {
    let has = |prefix: &str| facts.labels().any(|(key, _)| prefix_of(key) == Some(prefix));
    let mut found: Vec<String> =
        PUBLISHERS.iter().filter(|prefix| has(prefix)).map(|prefix| (*prefix).to_owned()).collect();
    found.sort_unstable();
    found
}

/// The publisher that a label belongs to, if any.
pub(crate) fn publisher_of(key: &str) -> Option<&str> {
    prefix_of(key).filter(|prefix| PUBLISHERS.contains(prefix))
}
