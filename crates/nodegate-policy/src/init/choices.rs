//! What rules can match on where names say nothing: labels of node groups, the instance type, the zone, and pools.

use std::collections::BTreeSet;

use super::{FleetNode, platforms, values};
use crate::api::names::check_label_value;

/// Labels with the name of a node's group or pool, as provisioners and managed services set them. The sources are in the table of
/// keys of programs.
pub(super) const GROUP_KEYS: [&str; 12] = [
    platforms::NODEPOOL,
    platforms::NODE_GROUPS[0],
    platforms::NODE_GROUPS[1],
    "cloud.google.com/gke-nodepool",
    platforms::AGENTPOOL,
    "kops.k8s.io/instancegroup",
    "worker.gardener.cloud/pool",
    "hypershift.openshift.io/nodePool",
    "doks.digitalocean.com/node-pool",
    "ibm-cloud.kubernetes.io/worker-pool-name",
    "k8s.scaleway.com/pool-name",
    "lke.linode.com/pool-id",
];
/// Labels that may group nodes, but whose values do not say what nodes are for.
const OTHER_KEYS: [&str; 2] = ["node.kubernetes.io/instance-type", "topology.kubernetes.io/zone"];

/// Something that rules can match on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What `--by` takes: `pool`, or the key of a label.
    pub by: String,
    /// The number of groups.
    pub groups: usize,
    /// The number of nodes that are in one.
    pub nodes: usize,
}

/// What rules can match on in this fleet.
pub(super) fn of(fleet: &[&FleetNode]) -> Vec<Choice> {
    let pools: Vec<&str> = fleet.iter().filter_map(|node| platforms::pool_of(node)).map(|(_, pool)| pool).collect();
    let pool = choice("pool", &pools);
    let keys = GROUP_KEYS.into_iter().chain(OTHER_KEYS).map(|key| of_key(fleet, key));
    let groups = |choice: &Choice| choice.nodes > 0 && values::groups(choice.groups, choice.nodes);
    std::iter::once(pool).chain(keys).filter(groups).collect()
}

/// The groups that a label makes.
pub(super) fn of_key(fleet: &[&FleetNode], key: &str) -> Choice {
    choice(key, &fleet.iter().filter_map(|node| group_of(node, key)).collect::<Vec<_>>())
}

fn choice(by: &str, values: &[&str]) -> Choice {
    let groups: BTreeSet<&str> = values.iter().copied().collect();
    Choice { by: by.to_owned(), groups: groups.len(), nodes: values.len() }
}

/// The name of a node's group or pool, as its provisioner or a managed service has set it, and the label that has it; `label` finds the
/// values of its labels.
pub fn node_group<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Option<(&'static str, &'a str)> {
    GROUP_KEYS.into_iter().find_map(|key| Some((key, label(key)?)))
}

/// The value of a label, if a policy can name it.
pub(super) fn group_of<'a>(node: &'a FleetNode, key: &str) -> Option<&'a str> {
    node.labels.get(key).map(String::as_str).filter(|value| check_label_value(value).is_ok())
}

/// What to do, as the end of a message.
pub(super) fn advice(choices: &[Choice]) -> String {
    let one = |choice: &Choice| match choice.groups {
        1 => format!("--by {} (1 group)", choice.by),
        groups => format!("--by {} ({groups} groups)", choice.by),
    };
    match choices {
        [] => "use --by KEY with the key of a label that groups nodes".to_owned(),
        [only] => format!("use {}", one(only)),
        [all @ .., last] => {
            format!("use {} or {}", all.iter().map(one).collect::<Vec<_>>().join(", "), one(last))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Field, programs};

    #[test]
    fn a_label_of_node_groups_is_set_by_a_program() {
        for key in GROUP_KEYS {
            assert!(programs::of(Field::Label, key, None).is_some(), "{key}");
        }
    }

    #[test]
    fn advice_names_what_there_is() {
        let choice = |by: &str, groups| Choice { by: by.to_owned(), groups, nodes: 9 };
        assert_eq!(advice(&[choice("a", 1)]), "use --by a (1 group)");
        let three = [choice("pool", 2), choice("b", 3), choice("c", 4)];
        assert_eq!(advice(&three), "use --by pool (2 groups), --by b (3 groups) or --by c (4 groups)");
        assert!(advice(&[]).contains("--by KEY"));
    }
}
