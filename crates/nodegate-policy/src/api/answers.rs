//! `answer` of an [`InventorySpec`](super::policy::InventorySpec): how labels are read out of an API that knows nothing of nodegate.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How to read labels out of what an inventory answers.
///
/// Expressions read `item`, one of the things that the answer lists, and `key`, its key if these are the values of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnswerSpec {
    /// The format of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<AnswerFormat>,
    /// JSON pointer to the list of items, such as `/results`; if omitted, the answer itself. An object instead of a list is the only
    /// item, or its values are the items if an expression reads `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<String>,
    /// Expression that yields the name of the node that an item is about, such as `item.name`. An item without one is skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Expression that yields the ID of the machine that an item is about, instead of `node`: of the instance, such as `item.id`, or the
    /// whole ID of the provider. It is compared with the one as which the kubelet was authenticated, and with that of the provisioner's
    /// object for the machine. An item without one is skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Expressions that yield the values of labels, by label key. A node does not get a label whose expression yields null or an
    /// optional without a value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Expression that yields further labels, such as `item.labels`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_map: Option<String>,
    /// JSON pointer to the URL of the next page, such as `/next`. The last page has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The format of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AnswerFormat {
    /// JSON. This is the default.
    #[default]
    Json,
    /// Comma-separated values. The first line names the columns, and each further line is an item whose fields are text, or null if they
    /// are empty.
    Csv,
}
