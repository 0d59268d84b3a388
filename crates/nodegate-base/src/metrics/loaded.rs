//! Metrics of what is loaded: policies, saved state, certificates.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Unit;

use super::bounded::{Gauges, SERIES_MAX, number};
use super::catalog::Catalog;
use super::labels::{PolicyLabels, Reload, Reloads, count, reloads};

/// What is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyCount {
    /// Policies, presets included.
    pub policies: usize,
    /// Rules, derived labels and persist sections included.
    pub rules: usize,
}

/// Metrics of policies, saved state and certificates.
#[derive(Debug)]
pub struct LoadedMetrics {
    synced: Gauge,
    policies: Gauge,
    rules: Gauge,
    policy_reloads: Reloads,
    policy_files_faulty: Gauge,
    faulty_policies: Gauges<PolicyLabels>,
    saved_states: Gauge,
    state_reloads: Reloads,
    certificate_reloads: Reloads,
    certificate_not_after: Gauge<f64, AtomicU64>,
    certificate_expiring: Gauge,
}

impl Default for LoadedMetrics {
    fn default() -> Self {
        Self {
            synced: Gauge::default(),
            policies: Gauge::default(),
            rules: Gauge::default(),
            policy_reloads: reloads(),
            policy_files_faulty: Gauge::default(),
            faulty_policies: Gauges::default(),
            saved_states: Gauge::default(),
            state_reloads: reloads(),
            certificate_reloads: reloads(),
            certificate_not_after: Gauge::default(),
            certificate_expiring: Gauge::default(),
        }
    }
}

impl LoadedMetrics {
    pub(super) fn register(&self, catalog: &mut Catalog) {
        let Self {
            synced,
            policies,
            rules,
            policy_reloads,
            policy_files_faulty,
            faulty_policies,
            saved_states,
            state_reloads,
            certificate_reloads,
            certificate_not_after,
            certificate_expiring,
        } = self;
        catalog.section("Policies, state, certificates");
        catalog.add(
            "synced",
            "1 once policies, saved state and answers of inventories are loaded; until then reviews get 503",
            synced,
        );
        catalog.add("policies", "Policies in force, presets included", policies);
        catalog.add("rules", "Rules in force, derived labels and persist sections included", rules);
        catalog.add("policy_reloads", "Policy sets loaded or refused", policy_reloads);
        catalog.add(
            "policy_files_faulty",
            "1 while policy files cannot be loaded; the last good policies stay in force",
            policy_files_faulty,
        );
        catalog.add(
            "policy_faulty",
            "1 while the current generation of a NodePolicy object is not in force",
            &faulty_policies.family,
        );
        catalog.add("saved_states", "Nodes with saved state", saved_states);
        catalog.add("state_reloads", "Documents of saved state read or refused", state_reloads);
        catalog.add("certificate_reloads", "Certificates loaded or refused", certificate_reloads);
        catalog.add_in(
            "certificate_not_after_timestamp",
            Unit::Seconds,
            "When the serving certificate expires, in seconds since 1970",
            certificate_not_after,
        );
        catalog.add(
            "certificate_expiring",
            "1 from 14 days before the serving certificate expires",
            certificate_expiring,
        );
    }

    /// Records that everything that a review depends on has been loaded.
    pub fn everything_loaded(&self) {
        self.synced.set(1);
    }

    pub(super) fn policies_loaded(&self, PolicyCount { policies, rules }: PolicyCount) {
        count(&self.policy_reloads, Reload::Success);
        self.policies.set(number(policies));
        self.rules.set(number(rules));
    }

    /// Counts a reload of policies that failed. Those in force stay.
    pub fn policies_refused(&self) {
        count(&self.policy_reloads, Reload::Failure);
    }

    /// Sets whether the policy files can be loaded.
    pub fn policy_files_judged(&self, faulty: bool) {
        self.policy_files_faulty.set(i64::from(faulty));
    }

    /// Sets for every `NodePolicy` object whether its current generation has errors. Removes the series of deleted
    /// objects.
    pub fn policies_judged<'a>(&self, objects: impl IntoIterator<Item = (&'a str, bool)>) {
        let judged =
            objects.into_iter().map(|(policy, faulty)| (PolicyLabels { policy: policy.to_owned() }, i64::from(faulty)));
        self.faulty_policies.replace(judged, SERIES_MAX);
    }

    /// Counts a read of saved state.
    pub fn state_reloaded(&self, result: Reload) {
        count(&self.state_reloads, result);
    }

    /// Sets the number of nodes with saved state.
    pub fn set_saved_states(&self, nodes: usize) {
        self.saved_states.set(number(nodes));
    }

    /// Counts a reload of the serving certificate.
    pub fn certificate_reloaded(&self, result: Reload) {
        count(&self.certificate_reloads, result);
    }

    /// Sets when the serving certificate expires.
    pub fn set_certificate_not_after(&self, not_after: jiff::Timestamp) {
        self.certificate_not_after.set(not_after.as_second() as f64);
    }

    /// Sets whether the serving certificate expires within 14 days.
    pub fn set_certificate_expiring(&self, expiring: bool) {
        self.certificate_expiring.set(i64::from(expiring));
    }
}
