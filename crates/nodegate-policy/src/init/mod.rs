//! `init`: a first policy from the labels and taints that the nodes of a fleet have today, and tests for it.
//!
//! # Guarantees
//! - The policy compiles, and changes nothing on the nodes that it was made from.
//! - It matches nodes by name only, so that no kubelet can choose what its node gets.
//! - Every label and taint of a node is either in the policy or listed as left out, with the reason.
//! - The result does not depend on the order of the nodes.

mod cases;
mod files;
mod names;
mod rules;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use crate::api::case::Case;
use crate::api::names::{NameError, TaintEffect, TaintId, check_label_key, check_label_value, is_dns_subdomain};
use crate::api::policy::RuleSpec;
use crate::api::problem::Problem;
use crate::facts::NodeFacts;
use crate::facts::pending_taints::PendingTaints;
use crate::keys::pattern::KeySet;
use crate::keys::programs::Program;
use crate::keys::restriction::{is_own, writable_label};
use crate::keys::{Field, programs};
use names::FleetNames;

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
}

/// A rule of the policy, and the number of nodes that it matches.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstRule {
    /// The rule.
    pub rule: RuleSpec,
    /// The number of nodes.
    pub nodes: usize,
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
/// Returns an error if there are no nodes, or if their names are not valid or not unique.
pub fn first_policy(
    nodes: &[FleetNode],
    pending: &PendingTaints,
    included: &Included,
) -> Result<FirstPolicy, InitError> {
    let fleet = fleet(nodes)?;
    let names = FleetNames(fleet.iter().map(|node| node.name.as_str()).collect());
    let Sorted { assigned, left_out } =
        Sorted::of(&fleet, &Judge { pending, included, of_machine: values::of_machine(&fleet) });
    let rules = rules::rules(&names, &assigned);
    let cases = cases::cases(&names, &rules);
    let rules = rules.into_iter().map(|rule| FirstRule { nodes: rule.nodes.len(), rule: rule.spec }).collect();
    Ok(FirstPolicy { nodes: fleet.len(), rules, cases, left_out })
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

/// A label or taint with its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value<'a> {
    Label { key: &'a str, value: &'a str },
    Taint { id: TaintId, value: &'a str },
}

/// The labels and taints of a fleet: what is in the policy, with the nodes that have it, and what is not.
struct Sorted<'a> {
    assigned: BTreeMap<Value<'a>, Vec<usize>>,
    left_out: Vec<LeftOut>,
}

impl<'a> Sorted<'a> {
    fn of(fleet: &[&'a FleetNode], judge: &Judge<'_>) -> Self {
        let mut assigned: BTreeMap<Value<'a>, Vec<usize>> = BTreeMap::new();
        let mut left_out: BTreeMap<(Field, &'a str, String), BTreeSet<usize>> = BTreeMap::new();
        for (at, node) in fleet.iter().enumerate() {
            let labels = node.labels.iter().map(|(key, value)| (Field::Label, key.as_str(), judge.label(key, value)));
            let taints = node
                .taints
                .iter()
                .map(|((key, effect), value)| (Field::Taint, key.as_str(), judge.taint(key, effect, value)));
            for (field, key, value) in labels.chain(taints) {
                match value {
                    Ok(value) => assigned.entry(value).or_default().push(at),
                    Err(reason) => drop(left_out.entry((field, key, reason)).or_default().insert(at)),
                }
            }
        }
        let left_out = left_out.into_iter().map(|((field, key, reason), nodes)| LeftOut {
            field,
            key: key.to_owned(),
            nodes: nodes.len(),
            reason,
        });
        Self { assigned, left_out: left_out.collect() }
    }
}

/// Decides which labels and taints are in the policy.
struct Judge<'a> {
    pending: &'a PendingTaints,
    included: &'a Included,
    /// The labels whose values say something of one machine, with the reason.
    of_machine: BTreeMap<&'a str, String>,
}

impl Judge<'_> {
    /// A label for the policy, or the reason why it has none.
    fn label<'v>(&self, key: &'v str, value: &'v str) -> Result<Value<'v>, String> {
        self.reason(Field::Label, key, value).map_or(Ok(()), Err)?;
        check_label_key(key).and_then(|()| check_label_value(value)).map_err(|error| error.to_string())?;
        Ok(Value::Label { key, value })
    }

    /// A taint for the policy, or the reason why it has none.
    fn taint<'v>(&self, key: &'v str, effect: &str, value: &'v str) -> Result<Value<'v>, String> {
        if self.pending.has_key(key) {
            return Err("it is the pending taint, which the controller removes".to_owned());
        }
        self.reason(Field::Taint, key, value).map_or(Ok(()), Err)?;
        let id = || -> Result<TaintId, NameError> {
            check_label_value(value)?;
            Ok(TaintId { key: key.parse()?, effect: effect.parse::<TaintEffect>()? })
        };
        Ok(Value::Taint { id: id().map_err(|error| error.to_string())?, value })
    }

    /// Why a label or taint is left out: a program sets it, also on a new node, and a rule for the same key would conflict with
    /// it. Or its value says something of one machine.
    fn reason(&self, field: Field, key: &str, value: &str) -> Option<String> {
        if is_own(key) {
            return Some("it is reserved for nodegate".to_owned());
        }
        let program = || programs::of(field, key, Some(value)).map(Program::reason);
        if self.included.0.contains(key) {
            // No policy may assign these.
            let refused = field == Field::Label && writable_label(key).is_err();
            return refused.then(program).flatten();
        }
        program().or_else(|| match field {
            Field::Label => self.of_machine.get(key).cloned(),
            Field::Annotation | Field::Taint => values::looks_like(key, value).map(str::to_owned),
        })
    }
}
