//! Metrics of all nodes, which the leader sees. A replica that does not lead reports none of them.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;

use super::bounded::{Gauges, Named, OTHERS, SERIES_MAX, number};
use super::catalog::Catalog;
use super::labels::FactLabels;
use super::survey::{Survey, SurveyMetrics};
use nodegate_policy::PoolMemory;
use nodegate_policy::gpu::probed::Fact;

/// How many values of one label have a series of their own.
const VALUES_MAX: usize = 100;

/// Boundaries of the time that nodes wait, in seconds. Nodes are created at whole seconds.
const WAITS: [f64; 12] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct ValueLabels {
    key: String,
    value: String,
}

impl Named for ValueLabels {
    fn others(&self) -> Self {
        Self { key: self.key.clone(), value: OTHERS.to_owned() }
    }
}

/// What the leader counts all the time.
#[derive(Clone, Debug, Default)]
pub struct Count {
    /// Nodes.
    pub nodes: usize,
    /// Nodes with the pending taint.
    pub pending: usize,
    /// Those of them that have had it for longer than permitted.
    pub pending_too_long: usize,
    /// When the one of them was created that was created first, in seconds since 1970.
    pub oldest_pending: Option<i64>,
    /// Nodes by the values of a label, for each label that is counted. Without the label, the value is empty.
    pub by_label: BTreeMap<String, BTreeMap<String, i64>>,
}

/// Metrics of all nodes.
#[derive(Debug)]
pub struct FleetMetrics {
    nodes: Gauge,
    by_label: Gauges<ValueLabels>,
    pending: Gauge,
    pending_too_long: Gauge,
    oldest_pending: Gauge<f64, AtomicU64>,
    waits: Histogram,
    survey: SurveyMetrics,
    hardware_differs: Family<FactLabels, Gauge>,
    pool_disagreements: Gauge,
    pool_labels_left_out: Gauge,
}

impl Default for FleetMetrics {
    fn default() -> Self {
        Self {
            nodes: Gauge::default(),
            by_label: Gauges::default(),
            pending: Gauge::default(),
            pending_too_long: Gauge::default(),
            oldest_pending: Gauge::default(),
            waits: Histogram::new(WAITS),
            survey: SurveyMetrics::default(),
            hardware_differs: Family::default(),
            pool_disagreements: Gauge::default(),
            pool_labels_left_out: Gauge::default(),
        }
    }
}

impl FleetMetrics {
    /// Sets what the survey found.
    pub fn surveyed(&self, survey: Survey) {
        self.survey.set(survey);
    }

    /// Sets what is counted all the time.
    pub fn counted(&self, count: Count) {
        let Count { nodes, pending, pending_too_long, oldest_pending, by_label } = count;
        self.nodes.set(number(nodes));
        self.pending.set(number(pending));
        self.pending_too_long.set(number(pending_too_long));
        self.oldest_pending.set(oldest_pending.unwrap_or_default() as f64);
        let values = by_label.into_iter().flat_map(|(key, values)| highest(&key, values));
        self.by_label.replace(values, SERIES_MAX);
    }

    /// Observes that nothing of a node is deferred any more, so many seconds after it was created.
    pub fn completed(&self, seconds: f64) {
        self.waits.observe(seconds);
    }

    /// Sets how many nodes differ in each fact.
    pub fn hardware_differs(&self, nodes: impl IntoIterator<Item = (Fact, usize)>) {
        for (fact, nodes) in nodes {
            self.hardware_differs.get_or_create(&FactLabels { fact: fact.as_str() }).set(number(nodes));
        }
    }

    /// Sets what pools remember, and what not.
    pub fn pools_remember(&self, memory: &PoolMemory) {
        self.pool_disagreements.set(number(memory.pools.values().map(|pool| pool.disagreements.len()).sum()));
        self.pool_labels_left_out.set(number(memory.left_out));
    }

    /// Forgets all nodes, because this replica does not lead any more. Otherwise sums over replicas would count nodes twice.
    pub fn forget(&self) {
        self.surveyed(Survey::default());
        self.counted(Count::default());
        self.hardware_differs.clear();
        self.pools_remember(&PoolMemory::default());
    }

    pub(super) fn register(&self, catalog: &mut Catalog) {
        let Self {
            nodes,
            by_label,
            pending,
            pending_too_long,
            oldest_pending,
            waits,
            survey,
            hardware_differs,
            pool_disagreements,
            pool_labels_left_out,
        } = self;
        catalog.section("Fleet");
        catalog.add("nodes", "Nodes that the leader sees", nodes);
        catalog.add(
            "nodes_by_label",
            "Nodes by the value of each label that --count-nodes-by names; the value is empty on nodes without the label",
            &by_label.family,
        );
        catalog.add("pending_nodes", "Nodes with the pending taint", pending);
        catalog.add(
            "nodes_pending_too_long",
            "Nodes with the pending taint that were created longer ago than --pending-timeout, and than the timeout of a gate at which they wait",
            pending_too_long,
        );
        catalog.add_in(
            "oldest_pending_node_created_timestamp",
            Unit::Seconds,
            "When the oldest node with the pending taint was created, in seconds since 1970; 0 if no node has it",
            oldest_pending,
        );
        catalog.add_in(
            "node_completion",
            Unit::Seconds,
            "Time from a node's creation (whole seconds) until the leader sees its pending taint gone",
            waits,
        );
        survey.register(catalog);
        catalog.add(
            "hardware_differs_nodes",
            "Nodes on which probe found other GPUs than GPU feature discovery reports; fact is product, count or memory",
            hardware_differs,
        );
        catalog.add(
            "pool_label_disagreements",
            "Labels that no new node gets, because the nodes of its pool have different values, or some lack it",
            pool_disagreements,
        );
        catalog.add(
            "pool_labels_left_out",
            "Labels that pools do not remember, because they do not fit into the ConfigMap",
            pool_labels_left_out,
        );
    }
}

/// The values that most nodes have, and the others together.
fn highest(key: &str, values: BTreeMap<String, i64>) -> Vec<(ValueLabels, i64)> {
    let mut values: Vec<(String, i64)> = values.into_iter().collect();
    values.sort_by(|(one, many), (other, few)| few.cmp(many).then_with(|| one.cmp(other)));
    let rest: i64 = values.split_off(values.len().min(VALUES_MAX)).into_iter().map(|(_, nodes)| nodes).sum();
    let rest = (rest > 0).then(|| (OTHERS.to_owned(), rest));
    let labels = |value| ValueLabels { key: key.to_owned(), value };
    values.into_iter().chain(rest).map(|(value, nodes)| (labels(value), nodes)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_label_with_thousands_of_values_has_a_hundred_series_and_the_others() {
        let metrics = FleetMetrics::default();
        let values = (0..5000).map(|value| (format!("v{value:04}"), 1)).chain([("most".to_owned(), 7)]).collect();
        metrics.counted(Count {
            nodes: 5007,
            by_label: BTreeMap::from([("tier".to_owned(), values)]),
            ..Count::default()
        });
        let value = |value: &str| {
            let labels = ValueLabels { key: "tier".to_owned(), value: value.to_owned() };
            metrics.by_label.family.get(&labels).map(|gauge| gauge.get())
        };
        assert_eq!((value("most"), value("v0098"), value("v0099")), (Some(7), Some(1), None), "a hundred at most");
        assert_eq!(value(OTHERS), Some(5007 - 7 - 99));
        metrics.forget();
        assert_eq!((value("most"), metrics.nodes.get()), (None, 0), "a replica that does not lead reports none");
    }
}
