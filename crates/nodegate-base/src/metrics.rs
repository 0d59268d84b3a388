//! Every metric, by name. Label values are bounded: they are words of this file, or policies and rules in force.

mod admission;
mod apply;
mod bounded;
mod catalog;
mod controller;
mod exposition;
mod fleet;
mod inventory;
mod keeping;
mod labels;
mod loaded;
mod process;
mod replica;
mod survey;
mod traces;

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

pub use admission::{AdmissionMetrics, BodyMetrics, CallerMetrics, ConnectionMetrics, Held};
pub use apply::ApplyRun;
pub use catalog::Entry;
pub use controller::ControllerMetrics;
pub use exposition::Format;
pub use fleet::{Count, FleetMetrics};
pub use inventory::InventoryMetrics;
pub use keeping::KeepingMetrics;
pub use labels::{Endpoint, Outcome, Reload};
pub use loaded::{LoadedMetrics, PolicyCount};
pub use replica::ReplicaMetrics;
pub use survey::{ByRule, Survey};
pub use traces::{SpanFate, TraceMetrics};

use catalog::{Catalog, Constant, Listed};

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
    /// Policies, saved state and certificates.
    pub loaded: LoadedMetrics,
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
    /// Where the replica runs.
    pub replica: ReplicaMetrics,
}

impl Metrics {
    /// All metrics, at zero.
    pub fn new() -> Arc<Self> {
        let metrics = Self {
            registry: Registry::default(),
            listed: Vec::new(),
            admission: AdmissionMetrics::default(),
            loaded: LoadedMetrics::default(),
            connections: ConnectionMetrics::default(),
            callers: CallerMetrics::default(),
            controller: ControllerMetrics::default(),
            fleet: FleetMetrics::default(),
            inventory: InventoryMetrics::default(),
            traces: TraceMetrics::default(),
            replica: ReplicaMetrics::default(),
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
            loaded,
            connections,
            callers,
            controller,
            fleet,
            inventory,
            traces,
            replica,
        } = self;
        admission.register(catalog);
        loaded.register(catalog);
        connections.register(catalog);
        callers.register(catalog);
        controller.register(catalog);
        fleet.register(catalog);
        inventory.register(catalog);
        traces.register(catalog);
        process::register(catalog);
        replica.register(catalog);
        let build =
            BuildLabels { version: env!("CARGO_PKG_VERSION"), os: std::env::consts::OS, arch: std::env::consts::ARCH };
        catalog.add("build", "The running version, and what it was built for", &Constant(build));
    }

    /// What the reference says about each metric, in its order.
    pub fn entries(&self) -> Vec<Entry> {
        self.listed.iter().map(Listed::entry).collect()
    }

    /// What the reference says about the metrics that `apply` writes to a file.
    pub fn apply_entries() -> Vec<Entry> {
        apply::entries()
    }

    /// Counts a reload of policies that succeeded. Removes the series of policies and rules that are gone.
    pub fn policies_loaded(&self, count: PolicyCount) {
        self.loaded.policies_loaded(count);
        self.admission.policies_changed();
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
