//! Every metric, by name. Label values are bounded: they are words of this file, or policies and rules in force.

mod bodies;
mod callers;
mod connections;
mod controller;
mod inventory;
mod keeping;
mod labels;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use bodies::BodyMetrics;
pub use callers::CallerMetrics;
pub use connections::ConnectionMetrics;
pub use controller::ControllerMetrics;
pub use inventory::InventoryMetrics;
pub use keeping::KeepingMetrics;
pub use labels::{Endpoint, Outcome, Reload};

use labels::{BUCKETS, ENDPOINTS, OUTCOMES, ReloadLabels, Reloads, ViolationLabels, reloads};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    endpoint: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NoteLabels {
    note: &'static str,
    policy: String,
    rule: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    policy: String,
}

/// All metrics. Cheap to clone; counting takes no lock on the request path except for notes and violations.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: [[Counter; OUTCOMES.len()]; ENDPOINTS.len()],
    durations: [Histogram; ENDPOINTS.len()],
    notes: Family<NoteLabels, Counter>,
    violations: Family<ViolationLabels, Counter>,
    denials: Family<ViolationLabels, Counter>,
    policy_reloads: Reloads,
    faulty_policies: Family<PolicyLabels, Gauge>,
    state_reloads: Reloads,
    certificate_reloads: Reloads,
    /// Policies in force, including presets.
    pub policies: Gauge,
    /// Rules in force, including derived labels and persist sections.
    pub rules: Gauge,
    /// Nodes with saved state.
    pub saved_states: Gauge,
    /// When the serving certificate expires, in seconds since 1970.
    pub certificate_not_after: Gauge<f64, AtomicU64>,
    /// 1 from fourteen days before the serving certificate expires.
    pub certificate_expiring: Gauge,
    /// HTTPS connections.
    pub connections: ConnectionMetrics,
    /// Bodies that were not read completely, and large reviews.
    pub bodies: BodyMetrics,
    /// Callers that were refused because of their client certificate.
    pub callers: CallerMetrics,
    /// Metrics of the controller.
    pub controller: ControllerMetrics,
    /// Metrics of inventories.
    pub inventory: InventoryMetrics,
}

impl Metrics {
    /// All metrics, at zero.
    pub fn new() -> Arc<Self> {
        let requests = Family::<RequestLabels, Counter>::default();
        let durations = Family::<EndpointLabels, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        let mut metrics = Self {
            requests: ENDPOINTS.map(|endpoint| {
                OUTCOMES.map(|outcome| {
                    requests
                        .get_or_create(&RequestLabels { endpoint: endpoint.as_str(), outcome: outcome.as_str() })
                        .clone()
                })
            }),
            durations: ENDPOINTS
                .map(|endpoint| durations.get_or_create(&EndpointLabels { endpoint: endpoint.as_str() }).clone()),
            registry: Registry::with_prefix("nodegate"),
            notes: Family::default(),
            violations: Family::default(),
            denials: Family::default(),
            policy_reloads: reloads(),
            faulty_policies: Family::default(),
            state_reloads: reloads(),
            certificate_reloads: reloads(),
            policies: Gauge::default(),
            rules: Gauge::default(),
            saved_states: Gauge::default(),
            certificate_not_after: Gauge::default(),
            certificate_expiring: Gauge::default(),
            connections: ConnectionMetrics::default(),
            bodies: BodyMetrics::default(),
            callers: CallerMetrics::default(),
            controller: ControllerMetrics::default(),
            inventory: InventoryMetrics::default(),
        };
        metrics.registry.register("admission_requests", "Admission reviews by outcome", requests);
        metrics.registry.register(
            "admission_duration_seconds",
            "Time from the complete request to the complete answer",
            durations,
        );
        metrics.register();
        Arc::new(metrics)
    }

    fn register(&mut self) {
        let Self {
            registry,
            requests: _,
            durations: _,
            notes,
            violations,
            denials,
            policy_reloads,
            faulty_policies,
            state_reloads,
            certificate_reloads,
            policies,
            rules,
            saved_states,
            certificate_not_after,
            certificate_expiring,
            connections,
            bodies,
            callers,
            controller,
            inventory,
        } = self;
        registry.register("build", "Version of nodegate", Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]));
        registry.register(
            "decision_notes",
            "Notes of decisions: conflicts, unknown conditions, stripped and reverted keys, and others",
            notes.clone(),
        );
        registry.register(
            "violations",
            "Governance violations by effect: enforce, warn, audit or break_glass",
            violations.clone(),
        );
        registry.register("denials", "Governance violations that denied a write", denials.clone());
        registry.register("policy_reloads", "Reloads of policies by result", policy_reloads.clone());
        registry.register(
            "policy_faulty",
            "1 while the current generation of a NodePolicy object is not in force",
            faulty_policies.clone(),
        );
        registry.register("state_reloads", "Reads of saved state by result", state_reloads.clone());
        registry.register(
            "certificate_reloads",
            "Reloads of the serving certificate by result",
            certificate_reloads.clone(),
        );
        registry.register("policies", "Policies in force", policies.clone());
        registry.register("rules", "Rules in force", rules.clone());
        registry.register("saved_states", "Nodes with saved state", saved_states.clone());
        registry.register(
            "certificate_not_after_timestamp_seconds",
            "When the serving certificate expires, in seconds since 1970",
            certificate_not_after.clone(),
        );
        registry.register(
            "certificate_expiring",
            "1 from fourteen days before the serving certificate expires",
            certificate_expiring.clone(),
        );
        connections.register(registry);
        bodies.register(registry);
        callers.register(registry);
        controller.register(registry);
        inventory.register(registry);
    }

    /// Counts one answered review.
    pub fn answered(&self, endpoint: Endpoint, outcome: Outcome, seconds: f64) {
        self.requests[endpoint as usize][outcome as usize].inc();
        self.durations[endpoint as usize].observe(seconds);
    }

    /// Counts a note of a decision; `policy` and `rule` are empty if no rule is involved.
    pub fn noted(&self, note: &'static str, policy: &str, rule: &str) {
        self.notes.get_or_create(&NoteLabels { note, policy: policy.to_owned(), rule: rule.to_owned() }).inc();
    }

    /// Counts a violation by its effect.
    pub fn violated(&self, policy: &str, rule: &str, mode: &'static str, denies: bool) {
        let labels = ViolationLabels { policy: policy.to_owned(), rule: rule.to_owned(), mode };
        if denies {
            self.denials.get_or_create(&labels).inc();
        }
        self.violations.get_or_create(&labels).inc();
    }

    /// Counts a reload of policies, with the new number of policies and rules. Removes the series of policies that
    /// are gone.
    pub fn policies_reloaded(&self, result: Reload, policies: usize, rules: usize) {
        self.policy_reloads.get_or_create(&ReloadLabels { result: result.as_str() }).inc();
        if result == Reload::Success {
            self.policies.set(i64::try_from(policies).unwrap_or(i64::MAX));
            self.rules.set(i64::try_from(rules).unwrap_or(i64::MAX));
            self.notes.clear();
            self.violations.clear();
            self.denials.clear();
        }
    }

    /// Sets for every `NodePolicy` object whether its current generation has errors. Removes the series of deleted
    /// objects.
    pub fn policies_judged<'a>(&self, objects: impl IntoIterator<Item = (&'a str, bool)>) {
        self.faulty_policies.clear();
        for (policy, faulty) in objects {
            self.faulty_policies.get_or_create(&PolicyLabels { policy: policy.to_owned() }).set(faulty.into());
        }
    }

    /// Counts a read of saved state.
    pub fn state_reloaded(&self, result: Reload) {
        self.state_reloads.get_or_create(&ReloadLabels { result: result.as_str() }).inc();
    }

    /// Counts a reload of the serving certificate.
    pub fn certificate_reloaded(&self, result: Reload) {
        self.certificate_reloads.get_or_create(&ReloadLabels { result: result.as_str() }).inc();
    }

    /// The metrics in OpenMetrics format.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail; if it did, the page would be incomplete.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
