//! Saved state: what nodegate keeps for a node, also when the node is deleted and created again.
//!
//! `nodeName`, `labels` and `capturedAt` are those of the reference operator's `state.json`, so its
//! documents can be read. Unknown fields are kept, because a newer version may have written them.

mod authenticated;
mod bootstrap;
mod change;
mod digits;
mod provisioned;
mod shared;
mod texts;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize};

pub use authenticated::AuthenticatedAs;
pub use bootstrap::{Bootstrap, BootstrapDocument};
pub use change::{Change, How};
pub use digits::{Uid, sha256_of};
pub use provisioned::{ProvisionedBy, ProvisionedDocument, ProvisionerObject};
pub use texts::{SharedText, TextMap};

/// The `state.json` document of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedState {
    /// The node's name.
    pub node_name: String,
    /// Persisted labels.
    #[serde(default)]
    pub labels: TextMap,
    /// When this was captured (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured_at: Option<String>,
    /// The uid of the node object this was captured from.
    #[serde(rename = "nodeUID", default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// Persisted taints.
    #[serde(default, deserialize_with = "exact", skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<SavedTaint>,
    /// The identity of the machine according to `--identity`; absent if that is only the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The keys that nodegate owns, which rules do not match on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owned: Option<Owned>,
    /// The programs that have published labels on this node object, to distinguish their restart from their absence.
    #[serde(default, deserialize_with = "exact", skip_serializing_if = "Vec::is_empty")]
    pub publishers: Vec<SharedText>,
    /// Those that did so on an earlier object of the node and have not yet on this one.
    #[serde(default, deserialize_with = "exact", skip_serializing_if = "Vec::is_empty")]
    pub publishers_before: Vec<SharedText>,
    /// When nodegate noticed that the node was deleted (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<String>,
    /// The last changes of the node, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Change>,
    /// How often this was written, so that two records of the same content can be told apart.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub revision: u64,
    /// A random word that admission leaves on a node whose keys it restored from this, so that the controller can tell that
    /// from what a kubelet says. Another one for each node object and for each change of the saved labels and taints. Records
    /// that older versions wrote have none; what admission restored from them is restored again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_token: Option<String>,
    /// What the API server authenticated about the kubelet that created this node object, if a policy asked for it: the evidence
    /// for its pools, as lines of text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authenticated_as: Option<AuthenticatedAs>,
    /// Who asked for the certificates of this node's kubelets, if a policy asks for it. Those of the kubelet that created the last
    /// node object are last.
    #[serde(default, skip_serializing_if = "<[Bootstrap]>::is_empty")]
    pub bootstrapped_by: Box<[Bootstrap]>,
    /// The provisioners' objects that stand for the machine of this node object, if a policy asks for them.
    #[serde(default, skip_serializing_if = "<[ProvisionedBy]>::is_empty")]
    pub provisioned_by: Box<[ProvisionedBy]>,
    /// The kinds of which no other object stands for that machine.
    #[serde(default, deserialize_with = "exact", skip_serializing_if = "Vec::is_empty")]
    pub not_provisioned_by: Vec<String>,
    /// The uid of the node object that these are about. A version that does not know them keeps them for the next object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_for: Option<Uid>,
    /// What was asserted about this node object that its kubelet is not proven to be, if a policy asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asserted: Option<Box<Asserted>>,
    /// The pools that an administrator vouches for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Box<Adopted>>,
    /// What was saved of an earlier node of this name that was of another pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_another_pool: Option<Box<SavedOfPool>>,
    /// Fields of a newer version, which are kept.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// A list without room for more: lists grow as they are read.
fn exact<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let mut list = Vec::deserialize(deserializer)?;
    list.shrink_to_fit();
    Ok(list)
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl SavedState {
    /// Whether it describes the node object with this uid, and not another one of its name.
    pub fn is_of_object(&self, uid: Option<&str>) -> bool {
        uid.is_some() && self.node_uid.as_deref() == uid
    }

    /// Whether what is recorded of provisioners' objects is about the node object that it describes.
    pub(crate) fn is_provisioned(&self) -> bool {
        self.node_uid.as_deref().zip(self.provisioned_for.as_ref()).is_some_and(|(own, of)| *of == *own)
    }

    /// The provisioners' objects that stood for the machine of the node object that it describes.
    pub fn machines(&self) -> &[ProvisionedBy] {
        if self.is_provisioned() { &self.provisioned_by } else { &[] }
    }

    /// What an administrator vouches for, of the node object that it describes.
    pub fn adopted(&self) -> Option<&Adopted> {
        self.adopted.as_deref().filter(|adopted| self.is_of_object(Some(&adopted.node_uid)))
    }

    /// What is saved of the node that it describes, with the evidence for its pools.
    pub(crate) fn of_last_pool(&self) -> SavedOfPool {
        SavedOfPool {
            authenticated_as: self.authenticated_as.as_ref().map(AuthenticatedAs::text),
            provisioned_by: self.machines().into(),
            adopted: self.adopted().cloned(),
            labels: self.labels.clone(),
            taints: self.taints.clone(),
            ..SavedOfPool::default()
        }
    }

    /// Whether what there is to restore is of a machine of a provisioner.
    pub fn was_provisioned(&self) -> bool {
        let of_another = self.of_another_pool.as_ref().is_some_and(|saved| !saved.provisioned_by.is_empty());
        self.restores() && (!self.machines().is_empty() || of_another)
    }

    /// Whether there is something to restore to a node, of whichever pool.
    pub fn restores(&self) -> bool {
        !self.labels.is_empty() || !self.taints.is_empty() || self.of_another_pool.is_some()
    }

    /// Whether it contains nothing worth keeping: no node UID and no keys, also of an earlier pool.
    pub fn says_nothing(&self) -> bool {
        self.node_uid.is_none()
            && self.labels.is_empty()
            && self.taints.is_empty()
            && self.owned.is_none()
            && self.of_another_pool.is_none()
    }
}

/// What was saved of a node of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedOfPool {
    /// The evidence for its pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authenticated_as: Option<String>,
    /// The provisioners' objects that stood for its machine.
    #[serde(default, skip_serializing_if = "<[ProvisionedBy]>::is_empty")]
    pub provisioned_by: Box<[ProvisionedBy]>,
    /// The pools that an administrator vouched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Adopted>,
    /// Persisted labels.
    #[serde(default, skip_serializing_if = "TextMap::is_empty")]
    pub labels: TextMap,
    /// Persisted taints.
    #[serde(default, deserialize_with = "exact", skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<SavedTaint>,
    /// Fields of a newer version, which are kept.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// What an administrator said about one node object (`nodegate pools adopt`). It counts as far as nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Adopted {
    /// The uid of the node object. The next one of its name is another machine, perhaps, of which nobody has said anything.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// The pools that it belongs to, sorted by name.
    pub pools: Vec<String>,
    /// The name of the user who said it, as the API server authenticated it.
    pub by: String,
    /// When (RFC 3339).
    pub at: String,
    /// Fields of a newer version, which are kept.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// What was asserted about a node object that its kubelet is not proven to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Asserted {
    /// The uid of the node object. A version that does not know what was asserted keeps it for the next object.
    #[serde(rename = "nodeUID", default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// The provisioners' objects that do not stand for its machine, but have its provider ID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<AssertedMachine>,
    /// The certificates for its name that descend from other bootstraps than the one that it was created with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<Bootstrap>,
    /// Fields of a newer version, which are kept.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// An object of a provisioner that has the provider ID of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssertedMachine {
    /// The group of its API.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its name, `NAMESPACE/NAME` if it is in a namespace.
    pub name: String,
    /// The provider ID.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// Whether its own node has another name for certain.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_another_name: bool,
}

/// A persisted taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SavedTaint {
    /// The key.
    pub key: SharedText,
    /// The value, empty if there is none.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub value: SharedText,
    /// The effect.
    pub effect: SharedText,
}

/// The keys that nodegate owns on a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owned {
    /// Labels with the values that nodegate set.
    #[serde(default, skip_serializing_if = "TextMap::is_empty")]
    pub labels: TextMap,
    /// Annotations with the values that nodegate set.
    #[serde(default, skip_serializing_if = "TextMap::is_empty")]
    pub annotations: TextMap,
    /// Taints that nodegate added.
    #[serde(default, deserialize_with = "exact", skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<SavedTaint>,
    /// Grace period before removal in seconds, by key (`key:Effect` for a taint), if it is not 60. It applies even after
    /// its rule is deleted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub remove_after: BTreeMap<SharedText, u64>,
    /// Those of the labels that a migration copied from another key. The copy that becomes the new key stays.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub copies: BTreeSet<SharedText>,
    /// Those of the labels that others set and a migration took over at cutover. They are given back if its phase goes back
    /// to `dualWrite`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub taken_over: BTreeSet<SharedText>,
    /// The change that was under way when this was recorded, until the node shows whether it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<Box<Unsettled>>,
}

/// Labels and taints that nodegate may be setting.
///
/// The labels and taints of [`Owned`] are those that the node has after the change. This is what else may be true.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unsettled {
    /// The version of the node that the change applies to. The API server refuses it for any other one.
    pub resource_version: String,
    /// The values that changes of this version set, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, BTreeSet<String>>,
    /// The same for taints, by `key:Effect`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub taints: BTreeMap<String, BTreeSet<String>>,
    /// Owned labels with the values that they have before the change, if it replaces these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replaced_labels: BTreeMap<String, String>,
    /// The same for taints, by `key:Effect`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replaced_taints: BTreeMap<String, String>,
}
