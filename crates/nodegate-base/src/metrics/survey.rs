//! Metrics of what a look at every node finds.

use std::collections::BTreeMap;

use prometheus_client::metrics::gauge::Gauge;

use super::bounded::{Gauges, SERIES_MAX, number};
use super::catalog::Catalog;
use super::labels::{PolicyLabels, PoolLabels, RuleLabels, ViolationLabels};

/// Entries of policies, and how many nodes each is about.
pub type ByRule = BTreeMap<(String, String), i64>;

/// What the last survey of all nodes found.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Nodes that violate an entry, by policy, entry and mode.
    pub violating: BTreeMap<(String, String, &'static str), i64>,
    /// Nodes that lack a key that an entry requires.
    pub required_missing: ByRule,
    /// Nodes that have something from a rule.
    pub by_rule: ByRule,
    /// Keys of a policy for which another policy's value is used.
    pub conflicting_keys: BTreeMap<String, i64>,
    /// Nodes that differ from what they should have.
    pub drifted: usize,
    /// Nodes whose removals are held back.
    pub removals_held_back: usize,
    /// Keys that are not repaired now, because others keep reverting them.
    pub left_alone: usize,
    /// Nodes that are proven to belong to a pool, by pool.
    pub by_pool: BTreeMap<String, i64>,
    /// Nodes of which it is not known whether they belong to one of the pools.
    pub pools_unknown: usize,
    /// Nodes that wait at a gate, by policy and gate.
    pub by_gate: ByRule,
}

/// The metrics of a [`Survey`].
#[derive(Debug, Default)]
pub(super) struct SurveyMetrics {
    violating: Gauges<ViolationLabels>,
    required_missing: Gauges<RuleLabels>,
    by_rule: Gauges<RuleLabels>,
    conflicting_keys: Gauges<PolicyLabels>,
    drifted: Gauge,
    removals_held_back: Gauge,
    left_alone: Gauge,
    by_pool: Gauges<PoolLabels>,
    pools_unknown: Gauge,
    by_gate: Gauges<RuleLabels>,
}

impl SurveyMetrics {
    pub(super) fn set(&self, survey: Survey) {
        let Survey {
            violating,
            required_missing,
            by_rule,
            conflicting_keys,
            drifted,
            removals_held_back,
            left_alone,
            by_pool,
            pools_unknown,
            by_gate,
        } = survey;
        let of_rules =
            |counts: ByRule| counts.into_iter().map(|((policy, rule), nodes)| (RuleLabels { policy, rule }, nodes));
        let violating =
            violating.into_iter().map(|((policy, rule, mode), nodes)| (ViolationLabels { policy, rule, mode }, nodes));
        self.violating.replace(violating, SERIES_MAX);
        self.required_missing.replace(of_rules(required_missing), SERIES_MAX);
        self.by_rule.replace(of_rules(by_rule), SERIES_MAX);
        let conflicting = conflicting_keys.into_iter().map(|(policy, keys)| (PolicyLabels { policy }, keys));
        self.conflicting_keys.replace(conflicting, SERIES_MAX);
        self.drifted.set(number(drifted));
        self.removals_held_back.set(number(removals_held_back));
        self.left_alone.set(number(left_alone));
        self.by_pool.replace(by_pool.into_iter().map(|(pool, nodes)| (PoolLabels { pool }, nodes)), SERIES_MAX);
        self.pools_unknown.set(number(pools_unknown));
        self.by_gate.replace(of_rules(by_gate), SERIES_MAX);
    }

    pub(super) fn register(&self, catalog: &mut Catalog) {
        let Self {
            violating,
            required_missing,
            by_rule,
            conflicting_keys,
            drifted,
            removals_held_back,
            left_alone,
            by_pool,
            pools_unknown,
            by_gate,
        } = self;
        catalog.add("rule_nodes", "Nodes that have a label, annotation or taint from a rule", &by_rule.family);
        catalog.add("drifted_nodes", "Nodes that differ from what policies want", drifted);
        catalog.add(
            "removals_held_back_nodes",
            "Nodes whose removals wait because more than --max-removals nodes are affected",
            removals_held_back,
        );
        catalog.add("violating_nodes", "Nodes that violate a governance entry as they stand", &violating.family);
        catalog.add(
            "required_missing_nodes",
            "Nodes that lack a label or annotation that an entry of required names",
            &required_missing.family,
        );
        catalog.add(
            "conflicting_keys",
            "Keys for which another rule takes precedence over a rule of this policy",
            &conflicting_keys.family,
        );
        catalog.add(
            "left_alone_keys",
            "Keys that are not repaired now, because others keep reverting them",
            left_alone,
        );
        catalog.add("pool_nodes", "Nodes that are proven to belong to a pool", &by_pool.family);
        catalog.add("pool_unknown_nodes", "Nodes for which membership in a pool is unknown", pools_unknown);
        catalog.add(
            "gate_nodes",
            "Nodes that have the pending taint because they have not passed a gate",
            &by_gate.family,
        );
    }
}
