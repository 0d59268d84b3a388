//! `pools` of a [`NodePolicySpec`](super::policy::NodePolicySpec): which nodes belong to a pool, and what proves it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What stands for the name of a pool in what proves it.
pub(crate) const POOL_PLACEHOLDER: &str = "{pool}";

/// A pool: a set of machines that are made alike. A node belongs to it if one of these proves it; none of them is chosen by a
/// kubelet. Several entries may have the same name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    /// Name of the pool, for `match.pools`; absent with `nameFrom`. `{pool}`: the names are where groups, values of extra information or
    /// node names have `{pool}`, as in `system:bootstrappers:pool-{pool}`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The provisioner's object that provably stands for the node's machine, and its label with the name of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_from: Option<PoolNameFromSpec>,
    /// What the API server authenticated about the kubelet that created the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<PoolRequesterSpec>,
    /// Who asked for the certificate of that kubelet (CertificateSigningRequest `spec`), also through its renewals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<PoolBootstrapSpec>,
    /// Node names, exact or with `*`, `?`, `[…]`. A kubelet's credential is for one name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
}

/// A label of the object that a provisioner made for the node's machine. The object is found by what is authenticated: by the ID of
/// the instance in the kubelet's extra information, else by the node's name, where the provider derives that from the ID or
/// the provisioner has it among the machine's addresses. The provider ID that a kubelet claims proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolNameFromSpec {
    /// The kind of the object.
    pub kind: MachineKind,
    /// The key of its label whose value is the name of the pool.
    pub label: String,
    /// The namespaces of the object, exact or with `*`, `?`, `[…]`. Defaults to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Vec<String>>,
    /// The key of the kubelet's extra information that has the ID of its instance. Defaults to `sessionName`, which EKS sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// The kind of an object that a provisioner makes for each machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MachineKind {
    /// Karpenter's (`karpenter.sh`).
    NodeClaim,
    /// Cluster API's (`cluster.x-k8s.io`) and OpenShift's (`machine.openshift.io`).
    Machine,
}

impl MachineKind {
    /// As the documents write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeClaim => "NodeClaim",
            Self::Machine => "Machine",
        }
    }
}

/// What the API server authenticated about a kubelet (`authentication.k8s.io/v1 UserInfo`): all given fields must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolRequesterSpec {
    /// Groups, exact or with `*`, `?`, `[…]`: the kubelet is in one of them. Those that every kubelet is in prove nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// For each key of `extra`, values, exact or with `*`, `?`, `[…]`: the kubelet has one of them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Who asked for a kubelet's first certificate (`certificates.k8s.io/v1 CertificateSigningRequest`, which has what the API server
/// authenticated about its creator): all given fields must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolBootstrapSpec {
    /// Groups, exact or with `*`, `?`, `[…]`: who asked is in one of them, such as one of a bootstrap token's
    /// `auth-extra-groups`. Those that every bootstrap token is in prove nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// IDs of bootstrap tokens (the part before the dot), exact or with `*`, `?`, `[…]`: it was asked for with one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<String>>,
}
