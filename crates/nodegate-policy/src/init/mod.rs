//! `init`: a first policy from the labels and taints that the nodes of a fleet have today, and tests for it.
//!
//! # Guarantees
//! - The policy compiles, and changes nothing on the nodes that it was made from.
//! - It matches nodes by name or by pool, or by a label. Rules that match a label, which a kubelet can choose, have no label
//!   that a kubelet may not set, unless that is asked for.
//! - Every label and taint of a node is either in the policy or listed as left out, with the reason.
//! - It never lists more than a few names.
//! - The result does not depend on the order of the nodes.

mod assigned;
mod cases;
mod choices;
mod files;
mod groups;
mod names;
mod odd;
mod platforms;
mod rules;
mod values;

use std::collections::BTreeMap;

use crate::api::case::Case;
use crate::api::names::{check_label_key, is_dns_subdomain};
use crate::api::policy::RuleSpec;
use crate::api::problem::Problem;
use crate::facts::NodeFacts;
use crate::facts::pending_taints::PendingTaints;
use crate::keys::Field;
use crate::keys::pattern::KeySet;
use assigned::{LeftOuts, Sorted};
pub use choices::{Choice, node_group};
pub(crate) use files::{comment, modeline};
use groups::Groups;
use names::FleetNames;
use odd::OddOnes;
use platforms::Platform;
use rules::Rule;
pub(crate) use rules::unique;

/// A node of the fleet, as far as a first policy is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetNode {
    name: String,
    labels: BTreeMap<String, String>,
    /// The values, by key and effect.
    taints: BTreeMap<(String, String), String>,
    provider_id: Option<String>,
}

impl FleetNode {
    /// A node of which only the name is known. No glob matches it by accident.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), labels: BTreeMap::new(), taints: BTreeMap::new(), provider_id: None }
    }

    /// The node with these facts.
    pub fn of(facts: &NodeFacts<'_>) -> Self {
        let labels = facts.labels().map(|(key, value)| (key.to_owned(), value.to_owned()));
        let taints = facts.taints().iter();
        let taints = taints.map(|taint| ((taint.key.to_string(), taint.effect.to_string()), taint.value().to_owned()));
        let provider_id = facts.provider_id.as_deref().map(str::to_owned);
        Self { name: facts.name.to_string(), labels: labels.collect(), taints: taints.collect(), provider_id }
    }
}

/// Why there is no first policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    /// There are no nodes.
    #[error("there are no nodes")]
    NoNodes,
    /// A name that no Node has in a cluster.
    #[error("{0:?} is not a valid name of a node; write the names as `kubectl get nodes` prints them")]
    Name(String),
    /// Two nodes have one name.
    #[error("node {0} is given twice, with different labels or taints; remove one of the two")]
    Twice(String),
    /// A key that no label has.
    #[error("{0:?} is not a valid label key: {1}")]
    Key(String, String),
    /// A key that no node has.
    #[error("no node has the label {0}; {advice}", advice = choices::advice(.1))]
    NoSuchKey(String, Vec<Choice>),
    /// A key with nearly as many values as nodes.
    #[error("the label {key} has {values} values on {nodes} nodes, so it does not group them; {}", choices::advice(.choices))]
    NoGroups {
        /// The key.
        key: String,
        /// The number of its values.
        values: usize,
        /// The number of nodes that have it.
        nodes: usize,
        /// What else groups them.
        choices: Vec<Choice>,
    },
    /// No node shows which platform made it.
    #[error(
        "the pools of these nodes are not known, because no node has the labels of Karpenter, EKS node groups or AKS; write `pools` by hand, or {}",
        choices::advice(.0)
    )]
    Platform(Vec<Choice>),
}

/// What the rules match on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Names; where these say nothing, the labels of node groups.
    #[default]
    Auto,
    /// Proven pools.
    Pool,
    /// The values of labels. A node is in the group of the first key that it has.
    Labels(Vec<String>),
}

/// What a first policy is like.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Taints that are no part of it.
    pub pending: PendingTaints,
    /// Keys that are part of it although others set them.
    pub included: Included,
    /// What its rules match on.
    pub by: By,
    /// Whether rules that match a label may give labels that kubelets may not set.
    pub trust_kubelet: bool,
}

/// What a rule matches instead of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleGroups {
    /// The key of a label; none for pools.
    pub key: Option<String>,
    /// Its values, or the names of pools, sorted.
    pub names: Vec<String>,
    /// Labels that the nodes have and the rule does not give, because kubelets may not set them.
    pub withheld: Vec<String>,
}

/// A rule of the policy, and the number of nodes that it matches.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstRule {
    /// The rule.
    pub rule: RuleSpec,
    /// The number of nodes.
    pub nodes: usize,
    /// What it matches, if it does not match names.
    pub groups: Option<RuleGroups>,
}

impl FirstRule {
    /// The names and globs of its nodes.
    pub fn names(&self) -> &[String] {
        let names = self.rule.match_.as_ref().and_then(|of| of.conditions.names.as_deref());
        names.unwrap_or_default()
    }
}

/// A label or a taint that the policy does not have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// Label or taint.
    pub field: Field,
    /// The key.
    pub key: String,
    /// The number of nodes that have it.
    pub nodes: usize,
    /// The reason.
    pub reason: String,
}

/// A first policy, its tests, and what is in neither.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstPolicy {
    /// The number of nodes of the fleet.
    pub nodes: usize,
    /// The rules, those that match the most nodes first.
    pub rules: Vec<FirstRule>,
    /// The tests.
    pub cases: Vec<Case>,
    /// What the policy does not have.
    pub left_out: Vec<LeftOut>,
    /// Whether most names say nothing about nodes that join later.
    pub names_say_nothing: bool,
    /// What else rules could match on.
    pub choices: Vec<Choice>,
    /// Groups without a rule, because kubelets may not set what their nodes have.
    pub withheld: Vec<RuleGroups>,
    /// Nodes and values that differ a little from all others, in words.
    pub odd_ones: Vec<String>,
    /// The number of those that are not listed.
    pub more_odd_ones: usize,
    /// The platforms that have the pools that rules match.
    platforms: Vec<Platform>,
}

/// Keys that are in the policy although `init` would leave them out by itself.
#[derive(Clone, Debug, Default)]
pub struct Included(KeySet);

impl Included {
    /// Keys as policies write them: exact ones, `prefix/*`, and `*` for all.
    ///
    /// # Errors
    /// Returns what is wrong with the first invalid one.
    pub fn parse<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Self, Problem> {
        let mut faults = Vec::new();
        let set = KeySet::compile(keys, |_, problem| faults.push(problem));
        faults.into_iter().next().map_or(Ok(Self(set)), Err)
    }
}

/// Writes a first policy for these nodes. It has no pending taint.
///
/// # Errors
/// Returns an error if there are no nodes, if their names are not valid or not unique, or if they cannot be grouped as asked.
pub fn first_policy(nodes: &[FleetNode], wishes: &Wishes) -> Result<FirstPolicy, InitError> {
    let fleet = fleet(nodes)?;
    let choices = choices::of(&fleet);
    let names = FleetNames(fleet.iter().map(|node| node.name.as_str()).collect());
    let Sorted { assigned, mut left_out } = Sorted::of(&fleet, &wishes.pending, &wishes.included);
    let by_names = rules::rules(&names, &assigned);
    let names_say_nothing = rules::say_nothing(&by_names);
    let groups = match &wishes.by {
        By::Auto if names_say_nothing => Groups::by_node_groups(&fleet, &assigned),
        By::Auto => None,
        By::Pool => Some(Groups::by_pools(&fleet).ok_or_else(|| InitError::Platform(choices.clone()))?),
        By::Labels(keys) => Some(by_labels(&fleet, keys, &choices)?),
    };
    let odd = OddOnes::of(&fleet, &assigned, &groups.as_ref().map_or_else(|| names.groups(), Groups::named));
    let (rules, withheld, cases) = match &groups {
        Some(groups) => {
            let grouped = groups.rules(&fleet, &assigned, wishes.trust_kubelet, &mut left_out);
            let cases = cases::of_groups(&fleet, groups, &grouped.rules);
            (grouped.rules, grouped.withheld, cases)
        }
        None => {
            let rules = bounded(by_names, &choices, &mut left_out);
            let cases = cases::cases(&names, &rules);
            (rules, Vec::new(), cases)
        }
    };
    Ok(FirstPolicy {
        nodes: fleet.len(),
        rules: rules.into_iter().map(Rule::first).collect(),
        cases,
        left_out: left_out.list(),
        names_say_nothing,
        choices,
        withheld,
        odd_ones: odd.listed,
        more_odd_ones: odd.more,
        platforms: groups.map_or_else(Vec::new, |groups| groups.platforms(&fleet)),
    })
}

/// The groups of nodes with the same values of these labels.
fn by_labels<'a>(fleet: &[&'a FleetNode], keys: &[String], choices: &[Choice]) -> Result<Groups<'a>, InitError> {
    for key in keys {
        check_label_key(key).map_err(|error| InitError::Key(key.clone(), error.to_string()))?;
        let Choice { groups, nodes, .. } = choices::of_key(fleet, key);
        if nodes == 0 {
            return Err(InitError::NoSuchKey(key.clone(), choices.to_vec()));
        }
        if !values::groups(groups, nodes) {
            return Err(InitError::NoGroups { key: key.clone(), values: groups, nodes, choices: choices.to_vec() });
        }
    }
    Ok(Groups::by_labels(fleet, keys))
}

/// The rules without those that would list too many names.
fn bounded(rules: Vec<Rule>, choices: &[Choice], left_out: &mut LeftOuts) -> Vec<Rule> {
    let (bounded, unbounded): (Vec<Rule>, Vec<Rule>) = rules.into_iter().partition(|rule| !rule.is_unbounded);
    for rule in unbounded {
        let reason =
            || format!("the names of its nodes have too little in common for a rule; {}", choices::advice(choices));
        for (field, key) in rule.keys() {
            left_out.add(field, key, reason(), rule.nodes.iter().copied());
        }
    }
    bounded
}

/// The nodes, sorted by name, each once.
fn fleet(nodes: &[FleetNode]) -> Result<Vec<&FleetNode>, InitError> {
    let mut fleet: BTreeMap<&str, &FleetNode> = BTreeMap::new();
    for node in nodes {
        if !is_dns_subdomain(&node.name) {
            return Err(InitError::Name(node.name.clone()));
        }
        if fleet.insert(&node.name, node).is_some_and(|other| other != node) {
            return Err(InitError::Twice(node.name.clone()));
        }
    }
    if fleet.is_empty() {
        return Err(InitError::NoNodes);
    }
    Ok(fleet.into_values().collect())
}
