//! Every metric, by name. Label values are bounded: they are words of this file, or policies and rules in force.

mod admission;
mod apply;
mod bodies;
mod bounded;
mod callers;
mod catalog;
mod connections;
mod controller;
mod exposition;
mod fleet;
mod inventory;
mod keeping;
mod labels;
mod process;
mod traces;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

pub use admission::{AdmissionMetrics, Held};
pub use apply::ApplyRun;
pub use bodies::BodyMetrics;
pub use callers::CallerMetrics;
pub use catalog::Entry;
pub use connections::ConnectionMetrics;
pub use controller::ControllerMetrics;
pub use exposition::Format;
pub use fleet::{ByRule, Count, FleetMetrics, Survey};
pub use inventory::InventoryMetrics;
pub use keeping::KeepingMetrics;
pub use labels::{Endpoint, Outcome, Reload};
pub use traces::{SpanFate, TraceMetrics};

use bounded::{Gauges, SERIES_MAX};
use catalog::{Catalog, Constant, Listed};
use labels::{PolicyLabels, ReloadLabels, Reloads, reloads};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
    os: &'static str,
    arch: &'static str,
}

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    listed: Vec<Listed>,
    /// Reviews.
    pub admission: AdmissionMetrics,
    policy_reloads: Reloads,
    policy_files_faulty: Gauge,
    faulty_policies: Gauges<PolicyLabels>,
    state_reloads: Reloads,
    certificate_reloads: Reloads,
    synced: Gauge,
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
    /// Callers that were refused because of their client certificate.
    pub callers: CallerMetrics,
    /// Metrics of the controller.
    pub controller: ControllerMetrics,
    /// Metrics of all nodes, of the leader.
    pub fleet: FleetMetrics,
    /// Metrics of inventories.
    pub inventory: InventoryMetrics,
    /// Spans.
    pub traces: TraceMetrics,
}

impl Metrics {
    /// All metrics, at zero.
    pub fn new() -> Arc<Self> {
        let metrics = Self {
            registry: Registry::default(),
            listed: Vec::new(),
            admission: AdmissionMetrics::default(),
            policy_reloads: reloads(),
            policy_files_faulty: Gauge::default(),
            faulty_policies: Gauges::default(),
            state_reloads: reloads(),
            certificate_reloads: reloads(),
            synced: Gauge::default(),
            policies: Gauge::default(),
            rules: Gauge::default(),
            saved_states: Gauge::default(),
            certificate_not_after: Gauge::default(),
            certificate_expiring: Gauge::default(),
            connections: ConnectionMetrics::default(),
            callers: CallerMetrics::default(),
            controller: ControllerMetrics::default(),
            fleet: FleetMetrics::default(),
            inventory: InventoryMetrics::default(),
            traces: TraceMetrics::default(),
        };
        let mut catalog = Catalog::new();
        metrics.register(&mut catalog);
        let Catalog { registry, listed, .. } = catalog;
        Arc::new(Self { registry, listed, ..metrics })
    }

    fn register(&self, catalog: &mut Catalog) {
        let Self {
            registry: _,
            listed: _,
            admission,
            policy_reloads: _,
            policy_files_faulty: _,
            faulty_policies: _,
            state_reloads: _,
            certificate_reloads: _,
            synced: _,
            policies: _,
            rules: _,
            saved_states: _,
            certificate_not_after: _,
            certificate_expiring: _,
            connections,
            callers,
            controller,
            fleet,
            inventory,
            traces,
        } = self;
        admission.register(catalog);
        self.register_loaded(catalog);
        connections.register(catalog);
        callers.register(catalog);
        controller.register(catalog);
        fleet.register(catalog);
        inventory.register(catalog);
        traces.register(catalog);
        process::register(catalog);
        let build =
            BuildLabels { version: env!("CARGO_PKG_VERSION"), os: std::env::consts::OS, arch: std::env::consts::ARCH };
        catalog.add("build", "The running version, and what it was built for", &Constant(build));
    }

    /// Registers what is loaded: policies, state, certificates.
    fn register_loaded(&self, catalog: &mut Catalog) {
        catalog.section("Policies, state, certificates");
        catalog.add(
            "synced",
            "1 once policies, saved state and answers of inventories have been loaded; until then reviews get 503",
            &self.synced,
        );
        catalog.add("policies", "Policies in force, presets included", &self.policies);
        catalog.add("rules", "Rules in force, derived labels and persist sections included", &self.rules);
        catalog.add("policy_reloads", "Policy sets loaded or refused", &self.policy_reloads);
        catalog.add(
            "policy_files_faulty",
            "1 while policy files cannot be loaded; the last good policies stay in force",
            &self.policy_files_faulty,
        );
        catalog.add(
            "policy_faulty",
            "1 while the current generation of a NodePolicy object is not in force",
            &self.faulty_policies.family,
        );
        catalog.add("saved_states", "Nodes with saved state", &self.saved_states);
        catalog.add("state_reloads", "Documents of saved state read or refused", &self.state_reloads);
        catalog.add("certificate_reloads", "Certificates loaded or refused", &self.certificate_reloads);
        catalog.add_in(
            "certificate_not_after_timestamp",
            Unit::Seconds,
            "When the serving certificate expires, in seconds since 1970",
            &self.certificate_not_after,
        );
        catalog.add(
            "certificate_expiring",
            "1 from 14 days before the serving certificate expires",
            &self.certificate_expiring,
        );
    }

    /// What the reference says about each metric, in its order.
    pub fn entries(&self) -> Vec<Entry> {
        self.listed.iter().map(Listed::entry).collect()
    }

    /// What the reference says about the metrics that `apply` writes to a file.
    pub fn apply_entries() -> Vec<Entry> {
        apply::entries()
    }

    /// Counts a reload of policies, with the new number of policies and rules. Removes the series of policies that
    /// are gone.
    pub fn policies_reloaded(&self, result: Reload, policies: usize, rules: usize) {
        self.policy_reloads.get_or_create(&ReloadLabels { result: result.as_str() }).inc();
        if result == Reload::Success {
            self.policies.set(i64::try_from(policies).unwrap_or(i64::MAX));
            self.rules.set(i64::try_from(rules).unwrap_or(i64::MAX));
            self.admission.policies_changed();
        }
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

    /// Records that everything that a review depends on has been loaded.
    pub fn everything_loaded(&self) {
        self.synced.set(1);
    }

    /// Counts a read of saved state.
    pub fn state_reloaded(&self, result: Reload) {
        self.state_reloads.get_or_create(&ReloadLabels { result: result.as_str() }).inc();
    }

    /// Counts a reload of the serving certificate.
    pub fn certificate_reloaded(&self, result: Reload) {
        self.certificate_reloads.get_or_create(&ReloadLabels { result: result.as_str() }).inc();
    }

    /// All metrics, in a format.
    pub fn render(&self, format: Format) -> String {
        rendered(&self.registry, format)
    }
}

fn rendered(registry: &Registry, format: Format) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail; if it did, the page would be incomplete.
    let _ = encode(&mut text, registry);
    match format {
        Format::OpenMetrics => text,
        Format::Text => exposition::as_text(&text),
    }
}
