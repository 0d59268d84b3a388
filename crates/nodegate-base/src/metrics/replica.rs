//! Where this replica runs.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::catalog::Catalog;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLabels {
    node: String,
}

/// The node on which this replica runs; no series if it was not told.
#[derive(Debug, Default)]
pub struct ReplicaMetrics {
    node: Family<NodeLabels, Gauge>,
}

impl ReplicaMetrics {
    /// The replica runs on this node.
    pub fn runs_on(&self, node: &str) {
        self.node.get_or_create(&NodeLabels { node: node.to_owned() }).set(1);
    }

    pub(super) fn register(&self, catalog: &mut Catalog) {
        let Self { node } = self;
        catalog.add("replica_node", "1 with the node on which the replica runs (--node-name)", node);
    }
}
