//! Where nodes are, by the topologies of the policies.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::policies::plan::named::named;
use nodegate_base::text::{counted, or_quotes};
use nodegate_policy::{GateLabels, PolicySet, ReconcilePlan, RuleId, StoredNode, gates_of};

/// How many values in several places are listed, and how many of these places. If each block counts its racks from one, there are many.
pub(super) const SHOWN: usize = 5;

/// A topology, and where its nodes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct TopologyNodes {
    /// The policy.
    pub(super) policy: String,
    /// The topology in it, as `topology:NAME`.
    pub(super) rule: String,
    /// The number of nodes in it.
    pub(super) nodes: usize,
    /// Its levels, outermost first.
    pub(super) levels: Vec<Level>,
}

/// A level of a topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Level {
    /// The key of its label.
    pub(super) key: String,
    /// How many values the label has on these nodes.
    pub(super) values: usize,
    /// The nodes that lack the label and do not wait for it, sorted.
    pub(super) lacking: Vec<String>,
    /// The values that lie in several values of the next outer level.
    pub(super) split: Vec<Split>,
}

/// A value that lies in several values of the next outer level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Split {
    /// The value.
    pub(super) value: String,
    /// The nodes that have it, by their value of the outer level, sorted.
    pub(super) within: BTreeMap<String, Vec<String>>,
}

/// The topologies of all nodes in the making.
#[derive(Default)]
pub(super) struct Topologies {
    of: BTreeMap<RuleId, Gathered>,
}

#[derive(Default)]
struct Gathered {
    nodes: usize,
    levels: Vec<Values>,
}

/// The values of a level.
struct Values {
    key: String,
    /// The nodes, by the value and then by that of the next outer level.
    nodes: BTreeMap<String, BTreeMap<Option<String>, Vec<String>>>,
    lacking: Vec<String>,
}

impl Topologies {
    /// The topologies of the policies, without nodes.
    pub(super) fn new(set: &PolicySet) -> Self {
        let values = |key: &_| Values { key: format!("{key}"), nodes: BTreeMap::new(), lacking: Vec::new() };
        let gathered = |of: GateLabels<'_>| Gathered { nodes: 0, levels: of.labels.iter().map(values).collect() };
        let topologies = set.gate_labels().filter(|gate| gate.is_topology);
        Self { of: topologies.map(|of| (of.id.clone(), gathered(of))).collect() }
    }

    /// Adds a node to the topologies that it is in. What it waits for is no fault yet.
    pub(super) fn add(&mut self, set: &PolicySet, stored: &StoredNode<'_>, plan: &ReconcilePlan) {
        if self.of.is_empty() {
            return;
        }
        let node = stored.node;
        for topology in gates_of(set, stored) {
            let waits = plan.decision.gates.iter().any(|gate| gate.id == topology);
            let Some(Gathered { nodes, levels }) = self.of.get_mut(&topology) else { continue };
            *nodes += 1;
            let mut outer = None;
            for Values { key, nodes, lacking } in levels {
                let value = node.label(key);
                match value {
                    Some(value) => {
                        let within = nodes.entry(value.to_owned()).or_default();
                        within.entry(outer.map(str::to_owned)).or_default().push(node.name.to_string());
                    }
                    None if waits => {}
                    None => lacking.push(node.name.to_string()),
                }
                outer = value;
            }
        }
    }

    /// The topologies, sorted by policy and name.
    pub(super) fn finish(self) -> Vec<TopologyNodes> {
        let topology = |(id, Gathered { nodes, levels }): (RuleId, Gathered)| TopologyNodes {
            policy: id.policy.to_string(),
            rule: id.rule.to_string(),
            nodes,
            levels: levels.into_iter().map(Values::finish).collect(),
        };
        self.of.into_iter().map(topology).collect()
    }
}

impl Values {
    fn finish(self) -> Level {
        let Self { key, nodes, mut lacking } = self;
        lacking.sort_unstable();
        let values = nodes.len();
        let split = nodes.into_iter().filter_map(|(value, within)| {
            let known = within.into_iter().filter_map(|(outer, mut nodes)| {
                nodes.sort_unstable();
                Some((outer?, nodes))
            });
            let within: BTreeMap<String, Vec<String>> = known.collect();
            (within.len() > 1).then_some(Split { value, within })
        });
        Level { key, values, lacking, split: split.collect() }
    }
}

/// A topology as a line: how many nodes and values it has.
pub(super) fn in_words(TopologyNodes { policy, rule, nodes, levels }: &TopologyNodes) -> String {
    let levels = levels.iter().map(|level| format!("{} {}", level.key, counted(level.values, "value", "values")));
    let levels: Vec<String> = levels.collect();
    format!("{policy}/{rule}: {}; {}", counted(*nodes, "node", "nodes"), levels.join(", "))
}

/// What is wrong with topologies, as lines: labels that nodes lack, and values in several places.
pub(super) fn faults(topologies: &[TopologyNodes]) -> Vec<String> {
    let mut lines = Vec::new();
    for TopologyNodes { policy, rule, levels, nodes: _ } in topologies {
        let mut outer = "";
        for Level { key, lacking, split, values: _ } in levels {
            if !lacking.is_empty() {
                lines.push(format!("{policy}/{rule}: no label {key}: {}", named(&strs(lacking))));
            }
            lines.extend(split.iter().take(SHOWN).map(|Split { value, within }| {
                let shown = within.iter().take(SHOWN);
                let shown = shown.map(|(outer, nodes)| format!("{} ({})", or_quotes(outer), named(&strs(nodes))));
                let shown: Vec<String> = shown.chain((within.len() > SHOWN).then(|| "…".to_owned())).collect();
                let value = or_quotes(value);
                format!("{policy}/{rule}: {key}={value} is in several values of {outer}: {}", shown.join(", "))
            }));
            if let Some(more) = split.len().checked_sub(SHOWN).filter(|more| *more > 0) {
                lines.push(format!("{policy}/{rule}: so are {more} other values of {key}"));
            }
            outer = key;
        }
    }
    lines
}

fn strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}
