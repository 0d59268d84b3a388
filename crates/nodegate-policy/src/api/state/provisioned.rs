//! The object that a provisioner made for the machine of a node. Every replica keeps one for each node, so it takes little memory.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::Deserializer;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// An object that a provisioner made for the machine of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionedBy {
    /// The group of its API. Each has one object of a machine.
    #[serde(deserialize_with = "known")]
    pub group: Cow<'static, str>,
    /// Its kind, as in `nameFrom`. A text, so that one of a newer version does not make the record unreadable.
    #[serde(deserialize_with = "known")]
    pub kind: Cow<'static, str>,
    /// Its name, `NAMESPACE/NAME` if it is in a namespace.
    pub name: Box<str>,
    /// Its uid.
    pub uid: Box<str>,
    /// The provider's ID of the machine; empty if the object has none.
    #[serde(rename = "providerID", default, skip_serializing_if = "str::is_empty")]
    pub provider_id: Box<str>,
    /// Whether the kubelet was authenticated as that instance. Otherwise the node's name has led to the object.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_instance: bool,
    /// The values of its labels that policies ask for, empty for those that it does not have.
    #[serde(default, skip_serializing_if = "ObjectLabels::is_empty")]
    pub labels: ObjectLabels,
}

/// The groups and kinds that a record takes no memory for.
const KNOWN: [&str; 5] = ["karpenter.sh", "cluster.x-k8s.io", "machine.openshift.io", "NodeClaim", "Machine"];

fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'static, str>, D::Error> {
    let text = Cow::<str>::deserialize(deserializer)?;
    let same = KNOWN.into_iter().find(|known| **known == *text);
    Ok(same.map_or_else(|| Cow::Owned(text.into_owned()), Cow::Borrowed))
}

/// A few labels, sorted by key. A map would take half a kilobyte for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<Box<str>, Box<str>>")]
pub struct ObjectLabels(Box<[(Box<str>, Box<str>)]>);

impl ObjectLabels {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| &**value)
    }

    /// The keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl From<BTreeMap<Box<str>, Box<str>>> for ObjectLabels {
    fn from(labels: BTreeMap<Box<str>, Box<str>>) -> Self {
        Self(labels.into_iter().collect())
    }
}

impl<K: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(K, V)> for ObjectLabels {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(labels: T) -> Self {
        let all: BTreeMap<Box<str>, Box<str>> =
            labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        all.into()
    }
}

impl Serialize for ObjectLabels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_read_and_written_as_in_older_records() {
        let text = json!({"group": "karpenter.sh", "kind": "NodeClaim", "name": "n", "uid": "u", "providerID": "x://1",
            "byInstance": true, "labels": {"b": "2", "a": "1"}});
        let object: ProvisionedBy = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(serde_json::to_value(&object).unwrap(), text);
        assert!(matches!((&object.group, &object.kind), (Cow::Borrowed(_), Cow::Borrowed(_))), "{object:?}");
        assert_eq!(
            (object.labels.get("a"), object.labels.get("b"), object.labels.get("c")),
            (Some("1"), Some("2"), None)
        );
        let least = json!({"group": "newer", "kind": "Other", "name": "n", "uid": "u"});
        let object: ProvisionedBy = serde_json::from_value(least.clone()).unwrap();
        assert!(object.labels.is_empty() && object.group == "newer");
        assert_eq!(serde_json::to_value(&object).unwrap(), least);
        let labels: ObjectLabels = serde_json::from_str(r#"{"b": "1", "a": "2", "b": "3"}"#).unwrap();
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3")]);
        assert!(serde_json::from_value::<ObjectLabels>(json!(["a"])).is_err());
    }
}
