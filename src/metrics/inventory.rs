//! Metrics of inventories.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InventoryLabels {
    policy: String,
    inventory: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    policy: String,
    inventory: String,
    result: &'static str,
}

/// Metrics of inventories. Those with an inventory are empty on replicas that do not ask them.
#[derive(Debug, Default)]
pub struct InventoryMetrics {
    requests: Family<RequestLabels, Counter>,
    failing: Family<InventoryLabels, Gauge>,
    nodes: Family<InventoryLabels, Gauge>,
    dropped: Family<InventoryLabels, Counter>,
    unreadable: Gauge,
}

impl InventoryMetrics {
    /// Counts a request.
    pub fn asked(&self, policy: &str, inventory: &str, result: &'static str) {
        let labels = RequestLabels { policy: policy.to_owned(), inventory: inventory.to_owned(), result };
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts labels of an answer that are not used.
    pub fn dropped(&self, policy: &str, inventory: &str, labels: usize) {
        self.dropped.get_or_create(&of(policy, inventory)).inc_by(u64::try_from(labels).unwrap_or(u64::MAX));
    }

    /// Sets whether an inventory fails.
    pub fn set_failing(&self, policy: &str, inventory: &str, failing: bool) {
        self.failing.get_or_create(&of(policy, inventory)).set(i64::from(failing));
    }

    /// Sets about how many nodes an inventory has answered.
    pub fn set_nodes(&self, policy: &str, inventory: &str, nodes: usize) {
        self.nodes.get_or_create(&of(policy, inventory)).set(i64::try_from(nodes).unwrap_or(i64::MAX));
    }

    /// Sets how many ConfigMaps with answers cannot be read.
    pub fn set_unreadable(&self, config_maps: usize) {
        self.unreadable.set(i64::try_from(config_maps).unwrap_or(i64::MAX));
    }

    /// Forgets the state of all inventories, because this replica does not ask them anymore.
    pub fn clear_state(&self) {
        self.failing.clear();
        self.nodes.clear();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let Self { requests, failing, nodes, dropped, unreadable } = self;
        registry.register("inventory_requests", "Requests to inventories, by result", requests.clone());
        registry.register("inventory_failing", "1 while an inventory does not answer with labels", failing.clone());
        registry.register("inventory_nodes", "Nodes about which an inventory has answered", nodes.clone());
        registry.register(
            "inventory_dropped_labels",
            "Labels of answers that are invalid or not in allow",
            dropped.clone(),
        );
        registry.register(
            "inventory_unreadable_answers",
            "ConfigMaps with answers of inventories that cannot be read",
            unreadable.clone(),
        );
    }
}

fn of(policy: &str, inventory: &str) -> InventoryLabels {
    InventoryLabels { policy: policy.to_owned(), inventory: inventory.to_owned() }
}
