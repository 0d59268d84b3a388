//! What Kueue's Topology objects and the nodes and topologies of planned policies do not agree on.

use std::collections::BTreeMap;

use kube::Client;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value as Json;

use crate::cli::policies::plan::text::named;
use crate::cli::shared::cluster::other_objects;
use crate::cli::shared::output;
use crate::scheduling::{NodeState, Transition};
use nodegate_policy::{PolicySet, Topology};

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
    /// The nodes that lack it then, sorted.
    pub(in crate::cli) nodes: Vec<String>,
    /// The topology of the policies that has other levels, as `policy/topology:NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) policy: Option<String>,
}

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum KueueFault {
    /// Nodes of a ResourceFlavor lack the label: Kueue places no pods on them.
    Lacking,
    /// The policies have some levels of the Topology, but not this one: nodes get pods without it.
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
        let topologies = other_objects::list(client, GROUP, "Topology").await?;
        if topologies.is_empty() {
            return Ok(Self::default());
        }
        let flavors = other_objects::list(client, GROUP, "ResourceFlavor").await?;
        Ok(Self::of(&topologies, &flavors))
    }

    fn of(topologies: &[Json], flavors: &[Json]) -> Self {
        let levels = |topology: &Json| {
            let levels = topology["spec"]["levels"].as_array().into_iter().flatten();
            levels.filter_map(|level| Some(level["nodeLabel"].as_str()?.to_owned())).collect()
        };
        let flavor = |flavor: &Json| {
            let labels = flavor["spec"]["nodeLabels"].as_object().into_iter().flatten();
            let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
            let topology = flavor["spec"]["topologyName"].as_str()?.to_owned();
            Some(Flavor { name: name(flavor), topology, node_labels: labels.collect() })
        };
        Self {
            topologies: topologies.iter().map(|topology| (name(topology), levels(topology))).collect(),
            flavors: flavors.iter().filter_map(flavor).collect(),
        }
    }

    /// Where its Topologies differ from the nodes after the change, and from the topologies of the policies.
    pub(super) fn differences(&self, set: &PolicySet, nodes: &[Transition]) -> Vec<KueueDifference> {
        let mut found = Vec::new();
        for (name, levels) in &self.topologies {
            let flavors = self.flavors.iter().filter(|flavor| flavor.topology == *name);
            found.extend(flavors.flat_map(|flavor| lacking(name, levels, flavor, nodes)));
            found.extend(set.topologies().flat_map(|declared| against(name, levels, declared)));
        }
        found
    }
}

fn name(object: &Json) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The nodes of a flavor that lack a level.
fn lacking(topology: &str, levels: &[String], flavor: &Flavor, nodes: &[Transition]) -> Vec<KueueDifference> {
    let then = |node: &'_ Transition| node.after.clone().unwrap_or_else(|| node.before.clone());
    let has_all = |node: &NodeState| flavor.node_labels.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    let of_flavor: Vec<NodeState> = nodes.iter().map(then).filter(has_all).collect();
    let lack = |level: &String| {
        let lacking = of_flavor.iter().filter(|node| !node.labels.contains_key(level));
        let mut nodes: Vec<String> = lacking.map(|node| node.name.clone()).collect();
        nodes.sort_unstable();
        (!nodes.is_empty()).then(|| KueueDifference {
            topology: topology.to_owned(),
            because: KueueFault::Lacking,
            level: level.clone(),
            flavor: Some(flavor.name.clone()),
            nodes,
            policy: None,
        })
    };
    levels.iter().filter_map(lack).collect()
}

/// The levels that a topology of the policies, if it is about the same labels, lacks or has in another order.
fn against(topology: &str, levels: &[String], declared: Topology<'_>) -> Vec<KueueDifference> {
    let place = |level: &str| declared.levels.iter().position(|key| key.as_str() == level);
    let of_node = |level: &&String| level.as_str() != HOSTNAME;
    if !levels.iter().filter(of_node).any(|level| place(level).is_some()) {
        return Vec::new();
    }
    let mut innermost = None;
    let mut found = Vec::new();
    for level in levels.iter().filter(of_node) {
        let at = place(level);
        let because = match at {
            None => KueueFault::Undeclared,
            Some(_) if at < innermost => KueueFault::Order,
            Some(_) => {
                innermost = at;
                continue;
            }
        };
        let policy = Some(declared.id.to_string());
        let (topology, level) = (topology.to_owned(), level.clone());
        found.push(KueueDifference { topology, because, level, flavor: None, nodes: Vec::new(), policy });
    }
    found
}

/// It as a warning.
pub(super) fn in_words(
    KueueDifference { topology, because, level, flavor, nodes, policy }: &KueueDifference,
) -> String {
    let policy = policy.as_deref().unwrap_or_default();
    match because {
        KueueFault::Lacking => {
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            let flavor = flavor.as_deref().unwrap_or_default();
            format!(
                "Kueue places no pods on nodes of ResourceFlavor {flavor} without {level}, a level of Topology {topology}: {}",
                named(&nodes)
            )
        }
        KueueFault::Undeclared => format!(
            "{level} is a level of Kueue's Topology {topology}, but not of {policy}: nodes get pods before they have it"
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

    fn set(levels: &[&str]) -> PolicySet {
        let spec = json!({"topologies": [{"name": "fabric", "levels": levels}]});
        let document = PolicyDocument::new("p", Origin::Object, serde_json::from_value(spec).unwrap());
        PolicySet::compile(&[document]).unwrap()
    }

    fn found(levels: &[&str], set: &PolicySet, nodes: &[Transition]) -> Vec<String> {
        let levels: Vec<Json> = levels.iter().map(|level| json!({"nodeLabel": level})).collect();
        let topology = json!({"metadata": {"name": "gpus"}, "spec": {"levels": levels}});
        let flavor = |name: &str, topology: Json| json!({"metadata": {"name": name}, "spec": {"nodeLabels": {"kind": "gpu"}, "topologyName": topology}});
        let kueue = Kueue::of(&[topology], &[flavor("h100", json!("gpus")), flavor("plain", Json::Null)]);
        kueue.differences(set, nodes).iter().map(in_words).collect()
    }

    #[test]
    fn nodes_are_judged_as_they_are_after_the_change() {
        let before = |name| node(name, &[("kind", "gpu"), ("block", "a")]);
        let nodes = [
            Transition { before: before("stays"), after: None },
            Transition {
                before: before("gets"),
                after: Some(node("gets", &[("kind", "gpu"), ("block", "a"), ("rack", "1")])),
            },
            Transition { before: before("leaves"), after: Some(node("leaves", &[("block", "a")])) },
        ];
        let lines = found(&["block", "rack", HOSTNAME], &set(&["block", "rack"]), &nodes[..2]);
        let hostname = "Kueue places no pods on nodes of ResourceFlavor h100 without kubernetes.io/hostname, a level of Topology gpus: gets, stays";
        assert_eq!(
            lines,
            [
                "Kueue places no pods on nodes of ResourceFlavor h100 without rack, a level of Topology gpus: stays",
                hostname
            ]
        );
        assert!(found(&["block"], &set(&["block"]), &nodes).is_empty());
    }

    #[test]
    fn levels_are_compared_with_those_of_policies() {
        let undeclared = "rack is a level of Kueue's Topology gpus, but not of p/topology:fabric: nodes get pods before they have it";
        let order = "Kueue's Topology gpus has block further in than p/topology:fabric has it: one of them is wrong";
        assert_eq!(found(&["block", "rack", HOSTNAME], &set(&["block"]), &[]), [undeclared]);
        assert_eq!(found(&["rack", "block"], &set(&["block", "rack"]), &[]), [order]);
        assert!(found(&["block", "rack"], &set(&["zone", "block", "row", "rack"]), &[]).is_empty());
        assert!(found(&["other"], &set(&["block", "rack"]), &[]).is_empty(), "another topology");
    }
}
