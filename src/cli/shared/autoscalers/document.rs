//! What `nodegate export autoscaler` prints for other programs, and as tables.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use super::pool_id::PoolId;
use crate::cli::shared::output;
use nodegate_base::text::counted;
use nodegate_policy::explain::FieldName;
use nodegate_policy::templates::{Key, TemplateKey, Varies, VaryingKey};

/// What the template of each pool must say.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Templates {
    /// Every pool, sorted by name.
    pub(in crate::cli) pools: Vec<PoolTemplate>,
    /// The number of nodes that are in no pool.
    pub(in crate::cli) nodes_without_pool: usize,
    /// The number of nodes that are left out, because they have the pending taint.
    pub(in crate::cli) joining_nodes: usize,
    /// The number of nodes that are left out, because their label names a NodePool, and no NodeClaim of their machine does.
    pub(in crate::cli) refuted_nodes: usize,
}

/// What the template of one pool must say.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct PoolTemplate {
    /// What it is called: its name, or where several pools have that name, what tells it from them as well.
    pub(in crate::cli) pool: String,
    #[serde(skip)]
    pub(in crate::cli) id: PoolId,
    /// The number of nodes that were looked at; 0 if only a NodePool or MachineDeployment says what its nodes will be.
    pub(in crate::cli) nodes: usize,
    /// The labels and taints that its next node will have from nodegate, sorted by field and key.
    pub(in crate::cli) same: Vec<TemplateKey>,
    /// Those that differ between its nodes, so that no template can have them, sorted by field and key.
    pub(in crate::cli) varying: Vec<VaryingKey>,
    /// Rules of which it is not known what they give, sorted.
    pub(in crate::cli) unknown: Vec<UnknownRule>,
    /// What rules assign elsewhere: its nodes have it from nobody.
    #[serde(skip)]
    pub(in crate::cli) absent: BTreeSet<Key>,
}

/// A rule of which it is not known whether it matches, or what it assigns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct UnknownRule {
    /// The policy.
    pub(in crate::cli) policy: String,
    /// The rule in it.
    pub(in crate::cli) rule: String,
    /// Why.
    pub(in crate::cli) reason: String,
}

/// What differs between what autoscalers are told, and what nodes will have.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Differences {
    /// The number of pools that were compared.
    pub(in crate::cli) pools: usize,
    /// The differences, sorted by pool, field and key.
    pub(in crate::cli) differences: Vec<Difference>,
    /// Pools of which nothing was found that an autoscaler is told, sorted.
    pub(in crate::cli) not_found: Vec<String>,
}

/// A label or taint of which an autoscaler is not told what nodes will have.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Difference {
    /// The name of the pool.
    pub(in crate::cli) pool: String,
    /// What tells the autoscaler, as `KIND NAME`.
    pub(in crate::cli) told_by: String,
    /// What is wrong.
    pub(in crate::cli) because: Wrong,
    /// The part of the node.
    pub(in crate::cli) field: FieldName,
    /// The key.
    pub(in crate::cli) key: String,
    /// The effect of a taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) effect: Option<String>,
    /// The value that nodes will have, or the first of several, sorted; empty if no rule gives it to them.
    pub(in crate::cli) values: Vec<String>,
    /// The value that the autoscaler is told; absent if it is told none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) told: Option<String>,
    /// The rule that gives it, as `POLICY/RULE`; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) rule: Option<String>,
    /// The number of pods that select the label; only in a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) pods: Option<usize>,
}

/// What is wrong with what an autoscaler is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Wrong {
    /// It is not told the label or taint.
    Missing,
    /// It is told another value.
    Value,
    /// It is told that the taint goes away (`startupTaints`).
    StartupTaint,
    /// It is told one value, but it is not the same on all nodes of the pool.
    Varies,
    /// It is told the label or taint, but no rule gives it to nodes of the pool.
    Unassigned,
}

impl Templates {
    /// Says on standard error what is not known.
    pub(in crate::cli) fn tell_unknown(&self) {
        for pool in &self.pools {
            for UnknownRule { policy, rule, reason } in &pool.unknown {
                output::note(&format!(
                    "note: pool {}: what rule {policy}/{rule} gives is not known, and is left out: {reason}",
                    pool.pool
                ));
            }
        }
        if self.refuted_nodes > 0 {
            output::note(&format!(
                "note: left out {} whose label names a NodePool that no NodeClaim of the machine is of; `nodegate explain NODE` shows what proves the pools of a node",
                counted(self.refuted_nodes, "node", "nodes")
            ));
        }
        if self.nodes_without_pool > 0 {
            output::note(&format!(
                "note: {} nodes are in no pool of these: they have no label of such a group and no proven pool; --by KEY groups nodes by another label",
                self.nodes_without_pool
            ));
        }
    }

    pub(in crate::cli) fn in_words(&self) -> String {
        let mut table = output::table(&["pool", "nodes", "field", "key", "value", "rule", "in a template"]);
        for pool in &self.pools {
            let start = || [pool.pool.clone(), pool.nodes.to_string()];
            for key in &pool.same {
                let rest = [
                    key.field.as_str().to_owned(),
                    with_effect(&key.key, key.effect.as_deref()),
                    key.value.clone(),
                    format!("{}/{}", key.policy, key.rule),
                    "yes".to_owned(),
                ];
                table.add_row(start().into_iter().chain(rest));
            }
            for key in &pool.varying {
                let rest = [
                    key.field.as_str().to_owned(),
                    with_effect(&key.key, key.effect.as_deref()),
                    key.values.join(", "),
                    format!("{}/{}", key.policy, key.rule),
                    format!("no: {}", why(key.because)),
                ];
                table.add_row(start().into_iter().chain(rest));
            }
            if pool.same.is_empty() && pool.varying.is_empty() {
                let nothing = ["", "nothing", "", "", ""].map(str::to_owned);
                table.add_row(start().into_iter().chain(nothing));
            }
        }
        format!("{}\n", table.trim_fmt())
    }
}

impl Differences {
    pub(in crate::cli) fn is_none(&self) -> bool {
        self.differences.is_empty() && self.not_found.is_empty()
    }

    pub(in crate::cli) fn in_words(&self) -> String {
        let mut text = String::new();
        if !self.differences.is_empty() {
            let mut table = output::table(&["pool", "told by", "field", "key", "nodes have", "told", "rule"]);
            for found in &self.differences {
                let values = found.values.join(", ");
                let has = match found.because {
                    Wrong::Missing | Wrong::Value | Wrong::StartupTaint => values,
                    Wrong::Varies => format!("{values} (not all the same)"),
                    Wrong::Unassigned => "nothing".to_owned(),
                };
                let told = match found.because {
                    Wrong::Missing => "nothing".to_owned(),
                    Wrong::StartupTaint => "that it goes away".to_owned(),
                    Wrong::Value | Wrong::Varies | Wrong::Unassigned => found.told.clone().unwrap_or_default(),
                };
                table.add_row([
                    found.pool.clone(),
                    found.told_by.clone(),
                    found.field.as_str().to_owned(),
                    with_effect(&found.key, found.effect.as_deref()),
                    has,
                    told,
                    found.rule.clone().unwrap_or_else(|| "none".to_owned()),
                ]);
            }
            text = format!("{}\n", table.trim_fmt());
        }
        for pool in &self.not_found {
            text.push_str(&format!("pool {pool}: nothing was found that tells an autoscaler about it\n"));
        }
        if self.is_none() {
            text = format!("autoscalers know what the next nodes of {} pools will have\n", self.pools);
        }
        text
    }
}

/// The key, or `key:Effect`.
pub(in crate::cli) fn with_effect(key: &str, effect: Option<&str>) -> String {
    effect.map_or_else(|| key.to_owned(), |effect| format!("{key}:{effect}"))
}

fn why(because: Varies) -> &'static str {
    match because {
        Varies::Value => "differs between nodes",
        Varies::Absent => "only some nodes have it",
        Varies::Name => "follows from the node's name",
        Varies::OneAnswer => "an inventory says it of one node",
        Varies::Unknown => "it is not known of most nodes",
    }
}

impl PoolTemplate {
    /// The labels that its next node will have.
    pub(in crate::cli) fn labels(&self) -> impl Iterator<Item = &TemplateKey> {
        self.same.iter().filter(|key| key.field == FieldName::Label)
    }

    /// The taints that its next node will have.
    pub(in crate::cli) fn taints(&self) -> impl Iterator<Item = &TemplateKey> {
        self.same.iter().filter(|key| key.field == FieldName::Taint)
    }
}
