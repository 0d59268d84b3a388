//! The pools of a node, and what proves them.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::NodeFacts;
use crate::facts::proof::asserted::Contradiction;
use crate::facts::proof::evidence::Evidence;
use crate::facts::proof::machines::instance_of;
use crate::set::PolicySet;
pub use crate::set::pools::ProofSource;

/// The pools of a node, and what proves them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeIdentity {
    /// The pools that it is proven to belong to, sorted by name.
    pub pools: Vec<String>,
    /// The pools that it may belong to: too little is recorded of its kubelet. Sorted by name.
    pub unknown: Vec<String>,
    /// Whether it may belong to pools of any name, because it is not known whether a provisioner's object stands for its machine, or what
    /// its kubelet was authenticated as.
    pub may_have_others: bool,
    /// The strongest proof of a pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<PoolProof>,
    /// The instance as which its kubelet was authenticated, if a policy asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// What is asserted about the node and contradicts what is proven of it.
    pub contradictions: Vec<Contradiction>,
}

/// What proves the pools of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolProof {
    /// Where it comes from.
    pub source: ProofSource,
    /// `groups` and extra information (`extra.KEY`) of a requester; the `object` of a provisioner, with the `providerID` of its machine and
    /// the `instance` or the `name` that leads to it; the `user` and `groups` of a bootstrap, with the `certificate` that the kubelet
    /// presented; who said it (`by`), and when (`at`), if an administrator did; or the `name`.
    pub evidence: BTreeMap<String, Vec<String>>,
}

/// Who asked for the certificate of a kubelet, and the certificate.
fn bootstrap(evidence: &Evidence<'_>) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    let mut note = |name: &str, texts: Vec<String>| found.insert(name.to_owned(), texts);
    if let Some(asked) = evidence.bootstrapper() {
        note("user", vec![asked.user().to_owned()]);
        note("groups", asked.groups().map(str::to_owned).collect());
    }
    if let Some(certificate) = evidence.certificate() {
        note("certificate", vec![certificate.to_owned()]);
    }
    found
}

/// The objects that stand for the machine, and what leads to them.
fn machine(node: &str, evidence: &Evidence<'_>) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for object in &evidence.machines().found {
        let mut note = |name: &str, text: String| {
            let texts = found.entry(name.to_owned()).or_default();
            if !text.is_empty() && !texts.contains(&text) {
                texts.push(text);
            }
        };
        note("object", format!("{} {}", object.kind(), object.name));
        note("providerID", object.provider_id.to_string());
        if object.by_instance {
            note("instance", instance_of(&object.provider_id).to_owned());
        } else {
            note("name", node.to_owned());
        }
    }
    found
}

/// The names of all pools of the policies; not those that only what proves them has (`nameFrom`, `{pool}`).
pub fn pool_names(set: &PolicySet) -> BTreeSet<&str> {
    set.pools().names()
}

/// What an administrator's word that a node belongs to a pool would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vouching {
    /// It would count: too little is known of the node.
    Counts,
    /// Nothing: that the node belongs to the pool is proven already.
    Proven(ProofSource),
    /// Nothing: what is known of the node proves that it does not.
    Refuted,
}

/// What an administrator's word that a node belongs to the pool would do. `evidence`: of [`Evidence::of_stored`].
pub fn vouching(set: &PolicySet, node: &NodeFacts<'_>, evidence: Option<&Evidence<'_>>, pool: &str) -> Vouching {
    let pools = set.pools().of_node(&node.name, &set.name_groups(&node.name), evidence);
    match pools.proven.iter().find(|(name, _)| *name == pool) {
        Some((_, source)) => Vouching::Proven(*source),
        None if pools.others().is_some() || pools.unknown.contains(pool) => Vouching::Counts,
        None => Vouching::Refuted,
    }
}

/// Whether the policies have a pool of this name, or what proves a pool may have it.
pub fn may_be_pool(set: &PolicySet, name: &str) -> bool {
    set.pools().have_any_names() || set.pools().names().contains(name)
}

/// The pools of a node; `None` if no policy has pools. `evidence`: of [`Evidence::of_stored`].
pub fn identity(set: &PolicySet, node: &NodeFacts<'_>, evidence: Option<&Evidence<'_>>) -> Option<NodeIdentity> {
    if set.pools().is_empty() {
        return None;
    }
    let pools = set.pools().of_node(&node.name, &set.name_groups(&node.name), evidence);
    let proof = pools.strongest().map(|(_, proof)| match proof {
        ProofSource::Requester => {
            PoolProof { source: ProofSource::Requester, evidence: evidence.map(Evidence::by_name).unwrap_or_default() }
        }
        ProofSource::Machine => {
            let evidence = evidence.map(|evidence| machine(&node.name, evidence)).unwrap_or_default();
            PoolProof { source: ProofSource::Machine, evidence }
        }
        ProofSource::Bootstrap => {
            PoolProof { source: ProofSource::Bootstrap, evidence: evidence.map(bootstrap).unwrap_or_default() }
        }
        ProofSource::Administrator => {
            let said = evidence.and_then(Evidence::adopted);
            let said = said.map(|said| [("by", &said.by), ("at", &said.at)]).into_iter().flatten();
            let evidence = said.map(|(name, text)| (name.to_owned(), vec![text.clone()])).collect();
            PoolProof { source: ProofSource::Administrator, evidence }
        }
        ProofSource::Name => {
            let evidence = BTreeMap::from([("name".to_owned(), vec![node.name.to_string()])]);
            PoolProof { source: ProofSource::Name, evidence }
        }
    });
    Some(NodeIdentity {
        pools: pools.proven.iter().map(|(name, _)| (*name).to_owned()).collect(),
        unknown: pools.unknown.iter().map(|name| (*name).to_owned()).collect(),
        may_have_others: pools.others().is_some(),
        proof,
        instance: set.instance(evidence).map(str::to_owned),
        contradictions: evidence.map(|evidence| set.contradictions(node, evidence)).unwrap_or_default(),
    })
}
