//! The object that a provisioner made for the machine of a node. Every replica keeps one for each node, so it takes little memory.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::digits::Uid;
use super::shared::SharedValues;
use super::texts::TextMap;

/// An object that a provisioner made for the machine of a node, as the record of that node has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ProvisionedDocument", into = "ProvisionedDocument")]
pub struct ProvisionedBy {
    /// The object. A replica that follows the objects has the same one.
    pub object: Arc<ProvisionerObject>,
    /// Whether the kubelet was authenticated as that instance. Otherwise the node's name has led to the object.
    pub by_instance: bool,
}

impl Deref for ProvisionedBy {
    type Target = ProvisionerObject;

    fn deref(&self) -> &ProvisionerObject {
        &self.object
    }
}

/// An object that a provisioner made for a machine.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct ProvisionerObject {
    kindred: Arc<Kindred>,
    /// Its name, `NAMESPACE/NAME` if it is in a namespace.
    pub name: Box<str>,
    /// Its uid.
    pub uid: Uid,
    /// The provider's ID of the machine; empty if the object has none.
    pub provider_id: Box<str>,
}

/// What many objects have in common: all of a pool.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Kindred {
    group: Cow<'static, str>,
    kind: Cow<'static, str>,
    labels: TextMap,
}

impl ProvisionerObject {
    /// The group of its API. Each has one object of a machine.
    pub fn group(&self) -> &str {
        &self.kindred.group
    }

    /// Its kind, as in `nameFrom`.
    pub fn kind(&self) -> &str {
        &self.kindred.kind
    }

    /// The values of its labels that policies ask for, empty for those that it does not have.
    pub fn labels(&self) -> &TextMap {
        &self.kindred.labels
    }
}

/// An object of a provisioner in a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionedDocument {
    /// The group of its API.
    pub group: Cow<'static, str>,
    /// Its kind. A text, so that one of a newer version does not make the record unreadable.
    pub kind: Cow<'static, str>,
    /// Its name, `NAMESPACE/NAME` if it is in a namespace.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The provider's ID of the machine; empty if the object has none.
    #[serde(rename = "providerID", default, skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// Whether the kubelet was authenticated as that instance.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_instance: bool,
    /// The values of its labels that policies ask for, empty for those that it does not have.
    #[serde(default, skip_serializing_if = "TextMap::is_empty")]
    pub labels: TextMap,
}

impl From<ProvisionedDocument> for ProvisionedBy {
    fn from(document: ProvisionedDocument) -> Self {
        static KINDRED: LazyLock<SharedValues<Kindred>> = LazyLock::new(SharedValues::default);
        static OBJECTS: LazyLock<SharedValues<ProvisionerObject>> = LazyLock::new(SharedValues::default);
        let ProvisionedDocument { group, kind, name, uid, provider_id, by_instance, labels } = document;
        let kindred = KINDRED.of(Kindred { group, kind, labels });
        let (name, uid, provider_id) = (name.into(), uid.into(), provider_id.into());
        Self { object: OBJECTS.of(ProvisionerObject { kindred, name, uid, provider_id }), by_instance }
    }
}

impl From<ProvisionedBy> for ProvisionedDocument {
    fn from(ProvisionedBy { object, by_instance }: ProvisionedBy) -> Self {
        Self {
            group: object.kindred.group.clone(),
            kind: object.kindred.kind.clone(),
            name: object.name.to_string(),
            uid: object.uid.to_string(),
            provider_id: object.provider_id.to_string(),
            by_instance,
            labels: object.labels().clone(),
        }
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
        let value = |key: &str| object.labels().get(key);
        assert_eq!((value("a"), value("b"), value("c")), (Some("1"), Some("2"), None));
        let of_another_node: ProvisionedBy = serde_json::from_value(text.clone()).unwrap();
        assert!(Arc::ptr_eq(&object.object, &of_another_node.object), "kept once");
        let mut next = text;
        next["name"] = json!("next");
        let next: ProvisionedBy = serde_json::from_value(next).unwrap();
        assert!(object != next && Arc::ptr_eq(&object.kindred, &next.kindred));
        let least = json!({"group": "newer", "kind": "Other", "name": "n", "uid": "u"});
        let object: ProvisionedBy = serde_json::from_value(least.clone()).unwrap();
        assert!(object.labels().is_empty() && object.group() == "newer");
        assert_eq!(serde_json::to_value(&object).unwrap(), least);
    }
}
