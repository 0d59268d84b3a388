//! Metrics of delayed writes and omitted data in the controller.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::catalog::Catalog;

/// Delayed writes and omitted data; zero if no controller runs.
#[derive(Debug, Default)]
pub struct KeepingMetrics {
    /// How often work on a node was delayed because the node had exhausted its write budget.
    pub writes_put_off: Counter,
    /// Nodes whose saved state could not be written.
    pub unrecorded_nodes: Gauge,
    /// Persisted labels and taints that were not saved because the node has too many.
    pub keys_not_saved: Counter,
    /// Old records and unreadable texts that were dropped to make room for newer ones.
    pub records_dropped: Counter,
    /// Annotations of rules that did not fit on a node, or that the API server refused.
    pub annotations_left_out: Counter,
    /// Nodes that were released after they had been pending for too long.
    pub released_incomplete: Counter,
}

impl KeepingMetrics {
    pub(super) fn register(&self, catalog: &mut Catalog) {
        let Self {
            writes_put_off,
            unrecorded_nodes,
            keys_not_saved,
            records_dropped,
            annotations_left_out,
            released_incomplete,
        } = self;
        catalog.add(
            "node_writes_put_off",
            "Work on a node that was delayed because its write budget was exhausted",
            writes_put_off,
        );
        catalog.add(
            "unrecorded_nodes",
            "Nodes whose saved state could not be written; they are still reconciled",
            unrecorded_nodes,
        );
        catalog.add(
            "keys_not_saved",
            "Persisted labels and taints that were not saved because the node has too many",
            keys_not_saved,
        );
        catalog.add(
            "records_dropped",
            "Records of other machines and unreadable texts dropped from a ConfigMap to make room",
            records_dropped,
        );
        catalog.add(
            "annotations_left_out",
            "Annotations of rules that did not fit on a node, or that the API server refused",
            annotations_left_out,
        );
        catalog.add(
            "nodes_released_incomplete",
            "Nodes whose pending taint was removed after --pending-timeout, or the timeout of a gate, although something was missing",
            released_incomplete,
        );
    }
}
