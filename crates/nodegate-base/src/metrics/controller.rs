//! Metrics of the controller.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;

use nodegate_policy::RuleId;

use super::bounded::{Bounded, Named, OTHERS, number};
use super::catalog::Catalog;
use super::keeping::KeepingMetrics;
use super::labels::{BUCKETS, Reload, ReloadLabels, reloads};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    what: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UrgencyLabels {
    urgency: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RestoreLabels {
    result: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FieldLabels {
    field: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct RuleLabels {
    policy: String,
    rule: String,
}

impl Named for RuleLabels {
    fn others(&self) -> Self {
        Self { policy: OTHERS.to_owned(), rule: OTHERS.to_owned() }
    }
}

/// Metrics of the controller; zero if none runs.
#[derive(Debug)]
pub struct ControllerMetrics {
    /// 1 while this replica leads.
    pub leading: Gauge,
    writes: Family<WriteLabels, Counter>,
    reconciles: Family<ReloadLabels, Counter>,
    durations: Histogram,
    queue: Family<UrgencyLabels, Gauge>,
    queues: [Gauge; QUEUES.len()],
    restores: Family<RestoreLabels, Counter>,
    repairs: Family<FieldLabels, Counter>,
    claims_rejected: Bounded<RuleLabels, Counter>,
    /// Certificates for the name of a node that were issued to another pool, since the start.
    pub contradictions: Counter,
    /// Nodes with the provider ID of another machine, since the start.
    pub provider_id_contradictions: Counter,
    /// Keys that are no longer repaired, since the start.
    pub keys_left_alone: Counter,
    /// Documents of saved state that could not be read, since the start.
    pub unreadable_states: Counter,
    /// Nodes and changes that were admitted without calling nodegate, since the start.
    pub admitted_unseen: Counter,
    /// Nodes that cannot be read.
    pub unreadable_nodes: Gauge,
    /// Nodes with a field that is too large to be kept.
    pub nodes_read_in_part: Gauge,
    /// 1 while this replica cannot watch nodes although it should.
    pub node_watch_failing: Gauge,
    /// 1 while this replica leads and cannot tell the guard the keys of the policies in force.
    pub guard_not_current: Gauge,
    /// Delayed writes and omitted data.
    pub keeping: KeepingMetrics,
}

/// The queues of nodes, in their order.
const QUEUES: [&str; 2] = ["joining", "routine"];
/// The words of `restores`.
const RESTORED: &str = "success";
const NOT_RESTORED: &str = "failure";
/// The words of `repairs`.
const FIELDS: [&str; 3] = ["label", "annotation", "taint"];

impl Default for ControllerMetrics {
    fn default() -> Self {
        let queue = Family::<UrgencyLabels, Gauge>::default();
        let (restores, repairs) =
            (Family::<RestoreLabels, Counter>::default(), Family::<FieldLabels, Counter>::default());
        // An alert on an increase would miss the first one otherwise.
        for result in [RESTORED, NOT_RESTORED] {
            drop(restores.get_or_create(&RestoreLabels { result }));
        }
        for field in FIELDS {
            drop(repairs.get_or_create(&FieldLabels { field }));
        }
        Self {
            leading: Gauge::default(),
            writes: Family::default(),
            reconciles: reloads(),
            durations: Histogram::new(BUCKETS),
            queues: QUEUES.map(|urgency| queue.get_or_create_owned(&UrgencyLabels { urgency })),
            queue,
            restores,
            repairs,
            claims_rejected: Bounded::default(),
            contradictions: Counter::default(),
            provider_id_contradictions: Counter::default(),
            keys_left_alone: Counter::default(),
            unreadable_states: Counter::default(),
            admitted_unseen: Counter::default(),
            unreadable_nodes: Gauge::default(),
            nodes_read_in_part: Gauge::default(),
            node_watch_failing: Gauge::default(),
            guard_not_current: Gauge::default(),
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

    /// Counts a node whose labels or taints were restored, or could not be.
    pub fn restored(&self, done: bool) {
        let result = if done { RESTORED } else { NOT_RESTORED };
        self.restores.get_or_create(&RestoreLabels { result }).inc();
    }

    /// Counts a key that others had changed and nodegate has set again; `field` is `label`, `annotation` or `taint`.
    pub fn repaired(&self, field: &'static str) {
        self.repairs.get_or_create(&FieldLabels { field }).inc();
    }

    /// Counts labels that a joining kubelet claimed and that were rejected, by the rule that did it.
    pub fn rejected(&self, by: &RuleId, labels: usize) {
        let series = RuleLabels { policy: by.policy.to_string(), rule: by.rule.to_string() };
        self.claims_rejected.of(&series).inc_by(u64::try_from(labels).unwrap_or(u64::MAX));
    }

    /// Sets how many nodes wait in each queue: joining ones, and others.
    pub fn queued(&self, waiting: [usize; QUEUES.len()]) {
        for (gauge, nodes) in self.queues.iter().zip(waiting) {
            gauge.set(number(nodes));
        }
    }

    pub(super) fn register(&self, catalog: &mut Catalog) {
        let Self {
            leading,
            writes,
            reconciles,
            durations,
            queue,
            queues: _,
            restores,
            repairs,
            claims_rejected,
            contradictions,
            provider_id_contradictions,
            keys_left_alone,
            unreadable_states,
            admitted_unseen,
            unreadable_nodes,
            nodes_read_in_part,
            node_watch_failing,
            guard_not_current,
            keeping,
        } = self;
        catalog.section("Controller");
        catalog.add("leading", "1 while this replica leads", leading);
        catalog.add(
            "node_watch_failing",
            "1 while this replica cannot list and watch nodes; it gives up the Lease soon",
            node_watch_failing,
        );
        catalog.add(
            "guard_not_current",
            "1 while this replica leads and the guard lacks protected or persisted keys",
            guard_not_current,
        );
        catalog.add("queue_nodes", "Nodes that wait to be reconciled; urgency is joining or routine", queue);
        catalog.add("reconciles", "Nodes reconciled", reconciles);
        catalog.add_in("reconcile_duration", Unit::Seconds, "Time to reconcile one node, writes included", durations);
        catalog.add("writes", "Writes of a node, of its state or of a revision of a policy", writes);
        catalog.add(
            "repairs",
            "Keys that others had changed or removed and that nodegate set again; field is label, annotation or taint",
            repairs,
        );
        catalog.add(
            "restores",
            "Nodes for which the controller restored saved keys; failure counts each attempt",
            restores,
        );
        catalog.add(
            "claims_rejected",
            "Rejected claims of joining kubelets, by rule or protect section; rule nodegate/unnamed: only their number is known; \
             nodegate/owners: metadata.ownerReferences",
            &claims_rejected.family,
        );
        catalog.add(
            "identity_contradictions",
            "Certificates for the name of a node that were issued to another pool than the one that created the node",
            contradictions,
        );
        catalog.add(
            "provider_id_contradictions",
            "Nodes with the provider ID of another machine than the one that they are proven to be",
            provider_id_contradictions,
        );
        catalog.add(
            "admitted_unseen",
            "Nodes and changes that were admitted while no replica was called",
            admitted_unseen,
        );
        catalog.add(
            "keys_left_alone",
            "Keys that are no longer repaired, because another writer keeps reverting them",
            keys_left_alone,
        );
        catalog.add("unreadable_states", "Documents of saved state that could not be parsed", unreadable_states);
        catalog.add(
            "unreadable_nodes",
            "Nodes that the leader cannot parse and therefore does not touch",
            unreadable_nodes,
        );
        catalog.add("nodes_read_in_part", "Nodes with a field that is too large to keep", nodes_read_in_part);
        keeping.register(catalog);
    }
}
