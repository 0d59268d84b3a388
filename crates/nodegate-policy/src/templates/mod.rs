//! What the next node of a group will have from nodegate. An autoscaler decides by a template whether a new node would help, so
//! what the template lacks does not exist for it.

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use crate::api::names::TaintEffect;
use crate::decide::decision::{Decision, Desired, Note};
use crate::decide::sources::{Defaults, Recalled, Sources};
use crate::decide::view::View;
use crate::decide::{DecisionBuilder, EvalContext};
use crate::explain::FieldName;
use crate::facts::NodeFacts;
use crate::facts::inventory::InventoryAnswers;
use crate::facts::missing::Memory;
use crate::facts::pending_taints::PendingTaints;
use crate::facts::pool_memory::PoolMemory;
use crate::facts::proof::evidence::Evidence;
use crate::facts::publishers::Publishers;
use crate::facts::request::{Operation, Write};
use crate::set::PolicySet;
use crate::set::rule::{Rule, Strength};

/// The number of values that are listed of a key.
const VALUES_MAX: usize = 5;

/// What is known of a node that joins, beside the object.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer<'a> {
    /// The evidence for its pools.
    pub evidence: Option<&'a Evidence<'a>>,
    /// What pools remember.
    pub pools: &'a PoolMemory,
    /// The answers of inventories about it.
    pub inventory: &'a InventoryAnswers,
    /// Programs that publish labels on other nodes.
    pub elsewhere: Publishers,
    /// The pending taints, which are no part of what a node is.
    pub pending: &'a PendingTaints,
}

/// What a node will have once nodegate has done its work: with its CREATE, and afterwards. `node`: as it will be once everyone else has
/// written to it, without what nodegate owns.
pub fn once_joined(set: &PolicySet, node: &NodeFacts<'_>, known: &Newcomer<'_>) -> Decision {
    let Newcomer { evidence, pools, inventory, elsewhere, pending } = *known;
    let write = Write::unasked(Operation::Create, node);
    let mut view = View::new(set, node, None, evidence).told(Some(inventory));
    view.mask_pending(pending);
    view.remember(Memory::of(None, false, elsewhere));
    let pools = Some(Recalled { memory: pools, stored: None });
    let sources = Sources { defaults: Defaults::All, saved: None, pools };
    let (builder, _) = DecisionBuilder::run(set, &write, view, EvalContext { sources, initial: true }, None);
    builder.decision
}

/// The same node under another name of the same form: the last digit of what tells nodes of a pool apart is another one, or else the last
/// letter. That is the last part between `-` before the domain if it has a digit, else the last one that is a number, else the last part.
pub fn renamed(name: &str) -> String {
    let next = |c: char| match c {
        '9' => '0',
        'z' => 'a',
        other => char::from_u32(u32::from(other) + 1).unwrap_or(other),
    };
    let host = name.split_once('.').map_or(name, |(host, _)| host);
    let parts = host.match_indices('-').map(|(at, _)| at + 1);
    let begins: Vec<usize> = std::iter::once(0).chain(parts).collect();
    let part = |begin: usize| host[begin..].split('-').next().unwrap_or_default();
    let is_number =
        |begin: &&usize| !part(**begin).is_empty() && part(**begin).bytes().all(|byte| byte.is_ascii_digit());
    let has_digit = |begin: &&usize| part(**begin).bytes().any(|byte| byte.is_ascii_digit());
    let (end, number) = (begins.last(), begins.iter().rfind(is_number));
    let own = end.filter(has_digit).or(number).or(end).copied().unwrap_or_default();
    let own = own..own + part(own).len();
    let last = |is: fn(&char) -> bool| host.char_indices().rfind(|(at, c)| own.contains(at) && is(c));
    match last(char::is_ascii_digit).or_else(|| last(char::is_ascii_lowercase)) {
        Some((at, c)) => format!("{}{}{}", &name[..at], next(c), &name[at + c.len_utf8()..]),
        None => format!("{name}0"),
    }
}

/// A label or taint that the template of a group must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateKey {
    /// The part of the node.
    pub field: FieldName,
    /// The key.
    pub key: String,
    /// The value; empty for a taint without one.
    pub value: String,
    /// The effect of a taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// The policy that assigns it.
    pub policy: String,
    /// The rule in it.
    pub rule: String,
}

/// A label or taint that no template can have, because it is not the same on all nodes of the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VaryingKey {
    /// The part of the node.
    pub field: FieldName,
    /// The key.
    pub key: String,
    /// The effect of a taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// The first of its values, sorted.
    pub values: Vec<String>,
    /// The number of nodes that have it.
    pub nodes: usize,
    /// Why it is not the same.
    pub because: Varies,
    /// A policy that assigns it.
    pub policy: String,
    /// The rule in it.
    pub rule: String,
}

/// Why a label or taint is not the same on all nodes of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Varies {
    /// Nodes have different values.
    Value,
    /// Some nodes do not have it.
    Absent,
    /// It follows from the names of these nodes: one with another name has another value, or none.
    Name,
    /// An inventory says it of the only node, and may say something else of the next one.
    OneAnswer,
    /// It is not known of most nodes whether they have it. A node that only claims to be in the group must not decide for the others.
    Unknown,
}

impl VaryingKey {
    /// Whether each of the group's nodes has it, and so will another one, with one of its values.
    pub fn is_on_all(&self, nodes: usize) -> bool {
        self.nodes == nodes && self.because == Varies::Value
    }
}

/// What is known of the template of a group.
#[derive(Clone, Debug, Default)]
pub struct GroupTemplate {
    nodes: usize,
    keys: BTreeMap<Key, Known>,
    /// Of how many nodes it is not known whether they have it.
    doubtful: BTreeMap<Key, usize>,
}

/// A label, or a taint with its effect.
pub type Key = (FieldName, String, Option<TaintEffect>);

/// The labels and taints that a rule assigns by name.
fn of_rule(rule: &Rule) -> impl Iterator<Item = Key> {
    let labels = rule.written_labels().map(|key| (FieldName::Label, key.to_string(), None));
    let taints = rule.assigns.taints.iter();
    labels.chain(taints.map(|taint| (FieldName::Taint, taint.id.key.to_string(), Some(taint.id.effect))))
}

/// The labels and taints of a node.
pub fn keys_of(node: &NodeFacts<'_>) -> impl Iterator<Item = Key> {
    let labels =
        node.labels.iter().flat_map(|labels| labels.iter()).map(|(key, _)| (FieldName::Label, key.to_owned(), None));
    let taints = node.taints.iter().flatten();
    labels.chain(taints.filter_map(|taint| Some((FieldName::Taint, taint.key.to_string(), Some(taint.effect()?)))))
}

/// The labels and taints that rules assign by name.
pub fn assigned(set: &PolicySet) -> BTreeSet<Key> {
    set.rules().iter().flat_map(of_rule).collect()
}

/// The labels and taints that a node may have from rules of which that is not known, and does not have.
fn doubtful(set: &PolicySet, decision: &Decision) -> BTreeSet<Key> {
    let unknown = decision.notes.iter().filter_map(|note| match note {
        Note::Unknown { rule, .. } => set.rules().iter().find(|known| known.id == *rule),
        _ => None,
    });
    let has = |(field, key, effect): &Key| match field {
        FieldName::Taint => decision.taints.keys().any(|id| id.key.as_str() == key && Some(id.effect) == *effect),
        FieldName::Label | FieldName::Annotation => decision.label(key).is_some(),
    };
    unknown.flat_map(of_rule).filter(|key| !has(key)).collect()
}

/// A label or taint of the nodes of a group.
#[derive(Clone, Debug)]
struct Known {
    values: BTreeSet<String>,
    nodes: usize,
    follows_name: bool,
    is_answer: bool,
    policy: String,
    rule: String,
}

impl GroupTemplate {
    /// Adds a node: what it [will have](once_joined) under its name, and under [another one](renamed). Where it is not known whether a
    /// rule gives it something, the node says nothing about that, unless it is so for most nodes.
    pub fn add(&mut self, set: &PolicySet, of_node: &Decision, under_another_name: &Decision) {
        self.nodes += 1;
        for key in doubtful(set, of_node) {
            *self.doubtful.entry(key).or_default() += 1;
        }
        for (key, desired) in &of_node.labels {
            let other = under_another_name.labels.get(key);
            self.note((FieldName::Label, key.clone(), None), desired, other);
        }
        for (id, desired) in &of_node.taints {
            let other = under_another_name.taints.get(id);
            self.note((FieldName::Taint, id.key.to_string(), Some(id.effect)), desired, other);
        }
    }

    fn note(&mut self, key: Key, desired: &Desired, other: Option<&Desired>) {
        let known = self.keys.entry(key).or_insert_with(|| Known {
            values: BTreeSet::new(),
            nodes: 0,
            follows_name: false,
            is_answer: false,
            policy: desired.by.policy.to_string(),
            rule: desired.by.rule.to_string(),
        });
        known.nodes += 1;
        known.values.insert(desired.value.clone());
        known.follows_name |= other.is_none_or(|other| other.value != desired.value);
        known.is_answer |= desired.strength == Strength::Inventory;
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Whether it is known that no node has this from nodegate.
    pub fn lacks(&self, key: &Key) -> bool {
        !self.keys.contains_key(key) && !self.doubtful.contains_key(key)
    }

    /// What the template must have, and what none can have; each sorted by field and key.
    pub fn finish(self) -> (Vec<TemplateKey>, Vec<VaryingKey>) {
        let (mut same, mut varying) = (Vec::new(), Vec::new());
        for (key, known) in self.keys {
            let doubtful = self.doubtful.get(&key).copied().unwrap_or_default();
            let (field, key, effect) = key;
            let effect = effect.map(|effect| effect.as_str().to_owned());
            let because = match () {
                () if known.values.len() > 1 => Some(Varies::Value),
                () if known.nodes + doubtful < self.nodes => Some(Varies::Absent),
                () if known.follows_name => Some(Varies::Name),
                () if known.is_answer && self.nodes == 1 => Some(Varies::OneAnswer),
                () if doubtful > known.nodes => Some(Varies::Unknown),
                () => None,
            };
            let Known { values, nodes, policy, rule, .. } = known;
            let mut values = values.into_iter();
            match because {
                None => {
                    let value = values.next().unwrap_or_default();
                    same.push(TemplateKey { field, key, value, effect, policy, rule });
                }
                Some(because) => {
                    let values = values.take(VALUES_MAX).collect();
                    varying.push(VaryingKey { field, key, effect, values, nodes, because, policy, rule });
                }
            }
        }
        (same, varying)
    }
}
