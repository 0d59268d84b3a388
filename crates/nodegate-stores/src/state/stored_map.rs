//! A ConfigMap with saved state as a whole, to delete it.

use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, RemoveOperation};
use jsonptr::PointerBuf;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::Preconditions;
use serde_json::json;

use super::Identity;
use super::layout::{NAME_PREFIX, STATE_KEY, is_aside, is_corrupt, parse};

/// A ConfigMap that holds saved state, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMap {
    /// Its name.
    pub name: String,
    /// The names of the nodes of its records.
    pub nodes: Vec<String>,
    /// Whether its current record cannot be read.
    pub is_unreadable: bool,
    /// The identities of its records.
    identities: Vec<String>,
    /// The data keys that nodegate writes.
    own: Vec<String>,
    /// Whether there is other data.
    has_others: bool,
    uid: Option<String>,
    version: Option<String>,
}

/// The result of deleting an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// It is gone.
    Done,
    /// It was changed since it was read, so it is still there.
    Changed,
}

impl StoredMap {
    /// `None` if the ConfigMap holds nothing that nodegate writes.
    pub(super) fn of(config_map: &ConfigMap) -> Option<Self> {
        let name = config_map.name_any();
        name.strip_prefix(NAME_PREFIX)?;
        let data = config_map.data.iter().flatten();
        let is_own = |key: &str| key == STATE_KEY || is_aside(key) || is_corrupt(key);
        let (own, others): (Vec<_>, Vec<_>) = data.partition(|(key, _)| is_own(key));
        if own.is_empty() {
            return None;
        }
        let records = own.iter().filter(|(key, _)| !is_corrupt(key)).map(|(key, text)| (key, parse(text)));
        let (mut nodes, mut identities, mut is_unreadable) = (Vec::new(), Vec::new(), false);
        for (key, record) in records {
            match record {
                Ok(state) => {
                    identities.push(Identity::key(&state));
                    nodes.push(state.node_name);
                }
                Err(_) => is_unreadable |= *key == STATE_KEY,
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        Some(Self {
            name,
            nodes,
            is_unreadable,
            identities,
            has_others: !others.is_empty() || config_map.binary_data.as_ref().is_some_and(|data| !data.is_empty()),
            own: own.into_iter().map(|(key, _)| key.clone()).collect(),
            uid: config_map.uid(),
            version: config_map.resource_version(),
        })
    }

    /// Whether there is other data in it.
    pub(super) fn has_others(&self) -> bool {
        self.has_others
    }

    /// The object as it was read.
    pub(super) fn preconditions(&self) -> Preconditions {
        Preconditions { resource_version: self.version.clone(), uid: self.uid.clone() }
    }

    /// Removes what nodegate wrote. The API server answers 409 if the current resourceVersion differs.
    pub(super) fn without_own_data(&self) -> JsonPatch {
        let remove =
            |key: &String| PatchOperation::Remove(RemoveOperation { path: PointerBuf::from_tokens(["data", key]) });
        let version = PatchOperation::Add(AddOperation {
            path: PointerBuf::from_tokens(["metadata", "resourceVersion"]),
            value: json!(self.version),
        });
        JsonPatch(std::iter::once(version).chain(self.own.iter().map(remove)).collect())
    }

    /// Whether one of its records is in use for a machine with one of these identities.
    pub fn is_of(&self, living: impl Fn(&str) -> bool) -> bool {
        self.identities.iter().any(|identity| living(identity))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn stored(name: &str, data: serde_json::Value) -> Option<StoredMap> {
        let config_map = json!({"metadata": {"name": name, "uid": "u", "resourceVersion": "7"}, "data": data});
        StoredMap::of(&serde_json::from_value(config_map).unwrap())
    }

    #[test]
    fn only_a_config_map_with_nodegates_data_holds_saved_state() {
        let record = r#"{"nodeName": "n1", "labels": {}}"#;
        assert_eq!(stored("other", json!({"state.json": record})), None);
        assert_eq!(stored("node-labels-n1", json!({"notes.txt": "mine"})), None);
        let plain = stored("node-labels-n1", json!({"state.json": record})).unwrap();
        assert_eq!(
            (plain.nodes.as_slice(), plain.is_unreadable, plain.has_others),
            (&["n1".to_owned()][..], false, false)
        );
        assert!(plain.is_of(|identity| identity == "name=n1") && !plain.is_of(|identity| identity == "name=n2"));
        let mixed =
            stored("node-labels-n1", json!({"state.json": "{", "corrupt-1.txt": "x", "notes.txt": "mine"})).unwrap();
        assert!(mixed.is_unreadable && mixed.has_others && mixed.nodes.is_empty());
        assert_eq!(mixed.own, ["corrupt-1.txt", "state.json"]);
    }
}
