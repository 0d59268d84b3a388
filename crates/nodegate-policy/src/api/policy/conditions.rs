//! `match` of rules and sections: which nodes they are about.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which nodes match: all given fields must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MatchSpec {
    /// The conditions.
    #[serde(flatten)]
    pub conditions: ConditionsSpec,
    /// At least one of these must match as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub any_of: Option<Vec<ConditionsSpec>>,
}

/// Conditions on a node: all given fields must match. A list matches if any of its elements does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConditionsSpec {
    /// Node names, exact or with `*`, `?`, `[…]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// Names of `pools`, exact or with `*`, `?`, `[…]`: the node is proven to belong to one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<String>>,
    /// A Kubernetes label selector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<SelectorSpec>,
    /// Taints as `key`, `key:Effect` or `key=value:Effect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-nodegate" = "taint-text"))]
    pub taints: Option<Vec<String>>,
    /// Comparisons with `>=`, `>`, `<=`, `<` or `==` for resources of `status.capacity`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("x-nodegate" = "comparison"))]
    pub capacity: BTreeMap<String, String>,
    /// Conditions on the GPUs that nodegate infers for the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuSpec>,
    /// `status.nodeInfo.osImage`: globs such as `Ubuntu 22.04*`, or a name and version ranges such as `Ubuntu >=22.04 <25`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os_image: Option<Vec<String>>,
    /// `status.nodeInfo.kernelVersion`: version ranges such as `>=5.15 <6.2`, or globs such as `*-aws`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Vec<String>>,
    /// The same as `kernel`, under the name that it has in a Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_version: Option<Vec<String>>,
    /// A CEL expression over `node`, `gpu`, `inventory` and `identity` that yields a boolean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
}

/// A Kubernetes label selector (`meta/v1 LabelSelector`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SelectorSpec {
    /// Labels that must have exactly these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements that must all hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<RequirementSpec>,
}

/// One requirement of a label selector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequirementSpec {
    /// The label key.
    pub key: String,
    /// How the label relates to the values.
    pub operator: Operator,
    /// Required for `In` and `NotIn`, not allowed otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// The operators of a label selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// The label is present and has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// Conditions on the inferred GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuSpec {
    /// `nvidia`, `amd` or `intel`; a glob is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Model in lower case without the vendor, such as `rtx-3050`; a glob is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Number of GPUs, compared as in `capacity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-nodegate" = "comparison"))]
    pub count: Option<String>,
}
