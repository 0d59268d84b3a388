//! The pools' memory: the labels that all nodes of a pool have, for its next node, whatever the name of that is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::keys::pattern::KeySet;
use crate::set::PolicySet;
use crate::set::index::RuleIndex;

/// Maximum size of the keys and values of all pools, in bytes. They are stored in one ConfigMap, which holds 1 MiB
/// (`k8s.io/kubernetes/pkg/apis/core/validation`, `ValidateConfigMap`).
const SIZE_MAX: usize = 512 * 1024;
/// How many values of a label are listed on which the nodes of a pool do not agree.
const VALUES_MAX: usize = 5;

/// What the nodes of all pools have, or had while there were any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolMemory {
    /// What each pool remembers, by its name.
    pub pools: BTreeMap<String, PoolLabels>,
    /// The number of labels that are not remembered, because there are too many.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// What one pool remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolLabels {
    /// The labels that all its nodes have. Its next node gets them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The labels that only some of its nodes have, or not with the same value. No node gets them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub disagreements: BTreeMap<String, Disagreement>,
    /// Since when it has no nodes (RFC 3339); absent while it has some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_since: Option<String>,
}

impl PoolLabels {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.disagreements.is_empty()
    }

    /// The size of keys and values, in bytes.
    fn size(&self) -> usize {
        let labels = self.labels.iter().map(|(key, value)| key.len() + value.len());
        // Each value has a number of nodes.
        let values = |differing: &Disagreement| differing.values.keys().map(|value| value.len() + 16).sum::<usize>();
        let disagreements = self.disagreements.iter().map(|(key, differing)| key.len() + values(differing));
        labels.chain(disagreements).sum()
    }
}

/// A label on which the nodes of a pool do not agree, or of which only nodes that are gone have ended the agreement. Deleting a node
/// settles nothing: a kubelet may delete its own, and would decide for the pool so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Disagreement {
    /// The values with the number of nodes that have them: the most frequent ones, sorted by value.
    pub values: BTreeMap<String, usize>,
    /// The number of nodes with other values.
    #[serde(skip_serializing_if = "is_zero")]
    pub others: usize,
    /// The number of nodes without the label, or on which only the kubelet says so.
    #[serde(skip_serializing_if = "is_zero")]
    pub without: usize,
}

impl Disagreement {
    /// Whether nodes have different values; otherwise some lack the label, or lacked it until they left.
    fn is_contradictory(&self) -> bool {
        self.values.len() > 1
    }

    /// How many nodes had this value at most.
    fn nodes_with(&self, value: &str) -> usize {
        self.values.get(value).copied().unwrap_or(self.others)
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = |nodes: &usize| format!("on {nodes} node{}", if *nodes == 1 { "" } else { "s" });
        let values = self.values.iter().map(|(value, nodes)| format!("{value:?} {}", on(nodes)));
        let others = (self.others > 0).then(|| format!("others {}", on(&self.others)));
        let without = (self.without > 0).then(|| format!("none {}", on(&self.without)));
        let left = (self.values.len() == 1 && self.others + self.without == 0)
            .then(|| "another or none on nodes that are gone".to_owned());
        f.write_str(&values.chain(others).chain(without).chain(left).collect::<Vec<_>>().join(", "))
    }
}

/// What one node says about its pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolShare {
    /// The pools that it is proven to belong to.
    pub(crate) pools: Vec<String>,
    /// Its labels that its pools are to remember.
    pub(crate) labels: BTreeMap<String, String>,
    /// The sections with `scope: pool` that match it.
    pub(crate) sections: Vec<RuleIndex>,
}

/// The value of a label that pools remember for a node, or why it gets none.
pub(crate) type Remembered<'m> = Result<&'m str, String>;

impl PoolMemory {
    /// What the nodes of these pools agree on, of the labels in `keys`. Pools that do not agree with each other give nothing, and
    /// neither does one whose nodes do not.
    pub(crate) fn given<'m>(
        &'m self,
        pools: impl Iterator<Item = &'m str>,
        keys: &KeySet,
    ) -> BTreeMap<&'m str, Remembered<'m>> {
        let mut given: BTreeMap<&str, Remembered<'m>> = BTreeMap::new();
        let mut silenced = BTreeSet::new();
        for (pool, known) in pools.filter_map(|pool| self.pools.get_key_value(pool)) {
            for (key, value) in known.labels.iter().filter(|(key, _)| keys.contains(key)) {
                let other =
                    given.get(key.as_str()).is_some_and(|other| other.as_ref().is_ok_and(|other| *other != value));
                if other {
                    given.insert(
                        key,
                        Err(format!("the pools of the node have different values, pool {pool} {value:?}")),
                    );
                } else {
                    given.entry(key).or_insert(Ok(value));
                }
            }
            for (key, differing) in known.disagreements.iter().filter(|(key, _)| keys.contains(key)) {
                if differing.is_contradictory() {
                    given.insert(key, Err(format!("the nodes of pool {pool} do not agree: {differing}")));
                } else {
                    silenced.insert(key.as_str());
                }
            }
        }
        given.retain(|key, value| value.is_err() || !silenced.contains(key));
        given
    }

    /// The memory from now on, if these are all nodes. A pool that has none now keeps what it remembered, for `retention` from when
    /// that was first seen; forever without one, and while the time is not known.
    ///
    /// `set` has to be the policies by which the shares were found.
    pub fn after<'n>(
        &self,
        set: &PolicySet,
        shares: impl IntoIterator<Item = &'n PoolShare>,
        now: Option<Timestamp>,
        retention: Option<Duration>,
    ) -> Self {
        let mut by_pool: BTreeMap<&str, Vec<&PoolShare>> = BTreeMap::new();
        for share in shares {
            for pool in &share.pools {
                by_pool.entry(pool).or_default().push(share);
            }
        }
        let before = |pool: &str| self.pools.get(pool);
        let mut all: Vec<(&str, PoolLabels)> =
            by_pool.iter().map(|(pool, shares)| (*pool, agreed(set, shares, before(pool)))).collect();
        for (pool, known) in self.pools.iter().filter(|(pool, _)| !by_pool.contains_key(pool.as_str())) {
            let since = known.empty_since.clone().or_else(|| now.map(|now| now.to_string()));
            let is_over = since.as_deref().and_then(|since| since.parse::<Timestamp>().ok()).zip(now).zip(retention);
            let is_over = is_over.is_some_and(|((since, now), retention)| {
                now.duration_since(since).unsigned_abs() > retention && now > since
            });
            if !is_over {
                // The nodes that did not agree are gone.
                let labels = known.labels.clone();
                all.push((pool, PoolLabels { labels, empty_since: since, ..PoolLabels::default() }));
            }
        }
        bounded(all)
    }
}

/// What pools remember within [`SIZE_MAX`]. The largest ones lose first, so no pool is forgotten because others have many labels.
fn bounded(mut all: Vec<(&str, PoolLabels)>) -> PoolMemory {
    all.sort_by_cached_key(|(pool, known)| (known.size(), *pool));
    let (mut memory, mut left) = (PoolMemory::default(), SIZE_MAX);
    for (pool, known) in all.into_iter().filter(|(_, known)| !known.is_empty()) {
        match left.checked_sub(known.size()) {
            Some(rest) => {
                left = rest;
                memory.pools.insert(pool.to_owned(), known);
            }
            None => memory.left_out += known.labels.len() + known.disagreements.len(),
        }
    }
    memory
}

/// What the nodes with these shares agree on, and what not. On what they did not agree `before`, they do only once more of them have the
/// value: a living node has been changed.
fn agreed(set: &PolicySet, shares: &[&PoolShare], before: Option<&PoolLabels>) -> PoolLabels {
    let mut known = PoolLabels::default();
    let keys: BTreeSet<&str> = shares.iter().flat_map(|share| share.labels.keys().map(String::as_str)).collect();
    for key in keys {
        let is_asked = |share: &PoolShare| {
            share.sections.iter().any(|section| {
                set.rule(*section).assigns.saved.as_ref().is_some_and(|saved| saved.labels.contains(key))
            })
        };
        let (mut values, mut without) = (BTreeMap::<&str, usize>::new(), 0);
        for share in shares.iter().filter(|share| is_asked(share)) {
            match share.labels.get(key) {
                Some(value) => *values.entry(value).or_default() += 1,
                None => without += 1,
            }
        }
        let is_settled = |value: &str, nodes: usize| {
            let differing = before.and_then(|before| before.disagreements.get(key));
            differing.is_none_or(|differing| nodes > differing.nodes_with(value))
        };
        match (values.len(), without, values.first_key_value()) {
            (1, 0, Some((value, nodes))) if is_settled(value, *nodes) => {
                known.labels.insert(key.to_owned(), (*value).to_owned());
            }
            _ => {
                let mut frequent: Vec<(&str, usize)> = values.into_iter().collect();
                frequent.sort_by_key(|(_, nodes)| std::cmp::Reverse(*nodes));
                let others = frequent.iter().skip(VALUES_MAX).map(|(_, nodes)| nodes).sum();
                let listed = frequent.into_iter().take(VALUES_MAX).map(|(value, nodes)| (value.to_owned(), nodes));
                known.disagreements.insert(key.to_owned(), Disagreement { values: listed.collect(), others, without });
            }
        }
    }
    known
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
