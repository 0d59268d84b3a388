//! What `nodegate init` prints for other programs. Fields are added, never renamed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use nodegate_policy::api::policy::RuleSpec;
use nodegate_policy::explain::FieldName;
use nodegate_policy::init::{FirstPolicy, FirstRule, LeftOut, RuleGroups};

/// A first policy, and what is not in it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    /// The number of nodes that were read.
    pub(super) nodes: usize,
    /// The files that were written; empty if there is nothing for a policy.
    pub(super) files: Vec<String>,
    /// The rules of the policy, those that match the most nodes first.
    pub(super) rules: Vec<SummedRule>,
    /// The number of test cases.
    pub(super) cases: usize,
    /// The labels and taints that are not in the policy.
    pub(super) left_out: Vec<SummedLeftOut>,
    /// Nodes that cannot be read. No rule matches them.
    pub(super) unreadable: Vec<UnreadableNode>,
}

/// A rule of the policy.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SummedRule {
    /// Its name.
    pub(super) rule: String,
    /// The number of nodes that it matches.
    pub(super) nodes: usize,
    /// The names and globs of these nodes, sorted; empty if the rule matches something else.
    pub(super) names: Vec<String>,
    /// The key of the label that the rule matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<String>,
    /// The values of this label, sorted.
    pub(super) values: Vec<String>,
    /// The pools that the rule matches, sorted.
    pub(super) pools: Vec<String>,
    /// The labels and taints that it sets.
    pub(super) sets: Vec<SetValue>,
}

/// A label, an annotation or a taint that a rule sets.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SetValue {
    /// The part of the node.
    pub(super) field: FieldName,
    /// The key.
    pub(super) key: String,
    /// The value; empty for a taint without a value.
    pub(super) value: String,
    /// The effect of a taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effect: Option<String>,
}

/// Labels or taints that are not in the policy.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SummedLeftOut {
    /// The part of the node.
    pub(super) field: FieldName,
    /// The key.
    pub(super) key: String,
    /// The number of nodes that have it.
    pub(super) nodes: usize,
    /// The reason.
    pub(super) reason: String,
}

/// A node that cannot be read.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct UnreadableNode {
    /// Its name; empty if unreadable too.
    pub(super) node: String,
    /// The reason.
    pub(super) reason: String,
}

impl Summary {
    /// The summary of a policy whose files are not written yet.
    pub(super) fn of(first: &FirstPolicy, unreadable: Vec<UnreadableNode>) -> Self {
        Self {
            nodes: first.nodes,
            files: Vec::new(),
            rules: first.rules.iter().map(SummedRule::of).collect(),
            cases: first.cases.len(),
            left_out: first.left_out.iter().map(SummedLeftOut::of).collect(),
            unreadable,
        }
    }
}

impl SetValue {
    /// What a rule sets.
    pub(super) fn of_rule(rule: &RuleSpec) -> Vec<Self> {
        let texts = |field: FieldName, map: &BTreeMap<String, String>| -> Vec<Self> {
            let value = |(key, value): (&String, &String)| (key.clone(), value.clone());
            map.iter().map(value).map(|(key, value)| Self { field, key, value, effect: None }).collect()
        };
        let taints = rule.taints.iter().map(|taint| Self {
            field: FieldName::Taint,
            key: taint.key.clone(),
            value: taint.value.clone(),
            effect: Some(taint.effect.clone()),
        });
        let mut all = texts(FieldName::Label, &rule.labels);
        all.extend(texts(FieldName::Annotation, &rule.annotations));
        all.extend(taints);
        all
    }
}

impl SummedRule {
    fn of(first: &FirstRule) -> Self {
        let (label, values, pools) = match first.groups.clone() {
            None => (None, Vec::new(), Vec::new()),
            Some(RuleGroups { key: Some(key), names, withheld: _ }) => (Some(key), names, Vec::new()),
            Some(RuleGroups { key: None, names, withheld: _ }) => (None, Vec::new(), names),
        };
        Self {
            rule: first.rule.name.clone(),
            nodes: first.nodes,
            names: first.names().to_vec(),
            label,
            values,
            pools,
            sets: SetValue::of_rule(&first.rule),
        }
    }
}

impl SummedLeftOut {
    fn of(left: &LeftOut) -> Self {
        Self { field: left.field.into(), key: left.key.clone(), nodes: left.nodes, reason: left.reason.clone() }
    }
}
