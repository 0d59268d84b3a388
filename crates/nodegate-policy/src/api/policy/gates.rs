//! `gates` of a [`NodePolicySpec`](super::NodePolicySpec): labels without which a joining node gets no pods.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions::MatchSpec;

/// Labels that a joining node waits for with the pending taint, whoever sets them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateSpec {
    /// Name of the gate, unique in its policy.
    pub name: String,
    /// Label keys that the node must have, all of them, each with any value.
    pub labels: Vec<String>,
    /// Which nodes wait, and for how long.
    #[serde(flatten)]
    pub wait: WaitSpec,
}

/// Which nodes wait, and for how long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitSpec {
    /// Which nodes this is about. If omitted or empty, every node.
    #[serde(rename = "match", default, skip_serializing_if = "Option::is_none")]
    pub match_: Option<MatchSpec>,
    /// How long after its creation a node waits for the labels, such as 10m (the default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-nodegate" = "duration"))]
    pub timeout: Option<String>,
    /// What becomes of a node that still lacks one of them then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
}

/// What becomes of a node that has waited for as long as it should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnTimeout {
    /// It loses the taint, and gets pods without the labels. This is the default.
    #[default]
    Release,
    /// It keeps the taint until it has the labels.
    Keep,
}

impl OnTimeout {
    /// As the documents write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Keep => "keep",
        }
    }
}
