//! How saved state is laid out in ConfigMaps: `node-labels-<node>` with the document under `state.json`, compatible with the label
//! operator.
//!
//! A record is in the ConfigMap that has its own name: `node-labels-<node>` or, if that is too long or used by another
//! node's document, with a hash behind it. A machine that is found by its ID alone keeps its record under any name. Copies
//! are reported and left alone ([`super::index::Index`]).

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

use super::Identity;
use nodegate_base::text::on_a_line;
use nodegate_policy::api::stable_hash::stable_hash;
use nodegate_policy::api::state::SavedState;

/// The prefix of the names of nodegate's ConfigMaps.
pub const NAME_PREFIX: &str = "node-labels-";
/// The data key of the current document.
pub const STATE_KEY: &str = "state.json";
/// The prefix of the data keys of kept documents of other machines with the same name.
const ASIDE_PREFIX: &str = "state-";
/// The prefix of the data keys of unreadable texts.
const CORRUPT_PREFIX: &str = "corrupt-";
/// Maximum length of a ConfigMap's name (a DNS subdomain).
const NAME_MAX: usize = 253;
/// The length of a hash in a name.
const HASH_LENGTH: usize = 16;

/// A document that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedDocument {
    /// The ConfigMap.
    pub config_map: String,
    /// The node, according to the ConfigMap's name; for a copy, according to its document.
    pub node: String,
    /// The reason.
    pub why: Unused,
}

impl UnusedDocument {
    /// A copy of the record of `node`, which is in a ConfigMap with the usual name.
    pub fn copy(config_map: String, node: &str) -> Self {
        let record = name_for(node, &format!("name={node}"), false);
        Self::copy_of(record, config_map, node)
    }

    /// A copy of the record of `node`, which is in the ConfigMap `record`.
    pub fn copy_of(record: String, config_map: String, node: &str) -> Self {
        Self { config_map, node: node.to_owned(), why: Unused::Copy { node: node.to_owned(), record } }
    }

    /// The reason and the note of the event about it.
    pub fn event(&self) -> (&'static str, String) {
        let (reason, note) = match &self.why {
            Unused::Unreadable(why) => {
                let note = format!("it is unreadable: {why}; nodegate treats it as empty and keeps a copy of its text");
                ("UnreadableState", note)
            }
            copy @ Unused::Copy { .. } => ("CopiedState", copy.to_string()),
        };
        (reason, format!("ConfigMap {}: {note}", self.config_map))
    }
}

/// Why a document is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unused {
    /// It cannot be read.
    #[error("it is unreadable: {0}")]
    Unreadable(String),
    /// It is a copy of the record of a node, under another name.
    #[error("it is a copy, because the record of node {node} is ConfigMap {record}; delete the copy")]
    Copy {
        /// The node.
        node: String,
        /// The ConfigMap of the record.
        record: String,
    },
}

impl Unused {
    /// Says that a document cannot be read, and which field manager wrote it last, if the API server knows that.
    pub fn unreadable(why: &str, config_map: &ConfigMap, key: &str) -> Self {
        let field = format!("f:{key}");
        let writes = |entry: &&ManagedFieldsEntry| {
            let data = entry.fields_v1.as_ref().and_then(|fields| fields.0.get("f:data"));
            data.is_some_and(|data| data.get(&field).is_some())
        };
        let writers = config_map.metadata.managed_fields.iter().flatten().filter(writes);
        let last = writers.max_by(|one, other| one.time.cmp(&other.time)).and_then(|entry| entry.manager.as_deref());
        let by = last.map(|manager| format!("; its last writer is {}", on_a_line(manager)));
        Self::Unreadable(why.to_owned() + &by.unwrap_or_default())
    }
}

/// Parses one document.
pub(super) fn parse(text: &str) -> Result<SavedState, String> {
    let state: SavedState = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if state.node_name.is_empty() { Err("nodeName is empty".to_owned()) } else { Ok(state) }
}

/// The name for a new ConfigMap: `node-labels-<node>`, or with a hash if that is too long or `taken`.
pub(super) fn name_for(node: &str, identity: &str, taken: bool) -> String {
    let plain = format!("{NAME_PREFIX}{node}");
    if !taken && plain.len() <= NAME_MAX {
        return plain;
    }
    let hash = hash(identity);
    let head: String = plain.chars().take(NAME_MAX - HASH_LENGTH - 1).collect();
    format!("{}-{hash}", head.trim_end_matches(['.', '-']))
}

/// Whether a document in a ConfigMap with this name can be the record of its node. A machine that is found by its ID alone keeps its
/// record when its node gets another name. Of several such ConfigMaps, [`super::Precedence`] says which has the record.
pub fn is_record(config_map: &str, state: &SavedState) -> bool {
    is_record_of(config_map, &state.node_name) || Identity::is_without_name(state)
}

/// Whether a ConfigMap with this name can be the record of a node: the name is the usual one, or that with a hash of any
/// identity. All others are copies.
fn is_record_of(name: &str, node: &str) -> bool {
    let plain = format!("{NAME_PREFIX}{node}");
    let head: String = plain.chars().take(NAME_MAX - HASH_LENGTH - 1).collect();
    let is_hash =
        |text: &str| text.len() == HASH_LENGTH && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    let hash = name.strip_prefix(head.trim_end_matches(['.', '-'])).and_then(|rest| rest.strip_prefix('-'));
    name == plain || hash.is_some_and(is_hash)
}

/// The data key of the kept document of another machine.
pub(super) fn aside_key(identity: &str) -> String {
    format!("{ASIDE_PREFIX}{}.json", hash(identity))
}

/// The data key of an unreadable text.
pub(super) fn corrupt_key(text: &str) -> String {
    format!("{CORRUPT_PREFIX}{}.txt", hash(text))
}

/// Whether a data key is that of a kept document.
pub(super) fn is_aside(key: &str) -> bool {
    key.starts_with(ASIDE_PREFIX) && key.ends_with(".json")
}

/// Whether a data key is that of an unreadable text.
pub(super) fn is_corrupt(key: &str) -> bool {
    key.starts_with(CORRUPT_PREFIX) && key.ends_with(".txt")
}

/// The hash of a text, as names have it.
fn hash(text: &str) -> String {
    format!("{:016x}", stable_hash(text.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_label_operator_if_possible() {
        assert_eq!(name_for("kind-worker", "name=kind-worker", false), "node-labels-kind-worker");
        let taken = name_for("kind-worker", "name=kind-worker", true);
        assert!(taken.starts_with("node-labels-kind-worker-") && taken.len() == 40, "{taken}");
        let long = format!("{}.{}", "a".repeat(63), "b".repeat(180));
        let name = name_for(&long, "x", false);
        assert!(name.len() <= NAME_MAX && name != name_for(&long, "y", false), "{name}");
    }

    #[test]
    fn a_record_has_the_usual_name_or_one_with_a_hash() {
        let long = format!("{}.{}", "a".repeat(63), "b".repeat(180));
        for node in ["kind-worker", &long] {
            for taken in [false, true] {
                assert!(is_record_of(&name_for(node, "any identity", taken), node), "{node} {taken}");
            }
        }
        for name in
            ["node-labels-kind-worker-copy", "node-labels-kind-workers", "node-labels-kind-worker-0123456789abcdeg"]
        {
            assert!(!is_record_of(name, "kind-worker"), "{name}");
        }
    }
}
