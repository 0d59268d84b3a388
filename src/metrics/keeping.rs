//! Metrics of what the controller puts off or leaves out so that the rest goes on.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// What is put off or left out; all zero where no controller runs.
#[derive(Debug, Default)]
pub struct KeepingMetrics {
    /// How often work on a node was put off because the node had used up its write budget.
    pub writes_put_off: Counter,
    /// Nodes whose state could not be recorded.
    pub unrecorded_nodes: Gauge,
    /// Persisted labels and taints that were not saved, because the node has too many.
    pub keys_not_saved: Counter,
    /// Records of older machines, and texts that could not be read, that made room for newer ones.
    pub records_dropped: Counter,
    /// Annotations that a rule gives and that did not fit on the node, or that the API server refused.
    pub annotations_left_out: Counter,
}

impl KeepingMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let Self { writes_put_off, unrecorded_nodes, keys_not_saved, records_dropped, annotations_left_out } = self;
        registry.register(
            "node_writes_put_off",
            "Work on a node that was put off because the node had used up its own write budget",
            writes_put_off.clone(),
        );
        registry.register(
            "unrecorded_nodes",
            "Nodes whose state could not be recorded; they are kept right all the same",
            unrecorded_nodes.clone(),
        );
        registry.register(
            "keys_not_saved",
            "Persisted labels and taints that were not saved because the node has too many",
            keys_not_saved.clone(),
        );
        registry.register(
            "records_dropped",
            "Records of older machines and unreadable texts that made room in a ConfigMap",
            records_dropped.clone(),
        );
        registry.register(
            "annotations_left_out",
            "Annotations of rules that did not fit on a node, or that the API server refused",
            annotations_left_out.clone(),
        );
    }
}
