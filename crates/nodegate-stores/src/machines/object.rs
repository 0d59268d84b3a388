//! What is read of the objects that provisioners make for machines.

use kube::ResourceExt as _;
use kube::core::Object;
use serde::{Deserialize, Serialize};

use nodegate_policy::api::pools::MachineKind;
use nodegate_policy::api::state::{AssertedMachine, ProvisionedBy};
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
    pub(super) provisioner: Provisioner,
    /// `NAME`, or `NAMESPACE/NAME`.
    pub(super) name: Box<str>,
    uid: Box<str>,
    pub(super) provider_id: Box<str>,
    /// The names of the machine, in lower case, as those of nodes are.
    pub(super) host_names: Box<[Box<str>]>,
    /// The values of the labels that are asked for, in their order; empty for those that it does not have.
    values: Box<[Box<str>]>,
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
            NAMES.contains(&&*address.kind) && !address.address.is_empty() && !address.address.starts_with("localhost")
        };
        let names = addresses.iter().filter(is_name).take(NAMES_MAX);
        let mut host_names: Vec<Box<str>> = names.map(|name| name.address.to_ascii_lowercase().into()).collect();
        host_names.sort_unstable();
        host_names.dedup();
        let values = asked.iter().map(|key| object.labels().get(&**key).map_or("", String::as_str).into());
        Self {
            provisioner,
            name: name_of(object),
            uid: object.uid().unwrap_or_default().into(),
            provider_id: provider_id.into(),
            host_names: host_names.into(),
            values: values.collect(),
        }
    }

    /// The instance in the ID of its machine; empty if it has none yet.
    pub(super) fn instance(&self) -> &str {
        instance_of(&self.provider_id)
    }

    /// The names of nodes that it leads to.
    pub(super) fn node_names(&self) -> Vec<Box<str>> {
        let derived = node_names(&self.provider_id).into_iter().map(|name| Box::from(&*name));
        let mut names: Vec<Box<str>> = derived.chain(self.host_names.iter().cloned()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether it leads to the node with this name.
    pub(super) fn leads_to(&self, node: &str) -> bool {
        self.host_names.iter().any(|name| **name == *node)
            || node_names(&self.provider_id).iter().any(|name| **name == *node)
    }

    /// Whether its node has one of these names for certain.
    pub(super) fn is_named(&self) -> bool {
        !self.host_names.is_empty() || is_named_after(&self.provider_id)
    }

    /// As it is recorded of the node with this name, which has its provider ID.
    pub(super) fn asserted(&self, node: &str) -> AssertedMachine {
        AssertedMachine {
            group: self.provisioner.group().to_owned(),
            kind: self.provisioner.kind().as_str().to_owned(),
            name: self.name.to_string(),
            provider_id: self.provider_id.to_string(),
            has_another_name: self.is_named() && !self.leads_to(node),
        }
    }

    /// As it is recorded of a node. `by_instance`: whether its instance has led to it.
    pub(super) fn provisioned(&self, asked: &[Box<str>], by_instance: bool) -> ProvisionedBy {
        let labels = asked.iter().zip(&self.values).map(|(key, value)| (key.clone(), value.clone()));
        ProvisionedBy {
            group: self.provisioner.group().into(),
            kind: self.provisioner.kind().as_str().into(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            provider_id: self.provider_id.clone(),
            by_instance,
            labels: labels.collect(),
        }
    }
}

/// `NAME`, or `NAMESPACE/NAME`.
pub(super) fn name_of(object: &Watched) -> Box<str> {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()).into(),
        None => object.name_any().into(),
    }
}
