//! `topologies` of a [`NodePolicySpec`](super::NodePolicySpec): labels that say where a node is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gates::WaitSpec;

/// Where nodes are, such as in a block, a rack and an NVLink domain: one label for each level. A kubelet may not set them, but for those
/// that every kubelet maintains, such as the zone. A joining node waits until it has all of them, whoever sets them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpec {
    /// Name of the topology, unique in its policy.
    pub name: String,
    /// The label key of each level, outermost first.
    pub levels: Vec<String>,
    /// Which nodes wait, and for how long.
    #[serde(flatten)]
    pub wait: WaitSpec,
}
