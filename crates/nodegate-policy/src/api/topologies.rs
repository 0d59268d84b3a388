//! `topologies` of a [`NodePolicySpec`](super::policy::NodePolicySpec): labels that say where a node is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gates::OnTimeout;
use super::policy::MatchSpec;

/// Where nodes are, such as in a block, a rack and an NVLink domain: one label for each level. A kubelet may not set them, but for those
/// that every kubelet maintains, such as the zone. A joining node waits until it has all of them, whoever sets them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpec {
    /// Name of the topology, unique in its policy.
    pub name: String,
    /// Which nodes are in it. If omitted or empty, every node is.
    #[serde(rename = "match", default, skip_serializing_if = "Option::is_none")]
    pub match_: Option<MatchSpec>,
    /// The label key of each level, outermost first.
    pub levels: Vec<String>,
    /// How long after its creation a node waits for them, such as 10m (the default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-nodegate" = "duration"))]
    pub timeout: Option<String>,
    /// What becomes of a node that still lacks one of them then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
}
