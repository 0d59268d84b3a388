//! The two example fleets and a recorded review, embedded in the binary.

use serde_json::{Value as Json, json};

use nodegate_policy::api::source::parse_documents;

/// A fleet: its policy, and its nodes as their kubelets register them.
pub(super) struct Fleet {
    pub(super) name: &'static str,
    pub(super) policy: &'static str,
    nodes: &'static [&'static str],
}

macro_rules! fleet {
    ($name:literal, [$($node:literal),*]) => {
        Fleet {
            name: $name,
            policy: include_str!(concat!("../../../../examples/", $name, "/policy.yaml")),
            nodes: &[$(include_str!(concat!("../../../../examples/", $name, "/nodes/", $node, ".yaml"))),*],
        }
    };
}

pub(super) const FLEETS: [Fleet; 2] = [
    fleet!("fako", ["yeezyai", "pgbee", "pgmac01", "pgmac02", "pglenovo01", "pglenovo02", "thinkpad01"]),
    fleet!("llm-d-lab", ["master-0", "master-1", "master-2", "gpu-worker-0", "gpu-worker-1", "gpu-worker-2"]),
];

/// A kubelet's CREATE, as sent by kube-apiserver 1.36.3.
const RECORDED: &str = include_str!("../../../../tests/data/admission-reviews/kubelet-create.json");

impl Fleet {
    /// The nodes, as JSON.
    ///
    /// # Errors
    /// Returns an error if an embedded file is not YAML, which the tests rule out.
    pub(super) fn nodes(&self) -> anyhow::Result<Vec<Json>> {
        let mut nodes = Vec::new();
        for text in self.nodes {
            nodes.extend(parse_documents(text)?.iter().map(|tree| tree.to_json()));
        }
        Ok(nodes)
    }
}

/// The recorded review with another write in it.
///
/// # Errors
/// Returns an error if the recording is not JSON, which the tests rule out.
pub(super) fn review(
    node: &Json,
    old: Option<&Json>,
    status: bool,
    user: &(String, Vec<String>),
) -> anyhow::Result<Json> {
    let mut review: Json = serde_json::from_str(RECORDED)?;
    let request = &mut review["request"];
    request["name"] = node["metadata"]["name"].clone();
    request["operation"] = json!(if old.is_some() { "UPDATE" } else { "CREATE" });
    request["userInfo"] = json!({"username": user.0, "groups": user.1});
    request["object"] = node.clone();
    request["oldObject"] = old.cloned().unwrap_or_default();
    if status {
        request["subResource"] = json!("status");
        request["requestSubResource"] = json!("status");
    }
    Ok(review)
}
