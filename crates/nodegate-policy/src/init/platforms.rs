//! Platforms whose pools a preset proves, as far as their nodes show them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::json;

use super::FleetNode;
use crate::api::case::{Case, MachineCase};
use crate::api::pools::MachineKind;
use crate::api::presets;
use crate::set::pools::name::{PoolNameIn, is_pool_name};

/// The labels with the names of pools: of Karpenter, of EKS and eksctl, and of AKS.
pub(super) const NODEPOOL: &str = "karpenter.sh/nodepool";
pub(super) const NODE_GROUPS: [&str; 2] = ["eks.amazonaws.com/nodegroup", "alpha.eksctl.io/nodegroup-name"];
pub(super) const AGENTPOOL: &str = "kubernetes.azure.com/agentpool";

/// Where the preset `aks` finds the pool in the name of a node.
static NAMES_ON_AKS: LazyLock<Vec<PoolNameIn>> = LazyLock::new(|| {
    let preset = presets::get(Platform::Aks.preset());
    let names = preset.iter().flat_map(|preset| &preset.spec.pools).flat_map(|pool| pool.names.iter().flatten());
    names.filter_map(|name| PoolNameIn::parse(name).ok()).collect()
});

/// Who makes a node's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Platform {
    Karpenter,
    Eks,
    Aks,
}

/// The platform of a node, and its pool there. Karpenter comes first, because its machines on EKS and AKS are its own.
pub(super) fn pool_of(node: &FleetNode) -> Option<(Platform, &str)> {
    let label = |key: &str| node.labels.get(key).map(String::as_str).filter(|pool| is_pool_name(pool));
    let aks = || label(AGENTPOOL).filter(|pool| is_name_on_aks(&node.name, pool)).map(|pool| (Platform::Aks, pool));
    label(NODEPOOL)
        .map(|pool| (Platform::Karpenter, pool))
        .or_else(|| NODE_GROUPS.into_iter().find_map(label).map(|pool| (Platform::Eks, pool)))
        .or_else(aks)
}

/// Whether the preset `aks` finds this pool in this name.
fn is_name_on_aks(name: &str, pool: &str) -> bool {
    NAMES_ON_AKS.iter().any(|place| place.find(name) == Some(pool))
}

impl Platform {
    pub(super) fn preset(self) -> &'static str {
        match self {
            Self::Karpenter => "karpenter",
            Self::Eks => "eks",
            Self::Aks => "aks",
        }
    }

    /// What a person must know before the policy is in force.
    pub(super) fn note(self) -> &'static str {
        match self {
            Self::Karpenter => {
                "Preset karpenter: the pool of a node is the NodePool of its NodeClaim. Nodes that joined before the policy may prove \
                 it only when they are replaced."
            }
            Self::Eks => {
                "Preset eks: the pool of a node is the IAM role of its machine, which nodes do not show. The rules below have the \
                 names of node groups: give the machines of each group a role of this name, or write the names of their roles \
                 instead. Nodes that joined before the policy prove their pool when they are replaced."
            }
            Self::Aks => "Preset aks: the pool of a node is in its name.",
        }
    }

    /// A node of this pool as it joins, and what proves that it is one.
    pub(super) fn joining(self, node: &FleetNode, pool: &str) -> Case {
        let mut case = Case { node: Some(json!({"name": node.name})), ..Case::default() };
        match self {
            Self::Karpenter => {
                case.extra.insert("sessionName".to_owned(), vec!["i-0123456789abcdef0".to_owned()]);
                let labels = BTreeMap::from([(NODEPOOL.to_owned(), pool.to_owned())]);
                case.provisioned_by = Some(MachineCase { kind: MachineKind::NodeClaim, provider_id: None, labels });
            }
            Self::Eks => {
                let role = format!("arn:aws:iam::111122223333:role/{pool}");
                case.extra.insert("canonicalArn".to_owned(), vec![role]);
            }
            Self::Aks => {}
        }
        case
    }

    /// A node that says it is of this pool, and proves nothing.
    pub(super) fn claiming(self, pool: &str) -> Case {
        let key = match self {
            Self::Karpenter => NODEPOOL,
            Self::Eks => NODE_GROUPS[0],
            Self::Aks => AGENTPOOL,
        };
        let node = json!({"name": "node-of-somebody", "labels": {key: pool}});
        Case { node: Some(node), ..Case::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_of_a_node_is_seen_by_its_labels() {
        let of = |name: &str, labels: &[(&str, &str)]| {
            let mut node = FleetNode::named(name);
            node.labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            pool_of(&node).map(|(platform, pool)| (platform, pool.to_owned()))
        };
        let some = |platform: Platform, pool: &str| Some((platform, pool.to_owned()));
        assert_eq!(of("n", &[(NODEPOOL, "a"), (NODE_GROUPS[0], "b")]), some(Platform::Karpenter, "a"));
        assert_eq!(of("n", &[(NODE_GROUPS[1], "b")]), some(Platform::Eks, "b"));
        let aks = [(AGENTPOOL, "gpu")];
        assert_eq!(of("aks-gpu-12345678-vmss00000a", &aks), some(Platform::Aks, "gpu"));
        // The preset finds no pool in these names.
        for name in
            ["aks-gpux-12345678-vmss000001", "aks-gpu-1234567-vmss000001", "aksgpu000001", "aks-gpu-12345678-vmss1"]
        {
            assert_eq!(of(name, &aks), None, "{name}");
        }
        assert_eq!(of("n", &[(NODEPOOL, ""), ("pool", "x")]), None);
    }
}
