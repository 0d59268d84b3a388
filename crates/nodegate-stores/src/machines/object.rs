//! What is read of the objects that provisioners make for machines.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::core::Object;
use serde::{Deserialize, Serialize};

use nodegate_policy::api::pools::MachineKind;
use nodegate_policy::api::state::{AssertedMachine, ProvisionedBy, ProvisionedDocument, ProvisionerObject};
use nodegate_policy::{instance_of, is_named_after, node_names};

/// An API with such objects. Each has the ID of its machine, the labels of its pool, and what the provider says of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Provisioner {
    /// Karpenter (`pkg/apis/v1/nodeclaim_status.go`).
    Karpenter,
    /// Cluster API (`api/core/v1beta2/machine_types.go`).
    ClusterApi,
    /// OpenShift (`machine/v1beta1/types_machine.go`).
    OpenShift,
}

impl Provisioner {
    const ALL: [Self; 3] = [Self::Karpenter, Self::ClusterApi, Self::OpenShift];

    /// Those with objects of one of these kinds.
    pub(super) fn of(kinds: &[MachineKind]) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|provisioner| kinds.contains(&provisioner.kind()))
    }

    pub(super) fn kind(self) -> MachineKind {
        match self {
            Self::Karpenter => MachineKind::NodeClaim,
            Self::ClusterApi | Self::OpenShift => MachineKind::Machine,
        }
    }

    pub(super) fn group(self) -> &'static str {
        match self {
            Self::Karpenter => "karpenter.sh",
            Self::ClusterApi => "cluster.x-k8s.io",
            Self::OpenShift => "machine.openshift.io",
        }
    }
}

/// The fields that are read, in any version of any of the APIs.
pub(super) type Watched = Object<Option<Spec>, Status>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    addresses: Option<Vec<Address>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

/// The kinds of addresses that are names of a machine within its cluster (`core/v1 NodeAddressType`). Others' names can be given by
/// whoever owns a domain.
const NAMES: [&str; 2] = ["Hostname", "InternalDNS"];

/// How many names of a machine are kept.
const NAMES_MAX: usize = 16;

/// An object, as it is kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MachineObject {
    /// What is recorded of the node of its machine.
    object: Arc<ProvisionerObject>,
    /// The names of the machine, in lower case, as those of nodes are, a line each.
    host_names: Box<str>,
}

impl Deref for MachineObject {
    type Target = ProvisionerObject;

    fn deref(&self) -> &ProvisionerObject {
        &self.object
    }
}

impl MachineObject {
    /// What is kept of an object. `asked`: the keys of the labels that policies ask for.
    pub(super) fn read(provisioner: Provisioner, object: &Watched, asked: &[Box<str>]) -> Self {
        let (spec, status) = (object.spec.as_ref(), object.status.as_ref());
        let ids = [
            status.and_then(|status| status.provider_id.as_deref()),
            spec.and_then(|spec| spec.provider_id.as_deref()),
        ];
        let provider_id = ids.into_iter().flatten().find(|id| !id.is_empty()).unwrap_or_default();
        let addresses = status.and_then(|status| status.addresses.as_deref()).unwrap_or_default();
        let is_name = |address: &&Address| {
            let (kind, text) = (&*address.kind, &address.address);
            NAMES.contains(&kind) && !text.is_empty() && !text.contains('\n') && !text.starts_with("localhost")
        };
        let names = addresses.iter().filter(is_name).take(NAMES_MAX);
        let mut host_names: Vec<String> = names.map(|name| name.address.to_ascii_lowercase()).collect();
        host_names.sort_unstable();
        host_names.dedup();
        let value = |key: &str| object.labels().get(key).map_or("", String::as_str);
        let document = ProvisionedDocument {
            group: provisioner.group().into(),
            kind: provisioner.kind().as_str().into(),
            name: name_of(object),
            uid: object.uid().unwrap_or_default(),
            provider_id: provider_id.to_owned(),
            by_instance: false,
            labels: asked.iter().map(|key| (key.clone(), value(key))).collect(),
        };
        Self { object: ProvisionedBy::from(document).object, host_names: host_names.join("\n").into() }
    }

    /// Whether it is of this API.
    pub(super) fn is_of(&self, provisioner: Provisioner) -> bool {
        self.group() == provisioner.group()
    }

    fn host_names(&self) -> impl Iterator<Item = &str> {
        self.host_names.lines()
    }

    /// The texts by which it is found: its name, those of the machine, and its instance in lower case, from which the names of nodes are
    /// derived. Each once.
    pub(super) fn texts(&self) -> BTreeSet<Cow<'_, str>> {
        let instance = Some(self.instance().to_ascii_lowercase()).filter(|instance| !instance.is_empty());
        let names = self.host_names().map(Cow::Borrowed);
        names.chain([Cow::Borrowed(&*self.name)]).chain(instance.map(Cow::Owned)).collect()
    }

    /// The instance in the ID of its machine; empty if it has none yet.
    pub(super) fn instance(&self) -> &str {
        instance_of(&self.provider_id)
    }

    /// The names of nodes that it leads to.
    pub(super) fn node_names(&self) -> Vec<Box<str>> {
        let derived = node_names(&self.provider_id).into_iter().map(|name| Box::from(&*name));
        let mut names: Vec<Box<str>> = derived.chain(self.host_names().map(Into::into)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether it leads to the node with this name.
    pub(super) fn leads_to(&self, node: &str) -> bool {
        self.host_names().any(|name| name == node) || node_names(&self.provider_id).iter().any(|name| **name == *node)
    }

    /// Whether its node has one of these names for certain.
    fn is_named(&self) -> bool {
        !self.host_names.is_empty() || is_named_after(&self.provider_id)
    }

    /// Whether it has a machine whose node may have a name that does not lead to it.
    pub(super) fn is_nameless(&self) -> bool {
        !self.instance().is_empty() && !self.is_named()
    }

    /// As it is recorded of the node with this name, which has its provider ID.
    pub(super) fn asserted(&self, node: &str) -> AssertedMachine {
        AssertedMachine {
            group: self.group().to_owned(),
            kind: self.kind().to_owned(),
            name: self.name.to_string(),
            provider_id: self.provider_id.to_string(),
            has_another_name: self.is_named() && !self.leads_to(node),
        }
    }

    /// As it is recorded of a node. `by_instance`: whether its instance has led to it.
    pub(super) fn provisioned(&self, by_instance: bool) -> ProvisionedBy {
        ProvisionedBy { object: self.object.clone(), by_instance }
    }
}

/// `NAME`, or `NAMESPACE/NAME`.
pub(super) fn name_of(object: &Watched) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}
