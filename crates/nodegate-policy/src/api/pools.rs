//! `pools` of a [`NodePolicySpec`](super::policy::NodePolicySpec): which nodes belong to a pool, and what proves it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pool: a set of machines that are made alike. A node belongs to it if one of these proves it; none of them is chosen by a
/// kubelet. Several entries may have the same name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    /// Name of the pool, for `match.pools`.
    pub name: String,
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
