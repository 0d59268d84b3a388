//! Metrics of inventories.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::bounded::{Bounded, Named, OTHERS, number};
use super::catalog::Catalog;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct InventoryLabels {
    policy: String,
    inventory: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct RequestLabels {
    policy: String,
    inventory: String,
    result: &'static str,
}

impl Named for InventoryLabels {
    fn others(&self) -> Self {
        Self { policy: OTHERS.to_owned(), inventory: OTHERS.to_owned() }
    }
}

impl Named for RequestLabels {
    fn others(&self) -> Self {
        Self { policy: OTHERS.to_owned(), inventory: OTHERS.to_owned(), result: self.result }
    }
}

/// Metrics of inventories. Those with an inventory are empty on replicas that do not ask them.
#[derive(Debug, Default)]
pub struct InventoryMetrics {
    requests: Bounded<RequestLabels, Counter>,
    failing: Bounded<InventoryLabels, Gauge>,
    nodes: Bounded<InventoryLabels, Gauge>,
    dropped: Bounded<InventoryLabels, Counter>,
    unreadable: Gauge,
    unstored: Gauge,
}

impl InventoryMetrics {
    /// Counts a request.
    pub fn asked(&self, policy: &str, inventory: &str, result: &'static str) {
        let labels = RequestLabels { policy: policy.to_owned(), inventory: inventory.to_owned(), result };
        self.requests.of(&labels).inc();
    }

    /// Counts labels of an answer that are not used.
    pub fn dropped(&self, policy: &str, inventory: &str, labels: usize) {
        self.dropped.of(&of(policy, inventory)).inc_by(u64::try_from(labels).unwrap_or(u64::MAX));
    }

    /// Sets whether an inventory fails.
    pub fn set_failing(&self, policy: &str, inventory: &str, failing: bool) {
        self.failing.of(&of(policy, inventory)).set(i64::from(failing));
    }

    /// Sets about how many nodes an inventory has answered.
    pub fn set_nodes(&self, policy: &str, inventory: &str, nodes: usize) {
        self.nodes.of(&of(policy, inventory)).set(number(nodes));
    }

    /// Sets how many ConfigMaps with answers cannot be read.
    pub fn set_unreadable(&self, config_maps: usize) {
        self.unreadable.set(number(config_maps));
    }

    /// Sets about how many nodes the answers do not fit into the ConfigMaps.
    pub fn set_unstored(&self, nodes: usize) {
        self.unstored.set(number(nodes));
    }

    /// Forgets the state of all inventories, because this replica does not ask them anymore.
    pub fn clear_state(&self) {
        self.failing.clear();
        self.nodes.clear();
        self.unstored.set(0);
    }

    pub(super) fn register(&self, catalog: &mut Catalog) {
        let Self { requests, failing, nodes, dropped, unreadable, unstored } = self;
        catalog.section("Inventories");
        catalog.add(
            "inventory_requests",
            "Requests to inventories: answered, unchanged (304), not_found (404), failed",
            &requests.family,
        );
        catalog.add(
            "inventory_failing",
            "1 while an inventory does not answer, fails repeatedly for some nodes, or answers 404 for all",
            &failing.family,
        );
        catalog.add("inventory_nodes", "Nodes, or machines, about which an inventory has answered", &nodes.family);
        catalog.add("inventory_dropped_labels", "Labels of answers that are invalid or not in allow", &dropped.family);
        catalog.add(
            "inventory_unreadable_answers",
            "ConfigMaps with answers that this replica cannot read; the last answers stay in force",
            unreadable,
        );
        catalog.add(
            "inventory_unstored_nodes",
            "Nodes whose answers do not fit into the ConfigMaps and are unknown after a restart",
            unstored,
        );
    }
}

fn of(policy: &str, inventory: &str) -> InventoryLabels {
    InventoryLabels { policy: policy.to_owned(), inventory: inventory.to_owned() }
}
