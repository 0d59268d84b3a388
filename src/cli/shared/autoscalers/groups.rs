//! The pools of a fleet, and what the next node of each will have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::TemplateFormat;
use super::declared::{Declared, NextNode, Provisioner};
use super::document::{PoolTemplate, Templates, UnknownRule};
use super::pool_id::{HeldBy, PoolId};
use super::provisioners::NODEPOOL;
use crate::cli::shared::cluster::known_node::KnownNode;
use nodegate_policy::api::names::LabelKey;
use nodegate_policy::api::state::SavedState;
use nodegate_policy::explain::identity;
use nodegate_policy::init::node_group;
use nodegate_policy::templates::{GroupTemplate, Key, Newcomer, assigned, keys_of, once_joined, renamed};
use nodegate_policy::{
    Decision, Evidence, InventoryAnswers, NodeFacts, Note, PendingTaints, PolicySet, PoolMemory, Publishers,
};

const HOSTNAME: &str = "kubernetes.io/hostname";
/// The annotation of a node with the namespace of its cluster's objects (`sigs.k8s.io/cluster-api`, `api/core/v1beta2/machine_types.go`).
const CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";
/// The annotation with the name of its Cluster, in the same file.
const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// A name that no rule is written for.
const NAMELESS: &str = "xn--node-of-no-name";

/// The pools of a fleet.
pub(in crate::cli) struct Groups<'a> {
    set: &'a PolicySet,
    by: Option<&'a LabelKey>,
    format: Option<TemplateFormat>,
    pending: PendingTaints,
    pools: BTreeMap<PoolId, Pool>,
    without_pool: usize,
    joining: usize,
    /// Those whose label names another NodePool than the NodeClaims of their machines.
    refuted: usize,
    /// The clusters of Cluster API that nodes are of: namespace and name.
    clusters: BTreeSet<(String, String)>,
    /// What pools remember.
    pub(in crate::cli) remembered: Arc<PoolMemory>,
    elsewhere: Publishers,
}

/// What is known of one pool.
#[derive(Default)]
struct Pool {
    template: GroupTemplate,
    /// The reason by policy and rule.
    unknown: BTreeMap<(String, String), String>,
    /// What its nodes have from others.
    from_others: BTreeSet<Key>,
    /// Whether its next node was made up, because it has none.
    is_empty: bool,
}

/// The next node of a pool.
struct Next {
    decision: Decision,
    under_another_name: Decision,
    from_others: BTreeSet<Key>,
}

impl Pool {
    fn add(&mut self, set: &PolicySet, Next { decision, under_another_name, from_others }: Next) {
        self.template.add(set, &decision, &under_another_name);
        self.from_others.extend(from_others);
        for note in &decision.notes {
            if let Note::Unknown { rule, reason } = note {
                let rule = (rule.policy.to_string(), rule.rule.to_string());
                self.unknown.entry(rule).or_insert_with(|| reason.clone());
            }
        }
    }
}

impl<'a> Groups<'a> {
    pub(in crate::cli) fn new(
        set: &'a PolicySet,
        by: Option<&'a LabelKey>,
        format: Option<TemplateFormat>,
        pending: PendingTaints,
    ) -> Self {
        Self {
            set,
            by,
            format,
            pending,
            pools: BTreeMap::new(),
            without_pool: 0,
            joining: 0,
            refuted: 0,
            clusters: BTreeSet::new(),
            remembered: Arc::default(),
            elsewhere: Publishers::default(),
        }
    }

    /// Adds a node of the fleet to its pool.
    ///
    /// # Errors
    /// Returns an error if a field of the node has an unexpected type.
    pub(in crate::cli) fn add(&mut self, member: &KnownNode) -> anyhow::Result<()> {
        let facts = member.facts()?;
        let stored = member.stored(&facts, &self.pending);
        let annotation = |key: &str| facts.annotation(key).map(str::to_owned);
        self.clusters.extend(annotation(CLUSTER_NAMESPACE).zip(annotation(CLUSTER_NAME)));
        // It may lack what its rules and others give it.
        if self.pending.on(&facts).next().is_some() {
            self.joining += 1;
            return Ok(());
        }
        // A kubelet may have set the label itself. Its node must not decide what autoscalers are told about another pool.
        let nodepool = facts.label(NODEPOOL).zip(stored.evidence);
        if nodepool.is_some_and(|(name, evidence)| evidence.refutes_label_of_node_claim(NODEPOOL, name)) {
            self.refuted += 1;
            return Ok(());
        }
        let Some(pool) = self.pool_of(&facts, stored.evidence) else {
            self.without_pool += 1;
            return Ok(());
        };
        let object = serde_json::from_str(member.json())?;
        let no_answers = InventoryAnswers::default();
        let known = Newcomer {
            evidence: stored.evidence,
            pools: stored.pools.unwrap_or(&self.remembered),
            inventory: stored.inventory.unwrap_or(&no_answers),
            elsewhere: stored.elsewhere,
            pending: &self.pending,
        };
        let next = self.twice(&object, &member.saved, [&facts.name, &renamed(&facts.name)], &known)?;
        self.elsewhere = stored.elsewhere;
        self.pools.entry(pool).or_default().add(self.set, next);
        Ok(())
    }

    /// Whether an object is about nodes of this fleet: a management cluster of Cluster API has MachineDeployments of others.
    pub(in crate::cli) fn is_of_this_fleet(&self, declared: &Declared) -> bool {
        let cluster = || {
            let name = declared.object["spec"]["clusterName"].as_str()?;
            Some((declared.cluster.clone()?, name.to_owned()))
        };
        declared.provisioner != Some(Provisioner::ClusterApi)
            || cluster().is_some_and(|cluster| self.clusters.contains(&cluster))
    }

    /// Adds the next node of a pool that has none, if what is declared of the pool says what its nodes will be.
    ///
    /// # Errors
    /// Returns an error if it says so in fields of an unexpected type.
    pub(in crate::cli) fn add_empty(&mut self, declared: &Declared) -> anyhow::Result<()> {
        let known = self.pools.keys().any(|id| id.is(declared));
        let Some(next) = declared.next_node.as_ref().filter(|_| !known) else { return Ok(()) };
        let (text, no_answers) = (next.node.to_string(), InventoryAnswers::default());
        let evidence =
            Evidence::witnessed(None, self.set, &NodeFacts::parse(&text)?, None, next).map(Evidence::settled);
        let known = Newcomer {
            evidence: evidence.as_ref(),
            pools: &self.remembered,
            inventory: &no_answers,
            elsewhere: self.elsewhere,
            pending: &self.pending,
        };
        // Nothing says what its name will be, so what follows from one is promised by none.
        let next = self.twice(&next.node, &SavedState::default(), [next.name(), NAMELESS], &known)?;
        let pool = Pool { is_empty: true, ..Pool::default() };
        self.pools.entry(PoolId::of(declared)).or_insert(pool).add(self.set, next);
        Ok(())
    }

    /// What a node will have under each of these names.
    fn twice(
        &self,
        node: &Json,
        saved: &SavedState,
        [name, other]: [&str; 2],
        known: &Newcomer<'_>,
    ) -> anyhow::Result<Next> {
        let under = |name: &str| -> anyhow::Result<(Decision, BTreeSet<Key>)> {
            let text = as_it_joins(node.clone(), saved, name).to_string();
            let facts = NodeFacts::parse(&text)?;
            let has = keys_of(&facts).collect();
            Ok((once_joined(self.set, &facts, known), has))
        };
        let ((decision, from_others), (under_another_name, _)) = (under(name)?, under(other)?);
        Ok(Next { decision, under_another_name, from_others })
    }

    /// The pool of a node: what the user groups by; the label of its node group; its proven pool.
    fn pool_of(&self, node: &NodeFacts<'_>, evidence: Option<&Evidence<'_>>) -> Option<PoolId> {
        let label = |key: &str| node.label(key).filter(|value| !value.is_empty());
        let id = |name: &str, by: HeldBy| PoolId { name: name.to_owned(), by };
        let group = match (self.by, self.format) {
            (Some(key), _) => return Some(id(label(key.as_str())?, HeldBy::Chosen)),
            (None, Some(TemplateFormat::NodepoolPatch)) => return Some(id(label(NODEPOOL)?, HeldBy::Label(NODEPOOL))),
            // Their nodes are Karpenter's.
            (None, Some(_)) if label(NODEPOOL).is_some() => return None,
            // Cluster API has no label for it on nodes.
            (None, Some(TemplateFormat::CapiAnnotations)) => None,
            (None, _) => node_group(label),
        };
        let proven = || {
            let name = identity(self.set, node, evidence)?.pools.into_iter().next()?;
            Some(PoolId {
                name,
                by: HeldBy::Proof { namespace: node.annotation(CLUSTER_NAMESPACE).map(str::to_owned) },
            })
        };
        group.map(|(key, name)| id(name, HeldBy::Label(key))).or_else(proven)
    }

    pub(in crate::cli) fn finish(self) -> Templates {
        let mut of_name: BTreeMap<String, usize> = BTreeMap::new();
        self.pools.keys().for_each(|id| *of_name.entry(id.name.clone()).or_default() += 1);
        let assigned = assigned(self.set);
        let pools = self.pools.into_iter().map(|(id, Pool { template, unknown, from_others, is_empty })| {
            let nodes = if is_empty { 0 } else { template.nodes() };
            let absent = assigned.iter().filter(|key| template.lacks(key) && !from_others.contains(key));
            let absent = absent.cloned().collect();
            let (same, varying) = template.finish();
            let unknown = unknown.into_iter().map(|((policy, rule), reason)| UnknownRule { policy, rule, reason });
            let is_only = of_name.get(&id.name).is_none_or(|pools| *pools == 1);
            let pool = if is_only { id.name.clone() } else { id.in_full() };
            PoolTemplate { pool, id, nodes, same, varying, unknown: unknown.collect(), absent }
        });
        Templates {
            pools: pools.collect(),
            nodes_without_pool: self.without_pool,
            joining_nodes: self.joining,
            refuted_nodes: self.refuted,
        }
    }
}

/// The node as a new machine of this name joins, once everyone else has written to it: without what nodegate owns.
fn as_it_joins(mut node: Json, saved: &SavedState, name: &str) -> Json {
    let owned = saved.owned.as_ref();
    if let Some(labels) = node.pointer_mut("/metadata/labels").and_then(Json::as_object_mut) {
        labels.retain(|key, value| {
            owned.and_then(|owned| owned.labels.get(key)).is_none_or(|own| value.as_str() != Some(own))
        });
        if labels.contains_key(HOSTNAME) {
            labels.insert(HOSTNAME.to_owned(), json!(name));
        }
    }
    if let Some(taints) = node.pointer_mut("/spec/taints").and_then(Json::as_array_mut) {
        let is_own = |taint: &Json| {
            let mut owned = owned.iter().flat_map(|owned| &owned.taints);
            owned.any(|own| taint["key"] == *own.key && taint["effect"] == *own.effect)
        };
        taints.retain(|taint| !is_own(taint));
    }
    node["metadata"]["name"] = json!(name);
    if let Some(metadata) = node["metadata"].as_object_mut() {
        metadata.remove("uid");
    }
    node
}

impl NextNode {
    fn name(&self) -> &str {
        self.node["metadata"]["name"].as_str().unwrap_or_default()
    }
}
