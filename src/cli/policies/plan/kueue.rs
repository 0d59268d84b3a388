//! What Kueue's Topology objects and the nodes and topologies of planned policies do not agree on.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value as Json;

use crate::cli::policies::plan::named::named;
use crate::cli::shared::cluster::objects;
use crate::cli::shared::output;
use crate::scheduling::{NodeState, Transition};
use nodegate_policy::{GateLabels, PolicySet, RuleId};

const GROUP: &str = "kueue.x-k8s.io";
/// What every node has, and Kueue allows as the innermost level.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Something in which a Topology of Kueue differs from nodes or policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KueueDifference {
    /// The name of the Topology.
    pub(in crate::cli) topology: String,
    /// What differs.
    pub(in crate::cli) because: KueueFault,
    /// The label of the level that it is about.
    pub(in crate::cli) level: String,
    /// The ResourceFlavor whose nodes lack it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) flavor: Option<String>,
    /// The nodes that it is about, sorted.
    pub(in crate::cli) nodes: Vec<String>,
    /// The topology of the policies with another order, as `policy/topology:NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) policy: Option<String>,
}

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum KueueFault {
    /// Nodes of a ResourceFlavor lack the label: Kueue places no pods on them.
    Lacking,
    /// These nodes wait for some levels of the Topology when they join, but not for this one: they get pods without it.
    Undeclared,
    /// The policies have this level further in than the Topology has it, or further out.
    Order,
}

/// The objects of Kueue in a cluster.
#[derive(Debug, Default)]
pub(super) struct Kueue {
    /// The levels of each Topology, outermost first.
    topologies: BTreeMap<String, Vec<String>>,
    flavors: Vec<Flavor>,
}

/// A ResourceFlavor with a Topology.
#[derive(Debug)]
struct Flavor {
    name: String,
    topology: String,
    node_labels: BTreeMap<String, String>,
}

impl Kueue {
    /// The Topologies of a cluster, and the ResourceFlavors that name them; none if they cannot be listed.
    pub(super) async fn of_cluster(client: &Client) -> Self {
        match Self::list(client).await {
            Ok(found) => found,
            Err(error) => {
                output::note(&format!("note: what Kueue knows of the nodes is not known: {error:#}"));
                Self::default()
            }
        }
    }

    async fn list(client: &Client) -> anyhow::Result<Self> {
        let mut found = Self::default();
        objects::each_of_kind(client, (GROUP, "Topology"), "", |topology| found.add_topology(&topology)).await?;
        if !found.topologies.is_empty() {
            objects::each_of_kind(client, (GROUP, "ResourceFlavor"), "", |flavor| found.add_flavor(&flavor)).await?;
        }
        Ok(found)
    }

    fn add_topology(&mut self, topology: &Json) {
        let levels = topology["spec"]["levels"].as_array().into_iter().flatten();
        let levels = levels.filter_map(|level| Some(level["nodeLabel"].as_str()?.to_owned()));
        self.topologies.insert(name(topology), levels.collect());
    }

    fn add_flavor(&mut self, flavor: &Json) {
        let Some(topology) = flavor["spec"]["topologyName"].as_str() else { return };
        let labels = flavor["spec"]["nodeLabels"].as_object().into_iter().flatten();
        let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        let (name, topology) = (name(flavor), topology.to_owned());
        self.flavors.push(Flavor { name, topology, node_labels: labels.collect() });
    }

    /// Whether there is a Topology that a ResourceFlavor names.
    pub(super) fn has_topologies(&self) -> bool {
        self.flavors.iter().any(|flavor| self.topologies.contains_key(&flavor.topology))
    }

    /// Where its Topologies differ from the nodes after the change, and from what these wait for. `gates`: the gates and topologies of
    /// the policies that each node is in.
    pub(super) fn differences(
        &self,
        set: &PolicySet,
        nodes: &[Transition],
        gates: &BTreeMap<String, Vec<RuleId>>,
    ) -> Vec<KueueDifference> {
        let mut found = Vec::new();
        for (name, levels) in &self.topologies {
            let mut of_topology = BTreeSet::new();
            for flavor in self.flavors.iter().filter(|flavor| flavor.topology == *name) {
                let of_flavor = flavor.nodes(nodes);
                found.extend(lacking(name, levels, flavor, &of_flavor));
                of_topology.extend(of_flavor.into_iter().map(|node| node.name.as_str()));
            }
            let gates: Vec<(&str, &[RuleId])> =
                of_topology.iter().filter_map(|node| Some((*node, gates.get(*node)?.as_slice()))).collect();
            found.extend(undeclared(name, levels, set, &gates));
            let is_in = |id: &RuleId| gates.iter().any(|(_, gates)| gates.contains(id));
            let declared = set.gate_labels().filter(|gate| gate.is_topology && is_in(gate.id));
            found.extend(declared.flat_map(|declared| another_order(name, levels, declared)));
        }
        found
    }
}

fn name(object: &Json) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

impl Flavor {
    /// Its nodes, as they are after the change.
    fn nodes<'n>(&self, nodes: &'n [Transition]) -> Vec<&'n NodeState> {
        let then = nodes.iter().map(|node| node.after.as_ref().unwrap_or(&node.before));
        let has_all =
            |node: &&NodeState| self.node_labels.iter().all(|(key, value)| node.labels.get(key) == Some(value));
        then.filter(has_all).collect()
    }
}

/// The nodes of a flavor that lack a level.
fn lacking(topology: &str, levels: &[String], flavor: &Flavor, nodes: &[&NodeState]) -> Vec<KueueDifference> {
    let lack = |level: &String| {
        let lacking = nodes.iter().filter(|node| !node.labels.contains_key(level));
        let nodes: BTreeSet<String> = lacking.map(|node| node.name.clone()).collect();
        let flavor = Some(flavor.name.clone());
        of_nodes(topology, KueueFault::Lacking, level, nodes).map(|found| KueueDifference { flavor, ..found })
    };
    levels.iter().filter_map(lack).collect()
}

/// The levels for which nodes do not wait although they wait for others of the same Topology. `gates`: what each node is in.
fn undeclared(topology: &str, levels: &[String], set: &PolicySet, gates: &[(&str, &[RuleId])]) -> Vec<KueueDifference> {
    let all: Vec<GateLabels<'_>> = set.gate_labels().collect();
    let waits = |ids: &[RuleId], level: &str| {
        all.iter().any(|gate| ids.contains(gate.id) && gate.labels.iter().any(|key| key.as_str() == level))
    };
    let of_policies = || levels.iter().filter(|level| level.as_str() != HOSTNAME);
    let missing = |level: &String| {
        let lacks = |(_, ids): &&(&str, &[RuleId])| !waits(ids, level) && of_policies().any(|other| waits(ids, other));
        let nodes = gates.iter().filter(lacks).map(|(node, _)| (*node).to_owned()).collect();
        of_nodes(topology, KueueFault::Undeclared, level, nodes)
    };
    of_policies().filter_map(missing).collect()
}

fn of_nodes(topology: &str, because: KueueFault, level: &str, nodes: BTreeSet<String>) -> Option<KueueDifference> {
    let nodes: Vec<String> = nodes.into_iter().collect();
    let (topology, level) = (topology.to_owned(), level.to_owned());
    (!nodes.is_empty()).then_some(KueueDifference { topology, because, level, flavor: None, nodes, policy: None })
}

/// The levels that a topology of the policies has in another order.
fn another_order(topology: &str, levels: &[String], declared: GateLabels<'_>) -> Vec<KueueDifference> {
    let mut innermost = 0;
    let mut found = Vec::new();
    for level in levels {
        let Some(at) = declared.labels.iter().position(|key| key.as_str() == level) else { continue };
        if at < innermost {
            let (policy, because) = (Some(declared.id.to_string()), KueueFault::Order);
            let (topology, level) = (topology.to_owned(), level.clone());
            found.push(KueueDifference { topology, because, level, flavor: None, nodes: Vec::new(), policy });
        }
        innermost = innermost.max(at);
    }
    found
}

/// It as a warning.
pub(super) fn in_words(
    KueueDifference { topology, because, level, flavor, nodes, policy }: &KueueDifference,
) -> String {
    let policy = policy.as_deref().unwrap_or_default();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    match because {
        KueueFault::Lacking => {
            let flavor = flavor.as_deref().unwrap_or_default();
            format!(
                "Kueue places no pods on nodes of ResourceFlavor {flavor} without {level}, a level of Topology {topology}: {}",
                named(&nodes)
            )
        }
        KueueFault::Undeclared => format!(
            "{level} is a level of Kueue's Topology {topology}, but nodes get pods before they have it, because no gate waits for it: {}",
            named(&nodes)
        ),
        KueueFault::Order => {
            format!("Kueue's Topology {topology} has {level} further in than {policy} has it: one of them is wrong")
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use nodegate_policy::{Origin, PolicyDocument};

    fn node(name: &str, labels: &[(&str, &str)]) -> NodeState {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        NodeState { name: name.to_owned(), labels, taints: Vec::new() }
    }

    /// Policies with these topologies, by their names.
    fn set(topologies: &[(&str, &[&str])]) -> PolicySet {
        let topologies: Vec<Json> =
            topologies.iter().map(|(name, levels)| json!({"name": name, "levels": levels})).collect();
        let document = PolicyDocument::new(
            "p",
            Origin::Object,
            serde_json::from_value(json!({"topologies": topologies})).unwrap(),
        );
        PolicySet::compile(&[document]).unwrap()
    }

    /// The warnings, if each node is in the topologies of these names.
    fn found(levels: &[&str], set: &PolicySet, nodes: &[Transition], of_each: &[&str]) -> Vec<String> {
        let levels: Vec<Json> = levels.iter().map(|level| json!({"nodeLabel": level})).collect();
        let mut kueue = Kueue::default();
        kueue.add_topology(&json!({"metadata": {"name": "gpus"}, "spec": {"levels": levels}}));
        for (name, topology) in [("h100", json!("gpus")), ("plain", Json::Null)] {
            kueue.add_flavor(&json!({"metadata": {"name": name},
                "spec": {"nodeLabels": {"kind": "gpu"}, "topologyName": topology}}));
        }
        let ids: Vec<RuleId> = set
            .gate_labels()
            .map(|gate| gate.id.clone())
            .filter(|id| of_each.iter().any(|name| *id.rule == *format!("topology:{name}")))
            .collect();
        let gates = nodes.iter().map(|node| (node.before.name.clone(), ids.clone())).collect();
        kueue.differences(set, nodes, &gates).iter().map(in_words).collect()
    }

    fn stays(labels: &[(&str, &str)]) -> Transition {
        Transition { before: node("stays", labels), after: None }
    }

    #[test]
    fn nodes_are_judged_as_they_are_after_the_change() {
        let before = |name| node(name, &[("kind", "gpu"), ("block", "a")]);
        let gets = node("gets", &[("kind", "gpu"), ("block", "a"), ("rack", "1")]);
        let nodes = [
            Transition { before: before("stays"), after: None },
            Transition { before: before("gets"), after: Some(gets) },
            Transition { before: before("leaves"), after: Some(node("leaves", &[("block", "a")])) },
        ];
        let set = set(&[("fabric", &["block", "rack"])]);
        let lines = found(&["block", "rack"], &set, &nodes, &["fabric"]);
        let rack = "Kueue places no pods on nodes of ResourceFlavor h100 without rack, a level of Topology gpus: stays";
        assert_eq!(lines, [rack]);
        assert!(found(&["block"], &set, &nodes, &["fabric"]).is_empty());
    }

    #[test]
    fn levels_are_compared_with_what_the_nodes_of_its_flavors_wait_for() {
        let complete = [stays(&[("kind", "gpu"), ("block", "a"), ("rack", "1"), ("clique", "c"), (HOSTNAME, "stays")])];
        let none: [&str; 0] = [];
        let two = set(&[("fabric", &["block", "rack"]), ("nvlink", &["block", "clique"])]);
        let undeclared = "clique is a level of Kueue's Topology gpus, but nodes get pods before they have it, because no gate waits for it: stays";
        let levels = ["block", "rack", "clique", HOSTNAME];
        assert_eq!(found(&levels, &two, &complete, &["fabric"]), [undeclared]);
        assert_eq!(found(&levels, &two, &complete, &["fabric", "nvlink"]), none, "one of them waits for each level");
        assert_eq!(found(&levels, &two, &complete, &[]), none, "the topologies are about other nodes");
        let order = "Kueue's Topology gpus has block further in than p/topology:fabric has it: one of them is wrong";
        assert_eq!(found(&["rack", "block"], &two, &complete, &["fabric"]), [order]);
        assert_eq!(found(&["rack", "block"], &two, &[], &["fabric"]), none, "it has no nodes");
        let more = set(&[("fabric", &["zone", "block", "row", "rack"])]);
        assert_eq!(found(&["block", "rack"], &more, &complete, &["fabric"]), none);
    }
}
