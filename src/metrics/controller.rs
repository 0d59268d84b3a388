//! Metrics of the controller.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::keeping::KeepingMetrics;
use super::labels::{BUCKETS, Reload, ReloadLabels, ViolationLabels, reloads};
use nodegate_policy::gpu::probed::Fact;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FactLabels {
    fact: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    what: &'static str,
    result: &'static str,
}

/// Metrics of the controller; zero if none runs.
#[derive(Debug)]
pub struct ControllerMetrics {
    /// 1 while this replica leads.
    pub leading: Gauge,
    writes: Family<WriteLabels, Counter>,
    reconciles: Family<ReloadLabels, Counter>,
    durations: Histogram,
    /// Nodes that have been pending for too long.
    pub pending_too_long: Gauge,
    /// Nodes on which the removal of owned keys is held back by the limit.
    pub removals_held_back: Gauge,
    /// Keys that are no longer repaired, since the start.
    pub keys_left_alone: Counter,
    /// Documents of saved state that could not be read, since the start.
    pub unreadable_states: Counter,
    /// Nodes and changes that were admitted without calling nodegate, since the start.
    pub admitted_unseen: Counter,
    /// Nodes that currently violate an entry of `governance`.
    violating: Family<ViolationLabels, Gauge>,
    /// Nodes on which `probe` and GPU feature discovery differ.
    hardware_differs: Family<FactLabels, Gauge>,
    /// Nodes that cannot be read.
    pub unreadable_nodes: Gauge,
    /// Nodes with a field that is too large to be kept.
    pub nodes_read_in_part: Gauge,
    /// 1 while this replica cannot watch nodes although it should.
    pub node_watch_failing: Gauge,
    /// Delayed writes and omitted data.
    pub keeping: KeepingMetrics,
}

impl Default for ControllerMetrics {
    fn default() -> Self {
        Self {
            leading: Gauge::default(),
            writes: Family::default(),
            reconciles: reloads(),
            durations: Histogram::new(BUCKETS),
            pending_too_long: Gauge::default(),
            removals_held_back: Gauge::default(),
            keys_left_alone: Counter::default(),
            unreadable_states: Counter::default(),
            admitted_unseen: Counter::default(),
            violating: Family::default(),
            hardware_differs: Family::default(),
            unreadable_nodes: Gauge::default(),
            nodes_read_in_part: Gauge::default(),
            node_watch_failing: Gauge::default(),
            keeping: KeepingMetrics::default(),
        }
    }
}

impl ControllerMetrics {
    /// Counts a write of a `node` or of its `state`.
    pub fn wrote(&self, what: &'static str, taken: bool) {
        let result = if taken { Reload::Success } else { Reload::Failure }.as_str();
        self.writes.get_or_create(&WriteLabels { what, result }).inc();
    }

    /// Counts a processed node.
    pub fn reconciled(&self, done: bool, seconds: f64) {
        let result = if done { Reload::Success } else { Reload::Failure }.as_str();
        self.reconciles.get_or_create(&ReloadLabels { result }).inc();
        self.durations.observe(seconds);
    }

    /// Sets how many nodes violate each entry: policy, rule and mode.
    pub fn violating<'a>(&self, nodes: impl IntoIterator<Item = ((&'a str, &'a str, &'static str), usize)>) {
        self.violating.clear();
        for ((policy, rule, mode), nodes) in nodes {
            let labels = ViolationLabels { policy: policy.to_owned(), rule: rule.to_owned(), mode };
            self.violating.get_or_create(&labels).set(i64::try_from(nodes).unwrap_or(i64::MAX));
        }
    }

    /// Sets how many nodes differ in each fact.
    pub fn hardware_differs(&self, nodes: impl IntoIterator<Item = (Fact, usize)>) {
        for (fact, nodes) in nodes {
            let labels = FactLabels { fact: fact.as_str() };
            self.hardware_differs.get_or_create(&labels).set(i64::try_from(nodes).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let Self {
            leading,
            writes,
            reconciles,
            durations,
            pending_too_long,
            removals_held_back,
            keys_left_alone,
            unreadable_states,
            admitted_unseen,
            violating,
            hardware_differs,
            unreadable_nodes,
            nodes_read_in_part,
            node_watch_failing,
            keeping,
        } = self;
        registry.register("leading", "1 while this replica leads", leading.clone());
        registry.register("writes", "Writes of the controller", writes.clone());
        registry.register("reconciles", "Nodes that the controller has processed", reconciles.clone());
        registry.register(
            "reconcile_duration_seconds",
            "Time to reconcile a node, including writes",
            durations.clone(),
        );
        registry.register(
            "nodes_pending_too_long",
            "Nodes that have had the pending taint for too long",
            pending_too_long.clone(),
        );
        registry.register(
            "removals_held_back_nodes",
            "Nodes on which the removal of owned keys is held back, because it would affect too many nodes",
            removals_held_back.clone(),
        );
        registry.register(
            "keys_left_alone",
            "Keys that are no longer repaired, because others kept reverting them",
            keys_left_alone.clone(),
        );
        registry.register(
            "unreadable_states",
            "Documents of saved state that could not be read",
            unreadable_states.clone(),
        );
        registry.register(
            "admitted_unseen",
            "Nodes and changes that were admitted without calling nodegate",
            admitted_unseen.clone(),
        );
        registry.register(
            "violating_nodes",
            "Nodes that violate a governance entry, as of the leader's last survey of all nodes",
            violating.clone(),
        );
        registry.register(
            "hardware_differs_nodes",
            "Nodes on which probe found other GPUs than GPU feature discovery reports",
            hardware_differs.clone(),
        );
        registry.register(
            "unreadable_nodes",
            "Nodes that the leader cannot read and therefore does not change",
            unreadable_nodes.clone(),
        );
        registry.register(
            "nodes_read_in_part",
            "Nodes with a field that is too large for the leader to keep",
            nodes_read_in_part.clone(),
        );
        registry.register(
            "node_watch_failing",
            "1 while this replica cannot list and watch nodes; if this lasts, it releases the Lease",
            node_watch_failing.clone(),
        );
        keeping.register(registry);
    }
}
